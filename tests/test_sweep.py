"""How far a sweep is: what is said of states, and when a local sweep says it."""

from __future__ import annotations

import fcntl
import io
import os
import struct
import termios
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest

import methods
from benchmark import records
from benchmark.downstream.tasks import score_key
from benchmark.jobs.board import Board
from benchmark.jobs.state import RunState, Scored, StageState, Survey, read_scores
from benchmark.jobs.status import lines_of, seconds_left, spent, sweep_line, watch
from benchmark.settings.load import load_suite
from benchmark.settings.suite import Budget
from benchmark.store import Store
from run_all import main
from tests.support import tiny_suite

# four runs of two stages: the first is shared by Naive and ER
KEYS = {"Naive": ("m1", "n2"), "ER": ("m1", "e2"), "ELLE": ("g1", "g2"), "PNN": ("p1", "p2")}


def stage(ap: float, seconds: float) -> StageState:
    """A stage that is done."""
    return StageState(done=True, evaluated=True, seconds=seconds, ap=ap)


def states(**how: tuple[Any, float, list[StageState]]) -> list[RunState]:
    """Runs under a budget of 10 and 30 steps, by row: state, share of the stage in progress, finished stages."""
    domains = [{"name": "python", "packages": ["stdlib"]}, {"name": "scipy", "title": "SciPy", "packages": ["scipy"]}]
    changes = {"domains": domains, "tasks": [], "model.ladder": [{"layers": 1, "hidden_size": 32}] * 2}
    suite = load_suite("demo", {**changes, "budget.unit": "steps", "budget.amount": [10.0, 30.0]})
    runs = {run.row: run for run in methods.runs(suite)}
    return [
        RunState(runs[row], state, keys=KEYS[row], stages=tuple(finished), fraction=fraction)
        for row, (state, fraction, finished) in how.items()
    ]


def test_the_line_says_how_far_a_sweep_is() -> None:
    """Oracle: by hand. 40 + 30 + 40 steps, of which 40 + 15 + 0 are spent; a step took 2 s of Naive and 4 s of ER at
    the first stage, which is shared, so 2 s of any other; one run at a time."""
    one = stage(50.0, 20.0)
    two = stage(40.0, 60.0)
    found = states(Naive=("done", 0.0, [one, two]), ER=("running", 0.5, [one]), ELLE=("todo", 0.0, []))
    assert spent(found) == pytest.approx(55 / 110)
    assert seconds_left(found) == pytest.approx(15 * 2 + 40 * 2)
    assert sweep_line(found) == ("3 runs, 1 done, 1 running, 1 todo; 50% of the budget; about 1:50 left to train")
    slower = replace(two, seconds=120.0)
    found = states(
        Naive=("done", 0.0, [one, two]),
        PNN=("done", 0.0, [one, slower]),
        ELLE=("running", 0.0, [one]),
        ER=("running", 0.0, [one]),
    )
    # ELLE and ER are at 2 s a step each by their own first stage, two at a time
    assert seconds_left(found) == pytest.approx((30 * 2 + 30 * 2) / 2)


def test_a_score_of_other_settings_is_still_to_come(tmp_path) -> None:
    """Oracle: the score's own key, which holds the learning rate."""
    task = {"name": "toy", "domain": "python", "train": "a", "dev": "b", "test": "c", "learning_rate": 1e-3}
    suite, store = load_suite("demo", {"tasks": [task]}), Store(tmp_path)
    key = score_key("m1", suite.tasks[0], "data", suite.finetuning, "none", 0)
    of_model: Any = {
        "stage_key": "m1",
        "task": "toy",
        "task_key": "data",
        "domain": "python",
        "prompt": "none",
        "seed": 0,
    }
    values: Any = {"key": key, "metric": "accuracy", "dev": 0.5, "test": 0.5, "seconds": 1.0}
    records.append(store.scores_file("m1"), records.ScoreLine(**of_model, **values))
    other = load_suite("demo", {"tasks": [task | {"learning_rate": 2e-3}]})
    wanted = frozenset({("toy", "none", 0)})
    missing = [read_scores(store, asked, "m1", 0, wanted, evaluated=True).missing for asked in (suite, other)]
    assert missing == [0, 1]


def test_scores_are_counted_once_a_model() -> None:
    """Oracle: by hand: of a model that two runs share three of eight scores are there."""
    found = states(Naive=("done", 0.0, []), ER=("running", 0.5, []))
    some, later = Scored("n2", 1, 1, 3, 13.0), Scored("e2", 1, 4)
    found = [replace(found[0], scored=(some,)), replace(found[1], scored=(later, some))]
    assert "; 3 of 8 scores" in sweep_line(found)


def test_nothing_is_said_of_what_nobody_knows() -> None:
    """Oracle: by hand; a failed run has nothing left, and seconds of a budget are their own measure."""
    found = states(Naive=("todo", 0.0, []), ER=("failed", 0.0, []))
    assert seconds_left(found) is None
    assert sweep_line(found) == "2 runs, 1 todo, 1 failed; 0% of the budget"
    timed = [
        replace(one, config=one.config.model_copy(update={"budget": Budget(amount=(25.0, 15.0))})) for one in found
    ]
    assert seconds_left(timed[:1]) == 40.0


def test_amounts_of_different_units_are_never_added(tmp_path, capsys) -> None:
    """Oracle: by hand. Of 40 steps 10 are spent, of 40 s none: an eighth of four stages; a step took 2 s. A dry run
    names each amount in its own unit."""
    one = stage(50.0, 20.0)
    stepped, timed = states(Naive=("interrupted", 0.0, [one]), ELLE=("todo", 0.0, []))
    timed = replace(timed, config=timed.config.model_copy(update={"budget": Budget(amount=(25.0, 15.0))}))
    assert spent([stepped, timed]) == pytest.approx(1 / 8)
    assert seconds_left([stepped, timed]) == pytest.approx(30 * 2 + 40)
    untimed = replace(stepped, stages=())
    assert seconds_left([untimed, timed]) is None
    suite = tiny_suite.write(tmp_path)
    row = '[[rows]]\nmethod = "er"\n[rows.set]\n"budget.unit" = "seconds"\n"budget.amount" = 5.0\n'
    suite.write_text(suite.read_text().replace('["naive", "er"]', '["naive"]') + row)
    assert main(["run", str(suite), "--runs", str(tmp_path / "runs"), "--dry-run"]) == 0
    assert "To train: 2 of 2 runs, 12 steps and 10 s (0:10)\n" in capsys.readouterr().out


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def survey(tmp_path) -> Survey:
    """Two runs, of which the first has one finished stage."""
    suite = load_suite(str(tiny_suite.write(tmp_path)))
    survey = Survey(suite, methods.runs(suite), methods.build, Store(tmp_path / "runs"))
    stages = [(stage(12.3, 1.0),), ()]
    known = [RunState(run, "running", stages=done) for run, done in zip(survey.configs, stages, strict=True)]
    survey.states = lambda lately=False: known  # type: ignore[method-assign]
    return survey


def test_a_file_gets_a_line_where_something_ended(survey: Survey) -> None:
    """Oracle: by hand: lines as they come, how far the sweep is only where that has changed, and a table at the end."""
    out = io.StringIO()
    with Board(survey, out) as board:
        print("ER  stage 1/2  40%  0:09 left of the stage", file=board)
        print("ER  done: AP 12.3", file=board)
        print("a warning", file=board)
    first, *lines = out.getvalue().splitlines()
    assert first == "ER  stage 1/2  40%  0:09 left of the stage"
    assert lines[0] == "ER  done: AP 12.3" and "a warning" in lines
    assert sum("2 runs, 2 running; 25% of the budget" in line for line in lines) == 1
    assert [line.split()[0] for line in lines[-4:]] == ["tiny:", "run", "naive-s0", "er-s0"]


@pytest.mark.parametrize("terminal", [False, True])
def test_a_look_at_many_runs_leaves_nine_tenths_of_the_time_to_those_that_train(
    survey: Survey, terminal: bool, monkeypatch
) -> None:
    """Oracle: by hand: a look of 2 s is followed by 18 s without one, 180 lines of 0.1 s."""
    seconds, looks = 0.0, []
    monkeypatch.setattr("benchmark.jobs.board.time.monotonic", lambda: seconds)
    known = survey.states()

    def slow(lately: bool = False) -> list[RunState]:
        nonlocal seconds
        looks.append(round(seconds, 1))
        seconds += 2.0
        return known

    survey.states = slow  # type: ignore[method-assign]
    out = Terminal() if terminal else io.StringIO()
    with Board(survey, out) as board:
        for number in range(400):
            print(f"seed {number}  done", file=board)
            seconds += 0.1
    assert all(b - a == pytest.approx(20.0, abs=0.11) for a, b in pairwise(looks[:-1])) and len(looks) == 4
    assert all(f"seed {number}  done" in out.getvalue() for number in range(400))


def test_a_terminal_gets_a_table(survey: Survey) -> None:
    """Oracle: AP of the finished stage in the table, the line of the sweep below, and lines that end above both."""
    out = Terminal()
    with Board(survey, out) as board:
        assert board.isatty()
        board.write("\rER  stage 1/2  40%  0:09 left of the stage")
        board.write("ELLE  stage 1/2  60%  0:06 left of the stage\n")  # a whole line, as from a run beside others
        board.write("\rER  done: AP 12.3")
        board.write("\n")
    text = out.getvalue()
    assert "naive-s0" in text and "12.3" in text and "25% of the budget" in text
    assert text.count("ER  done: AP 12.3\n") == 1 and "left of the stage\n" not in text.replace("\r", "")


def test_watch_fits_its_screen() -> None:
    """Oracle: lines are counted and measured; how far the sweep is stands on top, and what runs is among the runs."""
    [waits, runs] = states(ER=("todo", 0.0, []), ELLE=("running", 0.4, []))
    runs = replace(runs, detail="stage 2 of 3: SciPy, adapt, 40%, 41,177 tokens/s")
    survey: Any = SimpleNamespace(suite=load_suite("demo"), jobs=[])
    lines = lines_of(survey, [waits] * 40 + [runs], (50, 12))
    assert len(lines) == 11 and max(map(len, lines)) <= 50 and lines[0].startswith("demo: ")
    assert [line.split()[:2] for line in lines if "running" in line][-1] == ["elle-s0", "running"]
    assert f"and {41 - len([line for line in lines if '-s0' in line])} runs more: " in "\n".join(lines)


def test_watch_draws_on_a_terminal_until_all_is_over(survey: Survey, monkeypatch) -> None:
    """Oracle: a terminal of the kernel's, 12 lines of 50 letters: it is emptied before each look, no line is wider, and
    the last look says what is next."""
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("4H", 12, 50, 0, 0))
    for name in ("COLUMNS", "LINES"):
        monkeypatch.delenv(name, raising=False)
    running = survey.states()
    over = [replace(one, state="done") for one in running]
    looks = [running, running, over]
    survey.states = lambda lately=False: looks.pop(0)  # type: ignore[method-assign]
    with open(theirs, "w") as terminal:
        monkeypatch.setattr("sys.stdout", terminal)
        monkeypatch.setattr("sys.__stdout__", terminal)
        assert watch(survey, lambda seconds: None) == 0
    told = "".join(iter(lambda: read_terminal(ours), "")).replace("\r\n", "\n")
    os.close(ours)
    before, *screens = told.split("\033[H\033[2J")
    assert before == "" and len(screens) == 3 and screens[0] == screens[1]
    assert all(len(line) <= 50 for screen in screens[:2] for line in screen.splitlines())
    assert "2 runs, 2 running" in screens[0] and "2 runs, 2 done" in screens[2]
    assert "next: `python run_all.py" in screens[2] and "next:" not in screens[0]


def read_terminal(ours: int) -> str:
    """What there is to read, "" where the other end is closed: the kernel hands it over in pieces, then EIO."""
    try:
        return os.read(ours, 2**16).decode()
    except OSError:
        return ""


def test_a_local_sweep_says_how_far_it_is(tmp_path, capsys) -> None:
    """Oracle: the suite: two runs of two stages, the first of which is shared; status says the same afterwards."""
    arguments = [str(tiny_suite.write(tmp_path)), "--runs", str(tmp_path / "runs"), "--out", str(tmp_path / "report")]
    assert main(["run", *arguments, "--parallel", "1"]) == 0
    lines = capsys.readouterr().err.splitlines()
    said = [line for line in lines if "of the budget" in line]
    *said, last = said
    assert [line.split()[1] for line in lines if line.startswith(("naive-s0", "er-s0"))] == ["done", "done"]
    assert [line.partition(";")[0] for line in said] == ["2 runs, 1 done, 1 todo", "2 runs, 2 done"]
    assert "67% of the budget" in said[0] and last == f"tiny: Tiny: {said[1]}"
    assert main(["status", *arguments[:-2]]) == 0
    assert last in capsys.readouterr().out
