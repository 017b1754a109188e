"""The budget at which a curve reaches a target, and streams too short for a metric.

Tests of tables and claims compare the other metrics with their definitions.
"""

import math

import pytest

from analysis import metrics

NONE = float("nan")


def test_a_single_stage_has_no_earlier_one_to_compare_with():
    """By hand: without a second stage or evaluation, the metrics are NaN."""
    assert math.isnan(metrics.average_increase([3.0], [3.0], 0))
    assert math.isnan(metrics.compute_forward_transfer([[3.0]], [9.0]))
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
