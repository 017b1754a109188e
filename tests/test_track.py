"""Records as event files. Oracle throughout: the records, read back with TensorBoard's own library."""

from __future__ import annotations

import errno
import json
import sys
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from benchmark.errors import UserError
from benchmark.instruments.track import points, send_new, write_events
from benchmark.records import EvaluationLine
from benchmark.store import load_runs
from run_all import main
from tests.support import synthetic


def sent(folder: Path, name: str) -> list[tuple[int, float]]:
    """Steps and values of a scalar of a run, from all its event files."""
    found = EventAccumulator(str(folder), size_guidance={"scalars": 0}).Reload()
    return [(one.step, one.value) for one in found.Scalars(name)]


def test_tensorboard_has_what_records_have_and_goes_on(tmp_path) -> None:
    """A run that has stopped in its third stage, and then ended: each evaluation is there once."""
    runs, out = tmp_path / "runs", tmp_path / "out"
    row: list[tuple[str, str, dict[str, object]]] = [("ER", "er", {})]
    synthetic.write(runs, "demo", rows=row, seeds=1, finished=2, scores=False, similarities=False)
    said = f"0-0: 10 evaluations written to {out / 'demo' / '0-0'}"
    assert list(send_new("demo", runs, out)) == [said]
    assert not list(send_new("demo", runs, out))
    synthetic.write(runs, "demo", rows=row, seeds=1, scores=False, similarities=False)
    assert list(send_new("demo", runs, out)) == [said]
    (run,) = load_runs(runs, "demo")
    lines = [line for stage in run.stages for line in stage if isinstance(line, EvaluationLine)]
    expected = [line.perplexity["ns"] for line in lines]
    found = sent(out / "demo" / "0-0", "perplexity/ns")
    assert [value for _, value in found] == pytest.approx(expected)
    assert [step for step, _ in found] == [100 * stage + quarter for stage in range(5) for quarter in (25, 50, 75, 100)]
    assert [value for _, value in sent(out / "demo" / "0-0", "AP")][:4] == pytest.approx(
        [line.perplexity["wb"] for line in lines[:4]]
    )


def test_a_killed_call_sends_again_what_was_not_noted(tmp_path) -> None:
    """What is noted is noted once it is written."""
    synthetic.write(tmp_path / "runs", "demo", rows=[("ER", "er", {})], seeds=2, scores=False, similarities=False)
    first = send_new("demo", tmp_path / "runs", tmp_path / "out")
    assert next(first).startswith("0-0")
    del first
    noted = json.loads((tmp_path / "out" / "demo.json").read_text())
    assert noted == {"0-0": [4, 100]}
    (said,) = send_new("demo", tmp_path / "runs", tmp_path / "out")
    assert said.startswith("0-1: 20 evaluations written to ")


def test_the_command_says_what_it_did(tmp_path, capsys, monkeypatch) -> None:
    """Oracle: the numbers of evaluations; a package that is missing is one message."""
    synthetic.write(tmp_path / "runs", "demo", rows=[("ER", "er", {})], seeds=1, scores=False, similarities=False)
    places = ["--runs", str(tmp_path / "runs"), "--out", str(tmp_path / "out")]
    arguments = ["track", "demo", *places]
    assert main(arguments) == 0 and "0-0: 20 evaluations" in capsys.readouterr().out
    assert main(arguments) == 0 and "nothing new" in capsys.readouterr().out
    (run,) = load_runs(tmp_path / "runs", "demo")
    assert len(list(points(run))) == 20
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard.writer", None)
    with pytest.raises(UserError, match="pip install tensorboard"):
        write_events(tmp_path, [])


@pytest.mark.parametrize("call", ["add_scalar", "close"])
def test_a_full_disk_below_tensorboard_is_named(call: str, tmp_path, monkeypatch) -> None:
    """Oracle: the folder. The library's error names none, and the command took it for one of what it prints."""
    from torch.utils.tensorboard.writer import SummaryWriter

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(SummaryWriter, call, full)
    with pytest.raises(OSError, match="No space left") as told:
        write_events(tmp_path / "suite", [((0, 1.0), 1, 1.0, {"AP": 1.0})])
    assert told.value.filename == str(tmp_path / "suite")
