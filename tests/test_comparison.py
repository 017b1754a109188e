"""Two folders of records side by side."""

from __future__ import annotations

import copy
import dataclasses
import math
import re
from pathlib import Path

import numpy as np
import pytest
import scipy.stats
from msgspec import structs

import methods
from analysis.comparison import (
    ComparisonError,
    Side,
    build_comparison,
    compare,
    describe_furthest_row,
    list_differences,
    select_one_trial,
)
from analysis.study import Study
from benchmark.ledger import archive
from benchmark.ledger.runs import load_runs
from benchmark.ledger.store import Store
from benchmark.settings.load import load_suite
from benchmark.training.declaration import open_ledger
from run_all import main
from tests.support import synthetic
from tests.support.record_lines import read_lines, write_lines
from tests.support.tiny_suite import write as write_suite

ROWS: list[tuple[str, str, dict[str, object]]] = [
    ("Naive", "naive", {}),
    ("ER", "er", {}),
    ("ELLE", "elle", {}),
]


@pytest.fixture
def sides(tmp_path) -> tuple[Path, Path]:
    """The same suite in two folders, A and B.

    In B all perplexities are a tenth larger, ER has another option, ELLE is missing, and torch and
    the CPU's instructions differ.
    """
    a, b = tmp_path / "a", tmp_path / "b"
    synthetic.write(a, "demo", rows=ROWS, seeds=3, scores=False)
    synthetic.write(
        b, "demo", rows=[ROWS[0], ("ER", "er", {"replay_ratio": 0.2})], seeds=3, scores=False
    )
    for path in (b / "stages").rglob("records.jsonl"):
        lines = read_lines(path)
        for line in lines:
            if line["kind"] == "stage":
                line["provenance"]["packages"]["torch"] = "2.14.0"
                line["provenance"]["hardware"]["instructions"] = "AVX2"
            if line["kind"] == "evaluation":
                line["perplexity"] = {
                    name: 1.1 * value for name, value in line["perplexity"].items()
                }
        write_lines(path, lines)
    return a, b


def test_changes_are_those_of_the_records(sides: tuple[Path, Path]) -> None:
    """Oracle: by hand: every perplexity of B is a tenth larger, so AP is, too. ER's intervals are
    scipy's, of the logarithm of AP and of AP⁺.
    """
    runs = [load_runs(side, "demo") for side in sides]
    table = build_comparison("demo", *runs)
    cells = {row.label: [cell.number for cell in row.cells] for row in table.blocks[0].rows}
    assert cells["Naive"][:2] == ["CS", "3"] and cells["Naive"][4] == "+10.0%"
    assert cells["ELLE"] == ["--"] * 10 and "ELLE: only in A." in table.notes
    ends = [
        Study("demo", side).ends.query("row == 'ER' and stage == 4").sort_values("seed")
        for side in runs
    ]
    changes = np.log(ends[1]["ap"].to_numpy() / ends[0]["ap"].to_numpy())
    low, high = scipy.stats.t.interval(0.95, 2, changes.mean(), scipy.stats.sem(changes))
    shown = " to ".join(
        f"{100 * math.expm1(change):+.1f}%".replace("-", "−") for change in (low, high)
    )
    assert cells["ER"][5] == shown
    more = ends[1]["ap_plus"].to_numpy() - ends[0]["ap_plus"].to_numpy()
    low, high = scipy.stats.t.interval(0.95, 2, more.mean(), scipy.stats.sem(more))
    mean, least, most = (f"{change:+.2f}".replace("-", "−") for change in (more.mean(), low, high))
    assert cells["ER"][8:] == [mean, f"{least} to {most}"] and len(table.columns) == 10


def test_a_setting_that_is_newer_than_a_record_has_its_default(tmp_path: Path) -> None:
    """Oracle: by hand. A was recorded before `max_grad_norm` and `source_field`. B has them at
    their defaults, then `max_grad_norm` at 1.0.
    """
    [config] = methods.list_runs(
        load_suite("demo", {"budget": {"unit": "steps", "amount": 100}}), ("naive",), [0]
    )
    synthetic.write_as(tmp_path, config, [f"stage{index}" for index in range(5)], finished=5)
    newer = load_runs(tmp_path, "demo")
    settings = newer[0].line.config
    older = load_runs(tmp_path, "demo")
    older_settings = copy.deepcopy(settings)
    del older_settings["training"]["max_grad_norm"]
    for domain in older_settings["domains"]:
        del domain["source_field"]
    older[0].line = structs.replace(older[0].line, config=older_settings)
    assert list(list_differences(older, newer)) == []
    settings["training"]["max_grad_norm"] = 1.0
    assert list(list_differences(older, newer)) == ["training.max_grad_norm: 1.0, was none"]
    newer[0].line = structs.replace(newer[0].line, options={"rate": 2.0})
    changes = list(list_differences(older, newer))
    assert changes[-1] == "options.naive.rate: 2.0, was none", "as --set has it"


def test_seeds_that_one_side_lacks_are_no_difference(tmp_path: Path) -> None:
    """Oracle: by hand: A has seeds 0 to 2, B has 0 and 1, then none of A's."""
    suite = load_suite("demo", {"budget": {"unit": "steps", "amount": 100}})
    for config in methods.list_runs(suite, ("naive",), [0, 1, 2]):
        stages = [f"{config.seed}{index}" for index in range(5)]
        synthetic.write_as(tmp_path, config, stages, finished=5)
    runs = load_runs(tmp_path, "demo")
    assert list(list_differences(runs, runs[:2])) == []
    assert list(list_differences(runs[:2], runs[2:])) == ["seed: 2, was 0"]


def test_rows_on_other_texts_are_not_compared(sides: tuple[Path, Path]) -> None:
    """Oracle: by hand: ER's text differs in B, so its numbers are shown without their change."""
    runs = [load_runs(side, "demo") for side in sides]
    for side, name in zip(runs, ("one", "other"), strict=True):
        for run in side:
            run.line.texts = {"wb": name if run.row == "ER" else "same"}
    table = build_comparison("demo", *runs)
    cells = {row.label: [cell.number for cell in row.cells] for row in table.blocks[0].rows}
    assert (
        cells["ER"][1] == "3"
        and all(cells["ER"][2:4])
        and cells["ER"][4:6] == ["", ""] == cells["ER"][8:]
    )
    assert re.match(r"demo: .* 10\.0% .*Naive\)$", describe_furthest_row("demo", *runs))
    assert cells["Naive"][4] == "+10.0%" and any(
        note.endswith("compared: ER.") for note in table.notes
    )


def test_why_nothing_is_compared_is_said(sides: tuple[Path, Path]) -> None:
    """Oracle: by hand: A has seeds 0 and 1, B has seed 2. Then both have seed 0, but B has ended no
    stage. ELLE is only in A, which has a note of its own.
    """
    reason = "Naive, ER: no stage of a seed has ended in both on the same domains."
    sentence = "demo: no AP of A and B can be compared"
    runs_a, runs_b = (load_runs(side, "demo") for side in sides)
    first = [run for run in runs_a if run.seed < 2]
    last = [run for run in runs_b if run.seed == 2]
    assert reason in build_comparison("demo", first, last).notes
    assert describe_furthest_row("demo", first, last) == sentence
    begun = [run for run in runs_b if run.seed == 0]
    for run in begun:
        run.stages = [[] for _ in run.stages]
    assert reason in build_comparison("demo", first, begun).notes
    assert describe_furthest_row("demo", first, begun) == sentence
    notes = build_comparison("demo", runs_a, runs_b).notes
    assert not any("in both" in note for note in notes)


def test_unfinished_runs_are_compared_on_the_same_domains(sides: tuple[Path, Path]) -> None:
    """Oracle: by hand: both sides ended two stages. In A these were WB and Ns. In B they were Ns
    and WB, or WB and Rev. AP is a mean over these, so the latter compares with A only after WB.
    """
    runs_a, runs_b = (load_runs(side, "demo") for side in sides)
    naive_a, naive_b = ([run for run in runs if run.row == "Naive"] for runs in (runs_a, runs_b))
    for run in (*naive_a, *naive_b):
        run.stages = [*run.stages[:2], [], [], []]
    orders = {"ns": [1, 0, 2, 3, 4], "rev": [0, 2, 1, 3, 4]}
    compared = {}
    for first, order in orders.items():
        reordered = []
        for run in naive_b:
            line = structs.replace(run.line, domains=[run.domains[index] for index in order])
            reordered.append(dataclasses.replace(run, line=line))
        [row] = build_comparison("demo", naive_a, reordered).blocks[0].rows
        compared[first] = [cell.number for cell in row.cells][:2]
    assert compared == {"ns": ["Ns", "3"], "rev": ["WB", "3"]}


def test_the_last_sentence_says_what_the_table_says(sides: tuple[Path, Path]) -> None:
    """Oracle: by hand: Naive is 1.1, 1.1 and 2.2 times as high in B, the geometric mean 1.386. ER
    is 1.1 times as high. If no row is in both, no sentence says that settings agree.
    """
    runs_a, runs_b = (load_runs(side, "demo") for side in sides)
    [last] = [run for run in runs_b if run.row == "Naive" and run.seed == 2]
    for key in last.line.stages:
        path = Store(sides[1]).stage_file(key)
        lines = read_lines(path)
        for line in lines:
            if line["kind"] == "evaluation":
                line["perplexity"] = {name: 2 * value for name, value in line["perplexity"].items()}
        write_lines(path, lines)
    runs_b = load_runs(sides[1], "demo")
    [row, *_] = build_comparison("demo", runs_a, runs_b).blocks[0].rows
    assert row.label == "Naive" and row.cells[4].number == "+38.6%"
    assert re.search(r" 38\.6% .*Naive\)$", describe_furthest_row("demo", runs_a, runs_b))
    er, elle = (
        Side(name, {"demo": [run for run in runs_a if run.row == name]}) for name in ("ER", "ELLE")
    )
    assert "agree" not in "".join(compare(er, elle))


def test_trials_of_a_row_are_never_mixed(sides: tuple[Path, Path]) -> None:
    """Oracle: by hand: runs of ER with two options in one folder are refused, also if each option
    has its own seeds. The message names the `--set` that chooses one, which selects the runs with
    that option. Two equal runs of one seed are refused, too, and so is a setting that no run has.
    """
    a, b = (load_runs(side, "demo") for side in sides)
    for number, run in enumerate(b):
        run.line = structs.replace(run.line, id=f"later-{number}", time=1.8e9)
    tried = [run for run in b if run.row == "ER"]
    for runs in ([*a, *tried], [*a[:5], *(run for run in (*a[5:], *tried) if run.seed == 2)]):
        both = Side("both", {"demo": runs})
        with pytest.raises(
            ComparisonError,
            match="both: .*'ER' of demo .*0.2, was none.*--set options.er.replay_ratio=VALUE",
        ):
            list(compare(both, Side("b", {"demo": b})))
    chosen = select_one_trial(both, "demo", {"options.er.replay_ratio": 0.2})
    assert [run for run in chosen if run.row == "ER"] == [
        run for run in b if run.row == "ER" and run.seed == 2
    ]
    other = dataclasses.replace(a[0], line=structs.replace(a[0].line, id="other"))
    with pytest.raises(ComparisonError, match=f"{a[0].row!r} of demo .*seed 0"):
        select_one_trial(Side("both", {"demo": [*a, other]}), "demo", {})
    with pytest.raises(ComparisonError, match=r"both: .*demo.* budget\.amount=7"):
        select_one_trial(both, "demo", {"budget.amount": 7})


def test_of_a_study_the_runs_in_it_are_compared(tmp_path, capsys) -> None:
    """By hand: the study's archive has only Naive's run, so Naive is compared, and ER is only in
    the folder.
    """
    suite = write_suite(tmp_path)
    suite.write_text('tables = ["main_pretraining"]\n' + suite.read_text())
    synthetic.write(
        tmp_path / "runs",
        "tiny",
        rows=ROWS[:2],
        seeds=1,
        stages=2,
        scores=False,
        similarities=False,
    )
    folder = tmp_path / "results" / "study"
    files = [path for path in (tmp_path / "runs").rglob("*") if path.is_file()]
    kept = {
        path.relative_to(tmp_path / "runs").as_posix(): path.read_bytes()
        for path in files
        if path.stem != "1-0"
    }
    (folder / "records").mkdir(parents=True)
    archive.write_archive(folder / "records" / "tiny-s0.tar.gz", kept)
    assert main(["compare", str(folder), str(tmp_path / "runs")]) == 0
    said = capsys.readouterr().out
    assert (
        re.search(r"Naive +Ns +1 ", said) and "ER: only in B." in said and "hardware agree." in said
    )


def test_folders_without_a_suite_in_both_are_refused(sides: tuple[Path, Path]) -> None:
    """By hand: one side has the suite demo and the other has no runs. The message must say both."""
    runs = {"demo": open_ledger(Store(sides[0]), methods.build).read_recorded("demo")}
    with pytest.raises(ComparisonError, match="x has demo; y has no"):
        list(compare(Side("x", runs), Side("y", {})))
