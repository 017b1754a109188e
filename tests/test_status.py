"""How far a sweep is: what `status` says of runs, rows and what to do next."""

from __future__ import annotations

import re
import time
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from msgspec import structs

import methods
from benchmark.downstream.tasks import make_score_key
from benchmark.jobs.executors import Job
from benchmark.jobs.state import RunState, Survey, read_scores
from benchmark.jobs.status import (
    _describe_run,
    describe_suite,
    describe_sweep,
    measure_progress,
    name_next_step,
    show,
)
from benchmark.ledger import records
from benchmark.ledger.ledger import name_further_seeds
from benchmark.ledger.runs import make_run_line
from benchmark.ledger.store import Store
from benchmark.ledger.texts import Texts
from benchmark.settings.load import load_suite
from benchmark.training.progress import Heartbeat
from tests.support import tiny_suite
from tests.support.run_states import make_ended_stage, make_view

# four runs of two stages: the first is shared by Naive and ER
KEYS = {"Naive": ("m1", "n2"), "ER": ("m1", "e2"), "ELLE": ("g1", "g2"), "PNN": ("p1", "p2")}


Stages = list[list[records.LineOfStage]]


def stage(seconds: float) -> list[records.LineOfStage]:
    """A stage that is done."""
    return make_ended_stage({"seconds": seconds})


def states(**how: tuple[Any, float, Stages]) -> list[RunState]:
    """Runs under a budget of 10 and 30 steps, by row: state, share of the stage in progress,
    finished stages.
    """
    domains = [
        {"name": "python", "packages": ["stdlib"]},
        {"name": "scipy", "title": "SciPy", "packages": ["scipy"]},
    ]
    changes = {
        "domains": domains,
        "tasks": [],
        "model.ladder": [{"layers": 1, "hidden_size": 32}] * 2,
    }
    suite = load_suite("demo", {**changes, "budget.unit": "steps", "budget.amount": [10.0, 30.0]})
    runs = {run.row: run for run in methods.list_runs(suite)}
    return [
        RunState(
            runs[row],
            make_view(runs[row], finished),
            state,
            planned=KEYS[row],
            fraction=fraction,
        )
        for row, (state, fraction, finished) in how.items()
    ]


def test_what_is_charged_is_in_the_budgets_unit() -> None:
    """Oracle: by hand: 10 and 30 steps, whatever seconds they took."""
    ended = [make_ended_stage({"steps": steps, "seconds": 99.0}) for steps in (10.0, 30.0)]
    assert "40 steps" in _describe_run(states(Naive=("done", 0.0, ended))[0])


def test_the_line_says_how_far_a_sweep_is() -> None:
    """Oracle: by hand. Five stages, of which two and a half are trained; a step took 2 s; one run
    at a time.
    """
    short = stage(20.0)
    two = stage(60.0)
    every = states(
        Naive=("done", 0.0, [short, two]), ER=("running", 0.5, [short]), ELLE=("todo", 0.0, [])
    )
    assert measure_progress(every) == pytest.approx((2.5 / 5, 15 * 2 + 40 * 2))
    assert re.match("3 runs, 1 done, 1 running, 1 todo; 50% .* 1:50 ", describe_sweep(every))
    slower = stage(120.0)
    every = states(
        Naive=("done", 0.0, [short, two]),
        PNN=("done", 0.0, [short, slower]),
        ELLE=("running", 0.0, [short]),
        ER=("running", 0.0, [short]),
    )
    # 30 steps each, two at a time, at the pace of five stages: three of 10 steps in 20 s, 30 in 60
    # s, and 30 in 120 s
    assert measure_progress(every)[1] == pytest.approx(
        (30 + 30) * (3 * 20 + 60 + 120) / (3 * 10 + 30 + 30) / 2
    )


def test_a_score_of_other_settings_is_still_to_come(tmp_path) -> None:
    """Oracle: a score's key contains the learning rate, so with another rate it is missing."""
    task = {
        "name": "toy",
        "domain": "python",
        "train": "a",
        "dev": "b",
        "test": "c",
        "learning_rate": 1e-3,
    }
    how = {"finetuning.protocols": ["finetune"]}
    suite, store = load_suite("demo", {"tasks": [task], **how}), Store(tmp_path)
    key = make_score_key("m1", suite.tasks[0], "data", suite.finetuning, "none", 0)
    of_model: Any = {
        "task": "toy",
        "task_key": "data",
        "domain": "python",
        "prompt": "none",
        "seed": 0,
    }
    values: Any = {"key": key, "metric": "accuracy", "dev": 0.5, "test": 0.5, "seconds": 1.0}
    records.append(store.scores_file("m1"), records.ScoreLine(**of_model, **values))
    other = load_suite("demo", {"tasks": [task | {"learning_rate": 2e-3}], **how})
    seeds = len(suite.finetuning.list_trials(suite.tasks[0]))
    missing = [read_scores(store, asked, "m1", 0, True, {}).missing for asked in (suite, other)]
    assert missing == [seeds - 1, seeds]


@pytest.fixture
def survey(tmp_path) -> Survey:
    """Two runs, of which the first has one finished stage."""
    suite = load_suite(str(tiny_suite.write(tmp_path)))
    survey = Survey(suite, methods.list_runs(suite), methods.build, Store(tmp_path / "runs"))
    views = [
        make_view(survey.configs[0], [stage(1.0)]),
        make_view(survey.configs[1]),
    ]
    known = [
        RunState(run, view, "running", planned=tuple(survey.plan_keys(run)))
        for run, view in zip(survey.configs, views, strict=True)
    ]
    survey.read_states, survey.examples = lambda: known, {}  # type: ignore[method-assign]
    return survey


def test_watch_says_what_is_under_way_until_all_is_over(
    survey: Survey, monkeypatch, capsys
) -> None:
    """Oracle: by hand: the running run twice, each time on a cleared screen, then all runs and the
    next command.
    """
    [begun, later], empty = survey.read_states(), "\033[H\033[2J"
    later = replace(later, state="todo")
    over = [replace(begun, state="done"), replace(later, state="done")]
    looks = [[begun, later], [begun, later], over, over]
    survey.read_states = lambda: looks.pop(0)  # type: ignore[method-assign]
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert show(survey, True, sleep=lambda seconds: None) == 0
    before, first, last = capsys.readouterr().out.split(empty)
    assert before == "" and last.startswith(first)
    assert (
        "1 running" in first
        and "naive-s0" in first
        and "er-s0" not in first
        and "next:" not in first
    )
    last = last.removeprefix(first)
    assert "2 done" in last and "naive-s0" not in last and "next: `python run_all.py" in last


def test_each_row_has_a_line_and_each_run_that_is_not_done(survey: Survey) -> None:
    """Oracle: by hand: of four runs of a row two are done, with a mean AP of 20, and two failed for
    the same reason, in one line. A run that never began has no line of its own.
    """
    [first, other] = survey.read_states()
    name = first.config.domains[0].name
    runs = []
    for ap in (15.0, 25.0):
        ended = make_ended_stage({"seconds": 1.0}, {name: ap})
        runs.append(replace(first, state="done", view=make_view(first.config, [ended])))
    untrained = make_view(first.config)
    runs += [replace(first, state="failed", detail="out of luck", view=untrained)] * 2
    runs += [replace(other, state="todo")]
    text = describe_suite(survey, runs)
    assert [line.split() for line in text[1:4]] == [
        ["row", "done", "failed", "todo", "ap"],
        ["Naive", "2", "2", "20.0"],
        ["ER", "1"],
    ]
    assert [re.split("  +", line) for line in text[4:]] == [
        ["run or job", "state", "charged"],
        [f"{first.config.label} and 1 more", "failed", "0 steps", "out of luck"],
    ]


@pytest.mark.parametrize(
    ("kinds", "does"),
    [
        (("done", "done"), "report"),
        (("done", "failed"), "--retry-failed` tries"),
        (("todo", "failed"), "with --retry-failed also"),
        (("interrupted", "done"), "` does the rest"),
    ],
)
def test_what_is_next_does_something(survey: Survey, kinds: tuple[Any, Any], does: str) -> None:
    """Oracle: the rule: `run` leaves out failed runs, unless --retry-failed asks for them."""
    runs = []
    for run, kind in zip(survey.read_states(), kinds, strict=True):
        run.view.texts = Texts(keys={"a": "key"})
        runs.append(replace(run, state=kind))
    assert does in name_next_step(survey, runs)


def test_seeds_that_are_not_shown_are_named(survey: Survey) -> None:
    """Oracle: by hand: seed 3 has ended runs of all rows. Seed 4 only began one, seed 5 has one
    with other options, and seed 0 is shown.
    """
    survey.store.root.mkdir()
    survey.store.archive_mark.touch()
    naive, er = survey.configs
    other = naive.model_copy(update={"options": {"x": 1}})
    for config, seed, kinds in (
        (naive, 3, 2),
        (er, 3, 2),
        (naive, 4, 1),
        (other, 5, 2),
        (er, 0, 2),
    ):
        run = config.model_copy(update={"seed": seed})
        line = structs.replace(make_run_line(run), stages=["key"])
        for each in (line, records.RunDone())[:kinds]:
            records.append(survey.store.run_file(run), each)
    [said] = name_further_seeds(survey.configs, survey.ledger)
    assert said.startswith("! ") and ": 3; --seeds " in said


@pytest.mark.parametrize(
    ("ahead", "expected"),
    [(0.0, ("running", 0.25)), (-3600.0, ("waiting", 0.0)), (60.0, ("waiting", 0.0))],
)
def test_only_a_heartbeat_of_now_is_a_sign_of_life(ahead: float, expected, survey: Survey) -> None:
    """One of two runs of a job has a heartbeat. Oracle: by hand: one of an hour ago is too old. One
    from a clock that is ahead does not count, or a dead run would look alive until that time.
    """
    run, store = survey.configs[1], survey.store
    now = time.time()
    beat = Heartbeat(0, 2, "x", "adapt", fraction=0.25, tokens_per_second=9.0, time=now + ahead)
    store.heartbeat_file(run).parent.mkdir(parents=True)
    store.heartbeat_file(run).write_bytes(msgspec.json.encode(beat))
    job = Job("7", "train", ("a", "b"), "running", "", submitted=now, log="")
    state = survey._read_unfinished(RunState(run, make_view(run), "todo", job=job))
    assert (state.state, state.fraction) == expected
