"""The metrics, against numbers worked out elsewhere and against their definitions."""

import math

import numpy as np
import pytest

from analysis import metrics
from benchmark.metrics import average_perplexity

NONE = float("nan")
# perplexity after every stage (rows) on every domain (columns), with AP and AP+ by direct
# evaluation in NumPy of the paper's formulas; the first is checked by hand: sqrt(9 * 4) = 6 and 9 -
# 4 = 5
MATRICES = [
    ([[4, NONE], [9, 4]], [4.0, 6.0], [NONE, 5.0]),
    (
        [[8.467, NONE, NONE], [9.683, 6.099, NONE], [28.126, 20.363, 3.718]],
        [8.467000000000002, 7.68483031692958, 12.865293737524588],
        [NONE, 1.2159999999999993, 16.9615],
    ),
    (
        [
            [3.782, NONE, NONE, NONE, NONE],
            [5.807, 8.911, NONE, NONE, NONE],
            [16.729, 30.639, 4.071, NONE, NONE],
            [7.518, 14.758, 7.839, 3.606, NONE],
            [11.441, 21.634, 8.093, 14.182, 8.433],
        ],
        [3.782, 7.193481563193166, 12.778559222638375, 7.48348777537151, 11.909293174572438],
        [NONE, 2.0250000000000004, 17.3375, 4.450333333333333, 8.745000000000001],
    ),
]


@pytest.mark.parametrize(("matrix", "ap", "ap_plus"), MATRICES)
def test_ap_and_ap_plus_after_every_stage(matrix, ap, ap_plus):
    """Oracle: direct evaluation of the paper's formulas elsewhere; all stages in one call."""
    stages = np.arange(len(matrix))
    finished = np.diagonal(np.array(matrix))
    np.testing.assert_allclose(average_perplexity(matrix, stages), ap, rtol=1e-9)
    np.testing.assert_allclose(
        metrics.average_increase(matrix, finished, stages), ap_plus, rtol=1e-9
    )


def test_the_log_form_of_what_is_forgotten():
    """Oracle: by hand, (log 2 + log 8) / 2 for domains that grew by factors of 2 and 8."""
    matrix = [[10.0, 50.0, 99.0], [15.0, 20.0, 99.0], [20.0, 160.0, 7.0]]
    by_hand = (math.log(2) + math.log(8)) / 2
    assert metrics.average_increase(
        np.log(matrix[2]), np.log([10.0, 20.0, 7.0]), 2
    ) == pytest.approx(by_hand)


def test_forward_transfer_reads_the_diagonal_above_the_main_one():
    """Oracle: by hand, (log(100/50) + log(300/99)) / 2."""
    matrix = [[10.0, 50.0, 1.0], [15.0, 20.0, 99.0], [20.0, 160.0, 7.0]]
    by_hand = (math.log(100 / 50) + math.log(300 / 99)) / 2
    assert metrics.compute_forward_transfer(matrix, [1e6, 100.0, 300.0]) == pytest.approx(by_hand)
    assert math.isnan(metrics.compute_forward_transfer([[3.0]], [9.0]))


def test_area_of_a_trapezoid():
    """Oracle: by hand; (10+6)/2 over 2 s and (6+2)/2 over 4 s, divided by 6 s."""
    assert metrics.compute_area_under_curve([1, 3, 7], [10, 6, 2]) == pytest.approx(
        (8 * 2 + 4 * 4) / 6
    )
    assert math.isnan(metrics.compute_area_under_curve([1], [10]))


@pytest.mark.parametrize(
    ("target", "charged"), [(8, 2.0), (6, 3.0), (11, 1.0), (3, 6.0), (1, NONE)]
)
def test_budget_to_reach(target, charged):
    """Oracle: by hand on straight lines between (1, 10), (3, 6) and (7, 2)."""
    assert metrics.find_budget_to_reach([1, 3, 7], [10, 6, 2], target) == pytest.approx(
        charged, nan_ok=True
    )


@pytest.mark.parametrize(("last", "charged"), [(4.0, 6.0), (9.0, NONE)])
def test_a_budget_is_reached_where_the_curve_stays_below(last, charged):
    """Oracle: by hand: a curve through (0, 2), (5, 8) and (7, 4) stays below 6 from a budget of 6
    on. A curve that ends above 6 never does.
    """
    assert metrics.find_budget_to_reach([0, 5, 7], [2, 8, last], 6) == pytest.approx(
        charged, nan_ok=True
    )
