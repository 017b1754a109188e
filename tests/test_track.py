"""Records as event files. Oracle throughout: the records, read back with TensorBoard's library."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from benchmark.errors import UserError
from benchmark.instruments.track import list_points, write_events
from benchmark.ledger.records import EvaluationLine
from benchmark.ledger.runs import load_runs
from tests.support import synthetic


def written(folder: Path, name: str) -> list[tuple[int, float]]:
    """Steps and values of a scalar of a run, from all its event files."""
    events = EventAccumulator(str(folder), size_guidance={"scalars": 0}).Reload()
    return [(event.step, event.value) for event in events.Scalars(name)]


def test_tensorboard_has_what_records_have_and_goes_on(tmp_path) -> None:
    """A run stopped in its third stage, and was finished later: each evaluation is there once."""
    runs, out = tmp_path / "runs", tmp_path / "out" / "demo" / "0-0"
    row: list[tuple[str, str, dict[str, object]]] = [("ER", "er", {})]
    for finished, count in ((2, 10), (None, 20), (None, 20)):
        synthetic.write(
            runs, "demo", rows=row, seeds=1, scores=False, similarities=False, finished=finished
        )
        (run,) = load_runs(runs, "demo")
        write_events(out, [*list_points(run)])
        assert len(written(out, "AP")) == count
    lines = synthetic.list_lines(run, EvaluationLine)
    expected = [line.perplexity["ns"] for line in lines]
    values = written(out, "perplexity/ns")
    assert [value for _, value in values] == pytest.approx(expected)
    assert [step for step, _ in values] == [
        100 * stage + part for stage in range(5) for part in (25, 50, 75, 100)
    ]
    assert [value for _, value in written(out, "AP")][:4] == pytest.approx(
        [line.perplexity["wb"] for line in lines[:4]]
    )


def test_a_missing_package_is_named_with_the_cure(tmp_path, monkeypatch) -> None:
    """Oracle: the command that installs it."""
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard.writer", None)
    with pytest.raises(UserError, match="pip install tensorboard"):
        write_events(tmp_path, [])
