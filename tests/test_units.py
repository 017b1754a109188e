"""Units of a budget: each is recorded under every budget, runs are ranked by each, and a new one
takes one entry.
"""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import matplotlib.figure
import pytest

import run_all
from analysis import figures
from analysis.page import render_page
from analysis.study import Study
from benchmark.instruments.conformance import TinyRuns
from benchmark.jobs.executors.slurm.settings import Slurm
from benchmark.ledger.records import CoreShare, EvaluationLine, StageDone
from benchmark.ledger.runs import RunRecords, load_runs
from benchmark.settings.base import ConfigError
from benchmark.settings.load import load_suite
from benchmark.settings.suite import Budget
from benchmark.settings.units import UNITS, Unit, list_recorded_units
from tests.examples.made_up_methods import Idles
from tests.support.source_tree import TREES
from tests.support.synthetic import list_lines, load, study
from tests.support.tiny_suite import write


def test_a_unit_is_added_in_one_place(tmp_path, monkeypatch, capsys):
    """Oracle: by hand: 40 of a made-up unit, rows, are four batches of ten. Suites, plans, clock,
    records, tables and figures know it without more code. An unknown unit is refused, with the
    known ones in the message.
    """
    suite, rows = write(tmp_path), ("--set", "budget.unit=rows", "--set", "budget.amount=40")
    with pytest.raises(ConfigError, match=r"budget\.unit: .*seconds, .*, reference .*'rows'"):
        load_suite(str(suite), {"budget.unit": "rows"})
    length = load_suite(str(suite)).data.text_length
    unit = Unit("rows", "Training rows", "rows of text", lambda work: work.tokens / length)
    monkeypatch.setitem(UNITS, "rows", unit)
    assert "exclusive" not in Slurm().list_parameters("train", ["rows"])
    drawn: list[matplotlib.figure.Figure] = []
    make_picture = figures.make_picture
    monkeypatch.setattr(
        figures, "make_picture", lambda figure: drawn.append(figure) or make_picture(figure)
    )
    folders = ("--runs", str(tmp_path / "runs"), "--out", str(tmp_path / "report"))

    def call(*options: str) -> str:
        assert run_all.main(["run", str(suite), *folders, *rows, *options]) == 0
        return capsys.readouterr().out

    assert "2 of 2 runs, 120 rows" in call("--dry-run")  # the first stage is shared
    call("--parallel", "1", "--set", 'tables=["trend_main", "units"]')
    assert {axis.get_xlabel() for axis in drawn[0].axes} == {"Training rows, linear"}
    table = tmp_path / "report" / "tiny" / "units.md"
    assert "Training rows" in table.read_text()
    for run in load_runs(tmp_path / "runs", "tiny"):
        charged = [line.charged for line in list_lines(run, StageDone)]
        assert [(spent["steps"], spent["rows"]) for spent in charged] == [(4, 40), (4, 40)]


def test_runs_are_ranked_by_every_unit(tmp_path):
    """Oracle: by hand: per step ER takes half of MAS's tokens and twice its FLOPs, so that they
    change places.
    """
    data = study(tmp_path, seeds=1, stages=2, rows=[("ER", "er", {}), ("MAS", "mas", {})])
    costs = {"ER": {"tokens": 1.0, "flops": 4.0}, "MAS": {"tokens": 2.0, "flops": 2.0}}
    for run in data.runs:
        for line in list_lines(run, EvaluationLine, StageDone):
            steps = line.charged["steps"]
            line.charged |= {"seconds": float(steps)} | {
                unit: c * steps for unit, c in costs[run.row].items()
            }
            if isinstance(
                line, EvaluationLine
            ):  # from 16 to 4 in 100 steps, with a logarithm that falls linearly
                line.perplexity = dict.fromkeys(line.perplexity, 16.0 * 0.25 ** (steps / 100))
    table = load("units").build(data)
    assert [column.group for column in table.columns[::2]] == [
        UNITS[unit].label for unit in list_recorded_units()
    ]
    er, mas = ([cell.mean for cell in row.cells[::2]] for row in table.blocks[0].rows)
    # seconds and steps allow all 100 steps. Tokens allow MAS half of them (100 tokens of 200), and
    # FLOPs allow ER half of them (200 of 400)
    assert er == pytest.approx([4.0, 4.0, 4.0, 8.0]) and mas == pytest.approx([4.0, 4.0, 8.0, 4.0])
    er, mas = ([cell.text for cell in row.cells[1::2]] for row in table.blocks[0].rows)
    assert er == ["1", "1", "1", "2"] and mas == ["1", "1", "2", "1"]


def last_stage(run: RunRecords) -> Any:  # its lines are not all of one type
    return run.stages[-1]


@pytest.mark.parametrize(
    ("share", "told"), [(0.19, "other programs took cores"), (None, "less than 5 s")]
)
def test_of_slowed_runs_no_table_tells_a_wall_time_and_one_row_that_is_left_has_no_rank(
    share, told, tmp_path
):
    """Oracle: by hand, under a budget of steps: two of three rows lacked cores, or took too little
    time to tell. The table leaves out their seconds, but not their tokens. The remaining row has no
    rank by seconds, other ranks stay, and the page does not say that all is well. Under a budget of
    seconds, tokens to ER's AP are left out, too.
    """
    data = study(
        tmp_path,
        seeds=2,
        stages=2,
        unit="steps",
        rows=[(row, row.lower(), {}) for row in ("ER", "MAS", "EWC")],
    )
    before = load("lifelong_metrics").build(data).blocks[0].rows
    ranked = load("units").build(data).blocks[0].rows
    for run in data.runs:
        for stage in run.stages:
            stage[-1].cores = CoreShare(share=1.0 if run.row == "MAS" else share)
    slowed = Study("demo", data.runs)
    table = load("lifelong_metrics").build(slowed)
    [seconds] = [
        i for i, column in enumerate(table.columns) if column.name.startswith("Measured seconds")
    ]
    for old, new in zip(before, table.blocks[0].rows, strict=True):
        assert bool(new.cells[seconds].number) == (new.label == "MAS"), new.label
        assert old.cells[seconds + 1].values == new.cells[seconds + 1].values
    [note] = [note for note in table.notes if "4 of 6 runs are left out" in note]
    assert told in note
    for run in data.runs:
        run.line.config["budget"]["unit"] = "seconds"
    timed = load("lifelong_metrics").build(Study("demo", data.runs))
    assert not any(row.cells[seconds + 1].number for row in timed.blocks[0].rows), (
        "ER, whose AP they reach, was slowed"
    )
    rows = load("units").build(slowed).blocks[0].rows
    assert [row.label for row in rows if row.cells[0].values] == ["MAS"]
    assert [row.cells[1].text for row in rows] == [""] * 3
    assert [row.cells[2:] for row in rows] == [row.cells[2:] for row in ranked]
    assert "All is well" not in render_page(slowed, None, [])


def test_a_short_stage_is_judged_by_the_other_stages_of_its_run(tmp_path: Path) -> None:
    """Oracle: by hand. Last stages are too short to tell whether other programs took cores. Before
    them, ER had its cores and MAS had not.
    """
    rows: list[tuple[str, str, dict[str, Any]]] = [("ER", "er", {}), ("MAS", "mas", {})]
    data = study(tmp_path, seeds=2, stages=3, unit="steps", rows=rows)
    for run in data.runs:
        second = 1.0 if run.row == "ER" else 0.5
        for stage, share in zip(run.stages, [1.0, second, None], strict=True):
            stage[-1].cores = CoreShare(share=share)
    judged = Study("demo", data.runs)
    cores = judged.finished.groupby("row")["cores"].unique().to_dict()
    assert {row: list(shares) for row, shares in cores.items()} == {"ER": [1.0], "MAS": [0.5]}
    notes = load("lifelong_metrics").build(judged).notes
    assert any("Of 4 runs the last stage took less than 5 s" in note for note in notes)
    assert any("2 of 4 runs are left out: other programs took cores" in note for note in notes)


def test_no_other_file_asks_for_a_unit_by_name() -> None:
    """Oracle: no file except the units' own compares anything with a unit's name."""
    asked = {
        (module, node.value)
        for module, tree in TREES.items()
        for question in ast.walk(tree)
        if isinstance(question, ast.Compare) and module != "benchmark.settings.units"
        for place in (question.left, *question.comparators)
        for node in getattr(place, "elts", [place])
        if isinstance(node, ast.Constant) and node.value in UNITS
    }
    assert not asked


def test_a_phase_that_costs_nothing_is_refused(tiny_folder) -> None:
    """Oracle: under a budget of FLOPs, a phase without FLOPs would never end."""
    tiny = TinyRuns("idles", lambda name, options: Idles(), tiny_folder)
    config = tiny.make_config().model_copy(update={"budget": Budget(unit="flops", amount=1e6)})
    with pytest.raises(ConfigError, match="phase 'idle' .*no flops"):
        tiny.make_run(config, "run").train(last_stage=0)
