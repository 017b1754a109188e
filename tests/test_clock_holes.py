"""Ways to work off the clock, each as a small method. Either a check catches the work, or the clock
charges it.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import ClassVar

import pytest
import torch

from benchmark.instruments.conformance import TinyRuns, works_on_the_clock_alone
from benchmark.settings.suite import Budget
from benchmark.training.method import LifelongMethod, Phase
from benchmark.training.stream import Stream
from tests.support.record_lines import read_lines


class Watch:
    """A clock whose time passes only when a test moves it, to pretend that a method is slow."""

    now: ClassVar[float] = 100.0


def train(model: torch.nn.Module) -> None:
    """Work: stands for a training step."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(parameter @ parameter.T @ parameter if parameter.dim() == 2 else 0.01)


@dataclass
class WorksInPhases(LifelongMethod):
    def start_stage(self, model, stage):
        self.model = model
        return model

    def phases(self, stage):
        if hasattr(self, "model"):  # not when a plan asks
            train(self.model)
        return [Phase("adapt")]


@dataclass
class FetchesAhead(LifelongMethod):
    """Fetches the rows of later steps before the first step."""

    def start_stage(self, model, stage):
        self.ahead = [] if stage.first else [stage.memory_sequences(8) for _ in range(3)]
        return model

    def phases(self, stage):
        Watch.now += 1.0
        return [Phase("adapt")]

    def adjust_gradients(self, learner, memory):
        Watch.now += 1.0


@dataclass
class CostsMoreLater(LifelongMethod):
    state = ("steps",)
    steps: int = field(default=0, init=False)

    def loss(self, learner, batch):
        self.steps += 1
        if self.steps > 3:
            learner.model(batch.tokens, batch.domains, batch.positions)
        return super().loss(learner, batch)


@dataclass
class TrainsOnceMoreAtTheEnd(LifelongMethod):
    """Reads its memory again in the last steps of each later stage."""

    def start_stage(self, model, stage):
        self.memory = None if stage.first else stage.memory_sequences(8)
        return model

    def after_step(self, learner):
        if self.memory is not None and learner.elapsed.stage > 0.97:
            learner.model.encode(self.memory).sum().backward()


@dataclass
class WorksLateInItsFirstPhase(LifelongMethod):
    def phases(self, stage):
        return [Phase("begin", 0.25), Phase("adapt", 0.75)]

    def loss(self, learner, batch):
        if learner.elapsed.phase > 0.9 and learner.elapsed.stage < 0.5:
            learner.model(batch.tokens, batch.domains, batch.positions)
        return super().loss(learner, batch)


@dataclass
class WorksAsItIsBuilt(LifelongMethod):
    def __post_init__(self):
        torch.eye(4) @ torch.eye(4)


@dataclass
class WorksOnce(LifelongMethod):
    """Works in a stage's first step, which is taken before the clock runs."""

    def start_stage(self, model, stage):
        self.has_worked = False
        return model

    def adjust_gradients(self, learner, memory):
        if not self.has_worked:
            train(learner.model)
        self.has_worked = True


@pytest.mark.parametrize(
    ("cheat", "message"),
    [
        (WorksOnce, r"stage 0, phase adapt: the first step .* again"),
        (WorksInPhases, r"\bphases .* FLOPs"),
        (WorksAsItIsBuilt, r"\bbuilding .* FLOPs"),
        (CostsMoreLater, r"\bstep 3, .* FLOPs"),
        (TrainsOnceMoreAtTheEnd, r"stage 1, phase adapt: step 9, at 100% .* FLOPs"),
        (WorksLateInItsFirstPhase, r"stage 0, phase begin: step 9, at 25% .* FLOPs"),
    ],
)
def test_the_audit_catches_what_a_run_cannot_see(
    cheat: type[LifelongMethod], message: str, tiny_folder
) -> None:
    """By hand: each method breaks one rule of the clock, and the audit must name the place where it
    does.
    """
    with pytest.raises(AssertionError, match=message):
        works_on_the_clock_alone(TinyRuns("cheat", lambda name, options: cheat(), tiny_folder))


def charged(run, stage: int = 0) -> dict[str, float]:
    return read_lines(run.store.stage_file(run.keys[stage]))[-1]["charged"]


def test_the_clock_charges_what_is_fetched_ahead(tiny_folder, monkeypatch) -> None:
    """Oracle: by hand: of six seconds, fetching in the second stage takes three, `phases` one, and
    each step one. So the first stage has five steps, and the second has two.
    """

    def fetch(self, stage, rows, of=Stream.draw_memory_text):
        Watch.now += 1.0
        return of(self, stage, rows)

    monkeypatch.setattr(Stream, "draw_memory_text", fetch)
    for clock in ("perf_counter", "process_time"):
        monkeypatch.setattr(time, clock, lambda: Watch.now)
    tiny = TinyRuns("cheat", lambda name, options: FetchesAhead(), tiny_folder)
    run = tiny.make_run(
        tiny.make_config().model_copy(update={"budget": Budget(unit="seconds", amount=6.0)}), "run"
    )
    run.train(last_stage=1)
    assert [(charged(run, stage)["seconds"], charged(run, stage)["steps"]) for stage in (0, 1)] == [
        (6.0, 5),
        (6.0, 2),
    ]
