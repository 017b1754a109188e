"""Times in reports: which machine's they are, and whether rows are ranked by them."""

from __future__ import annotations

import math
from typing import Any

import pytest

from analysis.page import render_page
from analysis.study import Study
from benchmark.ledger.records import EvaluationLine, StageDone
from tests.support.synthetic import list_lines, load, study

ROWS: list[tuple[str, str, dict[str, Any]]] = [
    (row, row.lower(), {}) for row in ("ER", "MAS", "EWC")
]


def test_a_unit_that_a_row_did_not_record_is_empty(tmp_path) -> None:
    """Oracle: by hand: EWC did not record its tokens, so no row has a number by tokens. If EWC also
    has another text, it is not compared, and the others have their numbers.
    """
    data = study(tmp_path, seeds=2, stages=2, unit="steps", rows=ROWS)
    for run in data.runs:
        for line in run.stages[-1] if run.row == "EWC" else ():
            if isinstance(line, EvaluationLine | StageDone):
                line.charged["tokens"] = math.nan
    table = load("units").build(Study("demo", data.runs))
    assert not any(row.cells[4].values for row in table.blocks[0].rows)
    for run in data.runs:
        run.line.texts = {"wb": "other" if run.row == "EWC" else "0", "ns": "1"}
        run.line.unigram = {"wb": 300.0, "ns": 300.0}
    table = load("units").build(Study("demo", data.runs))
    shown = {row.label for row in table.blocks[0].rows if row.cells[4].values}
    assert shown == {"ER", "MAS"}


@pytest.mark.parametrize(
    ("unit", "whose"), [("reference", "seconds of the reference machine"), ("steps", "")]
)
def test_whose_seconds_a_budget_and_a_time_are(unit, whose, tmp_path) -> None:
    """Oracle: the unit's own description: a note below each table names budgets in seconds of the
    reference machine. Wall times in records are called measured, on the page, too.
    """
    data = study(tmp_path, seeds=1, stages=2, unit=unit, rows=ROWS)
    for run in data.runs:
        for line in list_lines(run, EvaluationLine, StageDone):
            line.charged.setdefault(unit, math.nan)
    for name in ("main_pretraining", "units", "lifelong_metrics"):
        told = [note for note in load(name).build(data).notes if note.startswith("Budgets are ")]
        assert [whose in note for note in told] == [True] * bool(whose)
    [group] = {
        column.group for column in load("units").build(data).columns if "(s)" in column.group
    }
    page = render_page(data, None, [])
    assert group.startswith("Measured ") and group in page.partition('id="made"')[2]
