"""Tables and the card say how options were chosen. Oracle: what a suite that `run_all.py tune` wrote records."""

import paper_tables
from analysis.notes import tuned
from analysis.scorecard import scorecard
from analysis.study import Study
from benchmark.settings.suite import Tuned
from benchmark.store import load_runs
from tests.support import synthetic


def test_notes_say_how_options_were_chosen(tmp_path):
    synthetic.write(tmp_path, "demo", seeds=1, rows=[("ER", "er", {}), ("MAS", "mas", {})])
    runs = load_runs(tmp_path, "demo")
    assert tuned(runs) == []
    assert "Options are the suite's own, not tuned." in scorecard(Study("demo", runs), paper_tables.load).notes
    way = {"configurations": 5, "spent": 60.0, "unit": "seconds"}
    assert way == Tuned(**way).model_dump()
    for run in runs:
        run.line.config["tuned"] = way
    [note] = tuned(runs)
    assert note == "Options are tuned: the best of 5 configurations, whose search comes on top of the budget."
    notes = scorecard(Study("demo", runs), paper_tables.load).notes
    assert note in notes and not any("not tuned" in text for text in notes)
