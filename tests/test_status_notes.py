"""What `status` tells beside the states of runs."""

from __future__ import annotations

import errno
import json
import shlex
import shutil
import time
from pathlib import Path

import pytest

from benchmark import records
from benchmark.locks import LeaseLost
from benchmark.store import Store
from tests.support import synthetic
from tests.support.job_lines import STARTED, ask, write_job
from tests.support.record_lines import read_lines
from tests.support.slurm_lab import Lab


@pytest.fixture
def lab(tmp_path, texts) -> Lab:
    return Lab(tmp_path, texts).write('{ method = "naive" }', '{ method = "er" }')


@pytest.mark.parametrize("unit", ["seconds", "steps"])
def test_short_memory_is_said(lab: Lab, unit: str, capsys) -> None:
    """Oracle: the records of two stages, of which one says how many rows its memory held."""
    lab.file.write_text(lab.file.read_text().replace('unit = "steps"', f'unit = "{unit}"'))
    config = lab.config("ER")
    synthetic.write_as(lab.runs, config, ["first", "second"], finished=2)
    path = Store(lab.runs).stage("second") / "records.jsonl"
    [*lines, done] = read_lines(path)
    path.write_text("".join(json.dumps(line) + "\n" for line in [*lines, {**done, "micro_batch_size": 2}]))
    assert lab.call("status") == 0
    [note] = [line for line in capsys.readouterr().out.splitlines() if "memory held" in line]
    domain = next(line["domain"] for line in lines if line["kind"] == "stage")
    assert note.startswith(f"! er-s0: in {domain} memory held 2 rows of a forward pass, fewer than were asked for")


@pytest.mark.parametrize(("stage", "ago", "word"), [(1, 5, ""), (1, 7200, "last known: "), (0, 5, None)])
def test_a_run_that_nobody_answers_for_is_as_far_as_it_last_said(
    lab: Lab, monkeypatch, capsys, stage: int, ago: float, word: str | None
) -> None:
    """Oracle: by hand: of two stages of 40 and 200 steps the first is done and half of the second, 140 of 240 steps or
    58%; a sign of life of a stage that is done by now says nothing of the next."""
    lab.write('{ method = "naive" }')
    config = lab.config("Naive")
    synthetic.write_as(lab.runs, config, ["first", "second"], finished=1)
    beat = {"stage": stage, "domain": "sea", "phase": "adapt", "fraction": 0.5, "seconds": 9.0}
    beat |= {"tokens_per_second": 70.0, "time": time.time() - ago}
    Store(lab.runs).heartbeat(config).write_text(json.dumps(beat))
    ask(monkeypatch, None)
    write_job(lab, "Naive", STARTED)
    assert lab.call("status") == 3
    first, _, line, *_ = capsys.readouterr().out.splitlines()
    assert f"1 unknown; {17 if word is None else 58}% of the budget" in first
    progress = f"; {word}stage 2 of 2: sea, adapt, 50%, 70 tokens/s"
    assert (progress if word is not None else "; 1 of 2 stages done") in line and "Slurm does not answer" in line


@pytest.mark.parametrize("place", ["Run.__init__", "Run._evaluate_start"])
def test_what_fails_before_a_first_stage_is_told_and_tried_again(lab: Lab, monkeypatch, capsys, place: str) -> None:
    """Oracle: as of what fails in a stage: the state, its reason, and the words for what tries it again."""

    def fails(*_: object, **__: object) -> None:
        raise MemoryError("no room")

    lab.write('{ method = "naive" }')
    lab.file.write_text(lab.file.read_text().replace("[40, 200]", "[2, 2]"))
    shutil.copytree(lab.texts / "prepared" / "runs" / "data", lab.runs / "data")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(f"benchmark.training.run.{place}", fails)
        assert lab.call("run") == 1
    said = capsys.readouterr().err
    [file] = (lab.runs / "suites" / "tiny").glob("naive-s0-*.jsonl")
    assert f"(tracebacks, if any, in {file})" in said and "no room" in file.read_text()
    assert lab.call("status") == 1
    told = capsys.readouterr().out
    assert "naive-s0  failed" in told and "MemoryError: no room" in told and "with --retry-failed" in told
    assert lab.call("run", "--retry-failed") == 0
    assert lab.states()["Naive"].state == "done"


def test_who_has_lost_text_to_another_process_says_nothing_of_the_run(lab: Lab, monkeypatch) -> None:
    """Oracle: as in a stage: the run may be the other's by now, and has not failed."""

    def loses(*_: object, **__: object) -> None:
        raise LeaseLost("silent for too long")

    lab.write('{ method = "naive" }')
    shutil.copytree(lab.texts / "prepared" / "runs" / "data", lab.runs / "data")
    monkeypatch.setattr("benchmark.training.run.Run.__init__", loses)
    assert lab.call("run") == 1
    assert lab.states()["Naive"].state == "todo"


def test_what_fails_before_a_first_stage_is_told_where_no_record_can_be_written(lab: Lab, monkeypatch, capsys) -> None:
    """Oracle: the failure's own words, in the line of the run; a full disk took their place, and the line."""

    def fails(*_: object, **__: object) -> None:
        raise MemoryError("no room")

    def full(path: Path, *_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    lab.write('{ method = "naive" }')
    shutil.copytree(lab.texts / "prepared" / "runs" / "data", lab.runs / "data")
    monkeypatch.setattr("benchmark.training.run.Run.__init__", fails)
    monkeypatch.setattr(records, "append", full)
    assert lab.call("run") == 1
    assert "failed: no room" in capsys.readouterr().err


def test_braces_on_the_command_line_are_text(lab: Lab, capsys) -> None:
    """Oracle: the words that were given, as a shell takes them, in the command that status names next."""
    given = '--set=title="{0} {x} {"', "--set=tasks=[{name='t', domain='sea', train='x', dev='x', test='x'}]"
    assert lab.call("status", *given) == 0
    [line] = [line for line in capsys.readouterr().out.splitlines() if line.startswith("next: ")]
    words = shlex.split(line.partition("`")[2].rpartition("`")[0])
    assert [f"--set={word}" for word in words if word.startswith(("title", "tasks"))] == list(given)
