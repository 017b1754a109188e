"""Equal tuning: what is tried, what is chosen, and runs with what was chosen."""

from __future__ import annotations

import csv
import itertools
import json
import math
import shlex
from pathlib import Path
from typing import Any

import pytest

import methods
from benchmark import records
from benchmark.jobs import tuning
from benchmark.settings.base import ConfigError
from benchmark.settings.load import load_suite
from benchmark.settings.suite import RunConfig, Tuned
from benchmark.training.keys import check_memory_shares
from tests.support.slurm_lab import Lab, write_texts

SHORT = ("--set", "budget.amount=[6, 6]", "--set", "training.evaluations=1", "--parallel", "1")
FEW = ("--configurations", "2", *SHORT)


def check(run: RunConfig) -> None:
    check_memory_shares(run, methods.build(run.method, run.options))


def spaces() -> dict[str, tuning.Space]:
    return {name: methods.find(name).space for name in methods.names()}


@pytest.fixture(scope="module")
def trials() -> tuple[tuning.Trial, ...]:
    """The trials of every method in the demo."""
    suite = load_suite("demo", {"methods": ["baselines", "controls"], "seeds": [3, 4]})
    return tuning.search(suite, methods.runs(suite), spaces(), 5, check).trials


@pytest.mark.parametrize("name", methods.names())
def test_a_space_is_of_options_that_there_are(name: str) -> None:
    """Oracle: the method's own validation of all that can be chosen."""
    space = methods.find(name).space
    for values in itertools.product(*space.values()):
        method = methods.build(name, dict(zip(space, values, strict=True)))
        assert all(getattr(method, option) == value for option, value in zip(space, values, strict=True))


def test_all_rows_get_as_many(trials: tuple[tuning.Trial, ...]) -> None:
    """Oracle: the rule: five different ones, the row's own first; the same sample when asked again; one seed."""
    by_row = {row: list(of_row) for row, of_row in itertools.groupby(trials, key=lambda trial: trial.row)}
    tunable = [name for name in methods.names() if methods.find(name).group != "references"]
    assert len(by_row) == len(tunable) and {len(of_row) for of_row in by_row.values()} == {5}
    for of_row in by_row.values():
        assert len({trial.run.id for trial in of_row}) == len({trial.run.row for trial in of_row}) == 5
        assert of_row[0].choice == {"rate": 1.0, "options": {}}
    assert {trial.run.seed for trial in trials} == {3} and {trial.run.suite for trial in trials} == {"demo-tune"}
    suite = load_suite("demo", {"methods": ["baselines", "controls"], "seeds": [3, 4]})
    assert tuning.search(suite, methods.runs(suite), spaces(), 5, check).trials == trials


def test_trials_see_two_domains(trials: tuple[tuning.Trial, ...]) -> None:
    """Oracle: the suite's first two, with their own rungs and settings; no tasks, no later text."""
    whole = methods.runs(load_suite("demo"))[0]
    for trial in trials:
        assert trial.run.domains == whole.domains[:2] and trial.run.model.ladder == whole.model.ladder[:2]
        amount = trial.run.budget.amount
        assert not isinstance(amount, tuple) or amount == whole.budget.amount[:2]
        assert not trial.run.tasks and not trial.run.probes


def test_a_configuration_that_cannot_be_trained_is_not_tried() -> None:
    """Oracle: worked out by hand: of a batch of four rows a tenth is none; with one rate that leaves three others."""
    suite = load_suite("demo", {"methods": ["er"], "options.er.replay": 0.25, "training.batch_size": 4})
    runs = methods.runs(suite)

    def only_at_the_own_rate(run: RunConfig) -> None:
        check(run)
        if run.training.learning_rate != runs[0].training.learning_rate:
            raise ConfigError("another rate")

    found = tuning.search(suite, runs, spaces(), 4, only_at_the_own_rate).trials
    assert sorted(trial.run.options["replay"] for trial in found) == [0.2, 0.25, 0.3, 0.5]
    with pytest.raises(ConfigError, match="row 'ER' has only 4 that can be trained"):
        tuning.search(suite, runs, spaces(), 5, only_at_the_own_rate)


def test_what_was_chosen_is_no_part_of_a_run_but_its_options_are() -> None:
    """Oracle: the identity of runs: where options came from changes no result."""
    run = methods.runs(load_suite("demo"), ("er",))[0]
    marked = run.model_copy(update={"tuned": Tuned(configurations=5, spent=9.0, unit="steps", charged=False)})
    assert marked.id == run.id
    assert "tuned" not in run.description()["config"]
    assert marked.description()["config"]["tuned"]["configurations"] == 5
    assert tuning.apply(run, {"rate": 0.5, "options": {}}).id != run.id


@pytest.fixture(scope="module")
def lab(tmp_path_factory) -> Lab:
    folder = tmp_path_factory.mktemp("tuning")
    write_texts(folder)
    return Lab(folder / "lab", folder).write('{ method = "naive" }', '{ method = "er" }')


@pytest.fixture(scope="module")
def chosen(lab: Lab) -> Path:
    assert lab.call("tune", *FEW) == 0
    return lab.folder / "report" / "tiny-tune" / "options.json"


def test_the_best_is_chosen(lab: Lab, chosen: Path) -> None:
    """Oracle: the paper's average perplexity, worked out from the records of the last stage."""
    content = json.loads(chosen.read_text())
    found: dict[str, list[float]] = {}
    for run in records.load_runs(lab.runs, "tiny-tune"):
        last = [line["perplexity"] for line in run.stages[-1] if line["kind"] == "evaluation"][-1]
        found.setdefault(run.row.rpartition(" ")[0], []).append(math.sqrt(last["wood"] * last["sea"]))
    for row, choice in content["rows"].items():
        assert [one["perplexity"] for one in choice["tried"]] == pytest.approx(found[row])
        assert choice["perplexity"] == pytest.approx(min(found[row])) and len(set(found[row])) == 2
    assert (content["configurations"], content["unit"], content["amounts"]) == (2, "steps", [6.0, 6.0])


def test_what_is_next_is_said_of_the_search(lab: Lab, chosen: Path, capsys: Any) -> None:
    """Oracle: by hand: `status` and `report` know no trial. The command for what was chosen is one that trains it; a
    failed trial is told with its reason, and one more `tune` chooses without it."""
    capsys.readouterr()
    assert lab.call("tune", *FEW, "--dry-run") == 0
    last = capsys.readouterr().out.splitlines()[-1]
    again = shlex.join([str(lab.file), "--runs", str(lab.runs), *SHORT[:-2], "--options", str(chosen)])
    assert last == f"next: `python run_all.py run {again}` trains with what it chose"
    content, file = chosen.read_bytes(), next((lab.runs / "suites" / "tiny-tune").glob("naive-1-*.jsonl"))
    lines = file.read_bytes()
    chosen.unlink()
    file.write_text("".join(line for line in file.read_text().splitlines(keepends=True) if '"done"' not in line))
    records.append(file, {"kind": "failed", "stage": 1, "error": "Error: why", "traceback": "", "rank": 0})
    assert lab.call("tune", *FEW, "--dry-run") == 0
    assert capsys.readouterr().out.endswith("next: the same command without --dry-run writes what it chose\n")
    assert lab.call("tune", *FEW) == 1
    said = capsys.readouterr().err
    assert "1 runs failed before and are left as they are: the first, naive-1-s0: Error: why; the same" in said
    file.write_bytes(lines)
    chosen.write_bytes(content)


def test_a_row_that_no_configuration_trains_is_named(
    trials: tuple[tuning.Trial, ...], tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    """Oracle: trials of which all of ER failed: nothing is written, and the row is named with the cure."""
    found = {True: None, False: 30.0}
    monkeypatch.setattr(tuning, "_judge", lambda one, _: {**one.choice, "perplexity": found[one.row == "ER"]})
    search = tuning.Search(load_suite("demo"), trials)
    search.write([], tmp_path, tmp_path)
    assert "no configuration of ER could be trained, so nothing is written" in capsys.readouterr().out
    assert not list(tmp_path.iterdir())
    found[True] = 40.0
    search.write([], tmp_path, tmp_path)
    assert len(list(tmp_path.rglob("options.json"))) == 1


def test_runs_take_what_was_chosen(lab: Lab, chosen: Path) -> None:
    """Oracle: the file; the default's runs and report stay as they are, beside it."""
    content = json.loads(chosen.read_text())
    assert lab.call("run", *SHORT, "--options", str(chosen)) == 0
    runs = records.load_runs(lab.runs, "tiny-tuned")
    assert [run.row for run in runs] == ["Naive", "ER"] and all(run.finished == 2 for run in runs)
    for run in runs:
        choice = content["rows"][run.row]
        rate = run.line["config"]["training"]["learning_rate"]
        assert rate == lab.config(run.row).training.learning_rate * choice["rate"]
        assert run.line["options"] == {**lab.config(run.row).options, **choice["options"]}
        assert run.line["config"]["tuned"] == {"configurations": 2, "spent": 24.0, "unit": "steps", "charged": False}
    assert list((lab.folder / "report").glob("budget.amount=*/tiny-tuned/main_pretraining.md"))
    assert not (lab.runs / "suites" / "tiny").exists()


def test_a_report_sets_tuned_runs_beside_the_others(lab: Lab, chosen: Path, capsys: Any) -> None:
    """Oracle: the average perplexities of the tuned runs' records; the own options' are missing, and a search that took
    more than the budget cannot be charged, which is said."""
    assert lab.call("run", *SHORT, "--options", str(chosen)) == 0
    assert lab.call("report", *SHORT[:-2], "--set", "paper=true") == 0
    assert "not beside the others: --charge-search: the search of" in capsys.readouterr().err
    [report] = (lab.folder / "report").glob("budget.amount=*paper=True*/tiny")
    with open(report / "tuning.csv", encoding="utf-8") as file:
        cells = {(line["Method"], line["group"], line["column"]): line["mean"] for line in csv.DictReader(file)}
    for run in records.load_runs(lab.runs, "tiny-tuned"):
        last = [line["perplexity"] for line in run.stages[-1] if line["kind"] == "evaluation"][-1]
        assert float(cells[run.row, "Tuned", "AP"]) == pytest.approx(math.sqrt(last["wood"] * last["sea"]), rel=1e-5)
        assert cells[run.row, "Own options", "AP"] == cells[run.row, "Tuned, search charged", "AP"] == ""
    card = (report / "scorecard.md").read_text()
    assert "not tuned; the table tuning has tuned ones beside them." in card
    assert "Options are tuned: the best of 2 configurations" in (report / "tuning.md").read_text()


def test_the_search_can_be_charged(lab: Lab, chosen: Path) -> None:
    """Oracle: the sum: 24 steps of a search and what is left of 240 make 240, in the proportion of the stages."""
    suite, runs = tuning.tuned(load_suite(str(lab.file)), lab.configs(), chosen, charge_search=True)
    assert suite.name == "tiny-tuned-charged"
    assert [run.budget.amount for run in runs] == [pytest.approx((40 * 0.9, 200 * 0.9))] * 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("tune", "--configurations", "6"), "--configurations 6: give 1 to 5"),
        (("tune", "--seeds", "3,1"), "--seeds 3,1: a search has one seed: choose one of them, as --seeds 3"),
        (("run", "--options", "nowhere.json"), "--options nowhere.json: not a file that `run_all.py tune` wrote"),
        (("run", "--options", "LIST"), "not a file that `run_all.py tune` wrote (TypeError"),
        (("run", "--options", "HALF"), "not a file that `run_all.py tune` wrote (KeyError: 'rate')"),
        (("run", "--charge-search"), "--charge-search: say which search"),
        (("run", *SHORT, "--charge-search", "--options", "CHOSEN"), "took 24 steps a row, of a budget of 12 steps"),
        (("run", "--set", 'methods=["mas"]', "--options", "CHOSEN"), "no row 'MAS'; it has Naive, ER"),
    ],
)
def test_mistakes_are_one_message(
    lab: Lab, chosen: Path, arguments: tuple[str, ...], message: str, capsys: Any
) -> None:
    files = {"CHOSEN": chosen, "LIST": lab.folder / "list.json", "HALF": lab.folder / "half.json"}
    files["LIST"].write_text("[]")
    files["HALF"].write_text('{"rows": {"ER": {}}, "configurations": 2, "amounts": [6.0], "unit": "steps"}')
    assert lab.call(*(str(files.get(word, word)) for word in arguments)) == 2
    assert message in capsys.readouterr().err
