"""Averages over streams in time: on periods before, at and after the one just learned."""

from __future__ import annotations

import math

import numpy as np
import pytest

from analysis import metrics
from analysis.study import Study
from benchmark.ledger.records import EvaluationLine, select_kind
from benchmark.ledger.runs import load_runs
from tests.support import synthetic

NAN = math.nan
# by hand: 2 x 4 x 8 = 4^3 below the diagonal, 3 x 9 x 27 = 9^3 on it, 5 x 5 x 40 = 10^3 above
MATRIX = ((3.0, 5.0, 5.0), (2.0, 9.0, 40.0), (4.0, 8.0, 27.0))


@pytest.mark.parametrize(
    ("matrix", "expected"),
    [
        (MATRIX, (4.0, 9.0, 10.0)),
        (((7.0,),), (NAN, 7.0, NAN)),
        (((3.0, NAN), (2.0, 27.0)), (2.0, 9.0, NAN)),
        (((3.0, math.inf), (2.0, 27.0)), (2.0, 9.0, math.inf)),
    ],
)
def test_averages_are_of_the_triangles_and_the_diagonal(matrix, expected):
    """Oracle: cube roots by hand. A single period has none before or after it. Without a
    measurement there is no average.
    """
    averages = metrics.average_over_time(matrix)
    assert tuple(averages.values()) == pytest.approx(expected, nan_ok=True)


def test_the_table_shows_them_of_each_finished_run(tmp_path):
    """Oracle: the averages of `MATRIX`, which is written into the records of two seeds of a row,
    doubled for the second. A row without its last stage has none.
    """
    synthetic.write(tmp_path, "demo", seeds=2)
    runs = [run for run in load_runs(tmp_path, "demo") if run.row in ("ER", "Naive")]
    for run in runs:
        run.line.domains = run.line.domains[:3]
        del run.stages[3:]
        names = [domain.name for domain in run.domains]
        for lines, perplexities in zip(run.stages, MATRIX, strict=True):
            for line in select_kind(lines, EvaluationLine):
                values = np.multiply(perplexities, 1 + run.seed).tolist()
                line.perplexity = dict(zip(names, values, strict=True))
    naive = [run for run in runs if run.row == "Naive"]
    for run in naive:
        del run.stages[2]
    table = synthetic.load("time_averages").build(Study("demo", runs))
    assert [column.name for column in table.columns] == ["Backward", "Same time", "Forward"]
    rows = {row.label: row.cells for row in table.blocks[0].rows}
    assert [cell.mean for cell in rows["ER"]] == pytest.approx([6.0, 13.5, 15.0])
    assert [cell.missing for cell in rows["Naive"]] == [True, True, True]
