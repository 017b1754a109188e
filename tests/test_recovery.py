"""Runs that fail and go on: weights that overflow, too little memory, stages that others take over,
past failures and unfinished heartbeats.
"""

from __future__ import annotations

import math
import traceback
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from benchmark import cancel
from benchmark.instruments.conformance import STEPS, TinyRuns
from benchmark.ledger.runs import load_runs
from benchmark.locks import NOBODY
from benchmark.models import LanguageModel
from benchmark.settings.base import ConfigError
from benchmark.settings.decides import describe
from benchmark.settings.suite import Training
from benchmark.training.method import LifelongMethod
from benchmark.training.progress import read_heartbeat
from benchmark.training.stage import NonFiniteLoss
from methods.naive import Naive
from tests.support.record_lines import last_line, read_lines


@dataclass
class Overflows(LifelongMethod):
    """Its gradients are not finite in the last step of the first stage."""

    state = ("calls",)
    calls: int = field(default=0, init=False)

    def adjust_gradients(self, learner, memory):
        self.calls += 1
        if self.calls == STEPS:
            for parameter in learner.parameters:
                parameter.grad.fill_(math.nan)


@dataclass
class Plain(LifelongMethod):
    """Nothing but the loop."""


@dataclass
class Hungry(LifelongMethod):
    """It runs out of memory with more than three rows: with four the machine's, else a device's.

    It notes the models of failed tries, and how many of them are in memory later.
    """

    failed: ClassVar[list[weakref.ref[LanguageModel]]] = []
    held: ClassVar[set[int]] = set()

    def loss(self, learner, batch):
        self.held.add(sum(model() is not None for model in self.failed))
        if len(batch.tokens) > 3:
            self.failed.append(weakref.ref(learner.model))
            raise torch.OutOfMemoryError("out of memory") if len(batch.tokens) > 4 else MemoryError
        return super().loss(learner, batch)


@dataclass
class TooLarge(LifelongMethod):
    """It runs out of memory with any number of rows."""

    def loss(self, learner, batch):
        raise MemoryError


@dataclass
class Strict(LifelongMethod):
    """Its loss asserts that torch uses only deterministic algorithms."""

    def loss(self, learner, batch):
        assert torch.are_deterministic_algorithms_enabled()
        return super().loss(learner, batch)


@dataclass
class Breaks(LifelongMethod):
    """It fails while the file exists."""

    file: str = ""

    def loss(self, learner, batch):
        if Path(self.file).exists():
            raise ValueError("broken")
        return super().loss(learner, batch)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of runs, whose text is tokenised once for all tests here."""
    return tmp_path_factory.mktemp("several")


def tiny_runs_of(method: type[LifelongMethod], folder: Path, **options: Any) -> TinyRuns:
    def build(name: str, _: Mapping[str, Any] | None = None) -> LifelongMethod:
        return method(**options)

    return TinyRuns("naive", build, folder)


def lines_of(run: Any, stage: int = 0) -> list[Any]:
    return read_lines(run.store.stage_file(run.keys[stage]))


def test_a_run_that_blew_up_is_not_done(folder: Path) -> None:
    """Oracle: steps at this rate leave finite weights, but a mean loss whose exponential is not
    finite.
    """
    tiny = tiny_runs_of(Naive, folder)
    run = tiny.make_run(tiny.make_config(learning_rate=100.0), "blown-up")
    with pytest.raises(NonFiniteLoss, match=r"perplexity of \w+ .*stage 0.*max_grad_norm"):
        run.train()
    assert not run.store.is_stage_done(run.keys[0])


def test_weights_that_the_last_step_spoils_are_not_kept(folder: Path) -> None:
    """Oracle: the loss of every step is finite, so only the weights show the failure. The stage is
    not done, and the checkpoint is of the step before.
    """
    tiny = tiny_runs_of(Overflows, folder)
    run = tiny.make_run(tiny.make_config(checkpoint_seconds=1e-9), "overflows")
    with pytest.raises(
        NonFiniteLoss, match=rf"weights .*stage 0 \(json\) .*step {STEPS}\b.*max_grad_norm"
    ):
        run.train()
    assert not run.store.is_stage_done(run.keys[0])
    saved = torch.load(run.store.stage_folder(run.keys[0]) / "checkpoint.pt", weights_only=True)
    assert saved["position"]["step"] == STEPS - 1
    assert all(tensor.isfinite().all() for tensor in saved["model"].values())


def test_a_run_goes_on_with_fewer_rows_where_memory_is_short(folder: Path) -> None:
    """Oracle: a run that is asked for 2 rows (8, halved twice) from the start has the same weights,
    bit for bit. A run of all rows at once has the same perplexities up to rounding. The record
    names the 2 rows. A failed try's model leaves the memory to the next.
    """
    tiny = tiny_runs_of(Hungry, folder)
    run = tiny.make_run(tiny.make_config(), "hungry")
    run.train(last_stage=0)
    assert lines_of(run)[-1]["micro_batch_size"] == 2
    assert len(Hungry.failed) > 1 and Hungry.held == {0}
    plain = tiny_runs_of(Plain, folder)
    asked = plain.make_run(plain.make_config(micro_batch_size=2), "asked")
    asked.train(last_stage=0)
    assert lines_of(asked)[-1]["weights"] == lines_of(run)[-1]["weights"]
    assert "micro_batch_size" not in lines_of(asked)[-1]
    whole = plain.make_run(plain.make_config(), "whole")
    whole.train(last_stage=0)
    assert run.keys == whole.keys
    both = [last_line(each.store.stage_file(each.keys[0]), "evaluation") for each in (run, whole)]
    perplexities, expected = (line["perplexity"] for line in both if line)
    assert perplexities == pytest.approx(expected, rel=1e-4)


def test_a_run_of_which_memory_holds_no_row_says_so(folder: Path) -> None:
    """Oracle: by hand: the error and the record name the cure. Python's own MemoryError has no
    message.
    """
    tiny = tiny_runs_of(TooLarge, folder)
    run = tiny.make_run(tiny.make_config(), "no-row")
    with pytest.raises(ConfigError, match=r"1 rows .*stage 0: .*smaller model"):
        run.train()
    failed = last_line(run.store.run_file(run.config), "failed")
    assert failed and "smaller model" in failed["error"]


def test_strict_algorithms_are_asked_for_and_are_another_stage(folder: Path) -> None:
    """Oracle: torch's own switch, during the loss and afterwards. A run without strict algorithms
    has the same key as before the setting existed. In this test both use the same algorithms, so
    weights agree.
    """
    assert (
        "deterministic" not in describe(Training(), "weights")
        and describe(Training(deterministic=True), "weights")["deterministic"]
    )
    tiny = tiny_runs_of(Strict, folder)
    run = tiny.make_run(tiny.make_config(deterministic=True), "strict")
    run.train(last_stage=0)
    assert not torch.are_deterministic_algorithms_enabled()
    plain = tiny_runs_of(Plain, folder)
    loose = plain.make_run(plain.make_config(), "whole")
    loose.train(last_stage=0)
    assert loose.keys[0] != run.keys[0] and loose.config.id != run.config.id
    assert lines_of(loose)[-1]["weights"] == lines_of(run)[-1]["weights"]


def test_a_stage_that_was_taken_over_is_left_and_gone_on_with(folder: Path) -> None:
    """Oracle: the weights of an undisturbed run. While another process has the stage, nothing is
    written.

    A process on another machine takes the stage after its first record, and gives it back when this
    run waits for it.
    """
    tiny = tiny_runs_of(Plain, folder)
    alone = tiny.make_run(tiny.make_config(), "whole")
    alone.train(last_stage=0)
    run = tiny.make_run(tiny.make_config(), "taken")
    stage = run.store.stage_folder(run.keys[0])
    known: list[int] = []  # numbers of records when it was taken, and when it was given back

    def asked_to_stop() -> bool:
        path = stage / "records.jsonl"
        lines = len(read_lines(path)) if path.exists() else 0
        last = max(int(lease.suffix[1:]) for lease in stage.glob("lock.*"))
        if lines and not known:
            (stage / f"lock.{last + 1}").write_text("another 1 1 machine")
            known.append(lines)
        elif "another" in (stage / f"lock.{last}").read_text() and waits():
            (stage / f"lock.{last}").write_text(NOBODY)
            known.append(lines)
        return False

    def waits() -> bool:
        return "acquire" in {frame.name for frame in traceback.extract_stack()}

    with cancel.heed(asked_to_stop):
        run.train(last_stage=0)
    assert known[0] == known[1] and not (stage / "checkpoint.pt").exists()
    assert lines_of(run)[-1]["weights"] == lines_of(alone)[-1]["weights"]


def test_a_failure_is_over_when_the_run_goes_on(folder: Path) -> None:
    """Oracle: the failure that `status` and tables read: after a stopped retry there is none."""
    tiny = tiny_runs_of(Breaks, folder, file=str(folder / "broken"))
    config = tiny.make_config()
    (folder / "broken").touch()
    with pytest.raises(ValueError, match="broken"):
        tiny.make_run(config, "breaks").train()
    [records] = load_runs(folder / "breaks", config.suite)
    assert records.failure and "broken" in records.failure.error
    (folder / "broken").unlink()
    calls = iter(range(100))
    with pytest.raises(cancel.Stopped), cancel.heed(lambda: next(calls) == 3):
        tiny.make_run(config, "breaks").train()
    [records] = load_runs(folder / "breaks", config.suite)
    assert records.failure is None
    run = tiny.make_run(config, "breaks")
    run.train(last_stage=0)
    [resumed] = [line for line in lines_of(run) if line["kind"] == "resumed"]
    assert resumed["charged"]["steps"] == 4


@pytest.mark.parametrize("content", ["", "7", "{}", None])
def test_an_unfinished_heartbeat_says_nothing(content: str | None, tmp_path: Path) -> None:
    """Oracle: a crash of the machine leaves an empty file or none. Neither is a heartbeat."""
    if content is not None:
        (tmp_path / "run.json").write_text(content)
    assert read_heartbeat(tmp_path / "run.json") is None
