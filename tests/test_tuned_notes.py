"""Tables and the card say how options were chosen. Oracle: what `run_all.py tune` records."""

from typing import Any

import pytest

import paper_tables
from analysis.notes import tuned
from analysis.scorecard import scorecard
from analysis.study import Study
from benchmark.records import load_runs
from benchmark.run_description import TunedRecord
from benchmark.settings.suite import Tuned
from tests.support import synthetic


@pytest.mark.parametrize("charged", [True, False])
def test_notes_say_how_options_were_chosen(tmp_path, charged):
    synthetic.write(tmp_path, "demo", seeds=1, rows=[("ER", "er", {}), ("MAS", "mas", {})])
    runs = load_runs(tmp_path, "demo")
    assert tuned(runs) == []
    assert "Options are the suite's own, not tuned." in scorecard(Study("demo", runs), paper_tables.catalogue()).notes
    way = TunedRecord(configurations=5, spent=60.0, unit="seconds", charged=charged)
    assert way == Tuned(**way).model_dump()
    runs[0].line["config"]["tuned"] = way
    place = "is part of" if charged else "comes on top of"
    assert tuned(runs) == [
        f"Options are tuned: the best of 5 configurations, whose search {place} the budget ({runs[0].row})."
    ]
    runs[1].line["config"]["tuned"] = way
    [note] = tuned(runs)
    assert note.endswith("the budget.")
    found = scorecard(Study("demo", runs), paper_tables.catalogue()).notes
    assert note in found and not any("not tuned" in text for text in found)


def test_the_three_ways_stand_side_by_side(tmp_path):
    """Oracle: the AP and AP⁺ of each suite's own runs after the last domain; the best of a column, by hand."""
    ways = {"Own options": "demo", "Tuned": "demo-tuned", "Tuned, search charged": "demo-tuned-charged"}
    runs = {}
    for suite in ways.values():
        synthetic.write(tmp_path, suite, rows=[("ER", "er", {}), ("MAS", "mas", {})])
        runs[suite] = load_runs(tmp_path, suite)
        for run in runs[suite]:
            run.line["probes"] = [{"name": "wb", "title": "Wiki"}]
    own, *tuned_runs = runs.values()
    study = Study("demo", own, [run for one in tuned_runs for run in one])
    entry: Any = paper_tables.load("tuning")
    table = entry.build(study)
    [block] = table.blocks
    assert [row.stub for row in block.rows] == [("ER",), ("MAS",)], "tuned suites are no blocks of their own"
    for way, suite in ways.items():
        ends = Study(suite, runs[suite]).ends
        places = [place for place, column in enumerate(table.columns) if column.group == way]
        for row in block.rows:
            last = ends[(ends["row"] == row.stub[0]) & (ends["stage"] == 4)]
            assert [row.cells[place].values for place in places] == [tuple(last["ap"]), tuple(last["ap_plus"])]
        assert [row.cells[places[0]].best for row in block.rows] == [True, False], "MAS forgets more"
        assert any(note.startswith(f"{way}: Probe Wiki, perplexity after") for note in table.notes)
    assert not table.missing
    without = entry.build(Study("demo", own))
    assert without.missing == 8 and "`run SUITE --options FILE` tuned ones" in without.notes[-1]
