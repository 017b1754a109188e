"""Tables and the card say how options were chosen. Oracle: what `run_all.py tune` records."""

import pytest

import paper_tables
from analysis.notes import tuned
from analysis.scorecard import scorecard
from analysis.study import Study
from benchmark.records import load_runs
from benchmark.run_description import TunedRecord
from benchmark.settings.config import Tuned
from tests.support import synthetic


@pytest.mark.parametrize("charged", [True, False])
def test_notes_say_how_options_were_chosen(tmp_path, charged):
    synthetic.write(tmp_path, "demo", seeds=1, rows=[("ER", "er", {}), ("MAS", "mas", {})])
    runs = load_runs(tmp_path, "demo")
    assert tuned(runs) == []
    assert "Options are the suite's own, not tuned." in scorecard(Study("demo", runs), paper_tables.catalogue()).notes
    way = TunedRecord(configurations=5, spent=60.0, unit="seconds", charged=charged)
    assert way == Tuned(**way).model_dump()
    runs[0].config["tuned"] = way
    place = "is part of" if charged else "comes on top of"
    assert tuned(runs) == [
        f"Options are tuned: the best of 5 configurations, whose search {place} the budget ({runs[0].row})."
    ]
    runs[1].config["tuned"] = way
    [note] = tuned(runs)
    assert note.endswith("the budget.")
    found = scorecard(Study("demo", runs), paper_tables.catalogue()).notes
    assert note in found and not any("not tuned" in text for text in found)
