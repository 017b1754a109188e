"""Times in reports: which machine's they are, and whether rows are ranked by them."""

from __future__ import annotations

import math
from typing import Any

import pytest

from analysis.page import render_page
from analysis.study import Study
from benchmark.ledger.records import CoreShare, EvaluationLine, StageDone
from tests.support.synthetic import load, study

ROWS: list[tuple[str, str, dict[str, Any]]] = [
    (row, row.lower(), {}) for row in ("ER", "MAS", "EWC")
]


def forget_cores(data: Study, rows: set[str]) -> Study:
    """The study, in which the last stages of `rows` take four seconds, and the share of the cores
    that they had is unknown.
    """
    for run in data.runs:
        for line in run.stages[-1] if run.row in rows else ():
            if isinstance(line, EvaluationLine | StageDone):
                line.charged["seconds"] /= 15
            if isinstance(line, StageDone):
                line.cores = CoreShare(share=None)
    return Study(data.name, data.runs)


def test_nothing_is_ranked_by_time_where_the_share_of_the_cores_is_not_known(tmp_path) -> None:
    """Oracle: by hand: only MAS's share of the cores is known, because the others took too little
    time. So no row is ranked by time, and only MAS has a wall time. Other ranks stay. The note
    counts the four of six runs of other rows, and says from how many seconds on the share is known.
    """
    data = study(tmp_path, seeds=2, stages=2, unit="steps", rows=ROWS)
    before = load("units").build(data)
    after = load("units").build(forget_cores(data, {"ER", "EWC"}))
    ranks = [row.cells[1].text for row in before.blocks[0].rows]
    assert sorted(ranks) == ["1", "2", "3"]
    for old, new in zip(before.blocks[0].rows, after.blocks[0].rows, strict=True):
        assert bool(new.cells[0].values) == (new.label == "MAS") and not new.cells[1].text
        assert new.cells[2:] == old.cells[2:]
    [note] = [note for note in after.notes if "4 of 6 runs" in note]
    assert "less than 5 s" in note
    lifelong = load("lifelong_metrics").build(Study("demo", data.runs))
    [place] = [i for i, column in enumerate(lifelong.columns) if "seconds" in column.name]
    shown = {row.label for row in lifelong.blocks[0].rows if row.cells[place].number}
    assert shown == {"MAS"}


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
        for line in (line for stage in run.stages for line in stage):
            if isinstance(line, EvaluationLine | StageDone):
                line.charged.setdefault(unit, math.nan)
    for name in ("main_pretraining", "units", "lifelong_metrics"):
        told = [note for note in load(name).build(data).notes if note.startswith("Budgets are ")]
        assert [whose in note for note in told] == [True] * bool(whose)
    [group] = {
        column.group for column in load("units").build(data).columns if "(s)" in column.group
    }
    page = render_page(data, None, [])
    assert group.startswith("Measured ") and group in page.partition('id="made"')[2]
