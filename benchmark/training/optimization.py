"""The optimizer and the learning rate, the same for every method."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from benchmark.settings.config import Training
from benchmark.settings.schedules import Schedule
from benchmark.training.learner import Elapsed


def new_optimizer(parameters: list[torch.nn.Parameter], training: Training) -> torch.optim.Optimizer:
    """Adam with decoupled weight decay on all parameters, as fairseq's Adam does it for the paper."""
    return torch.optim.AdamW(
        parameters,
        lr=0.0,
        betas=training.betas,
        eps=training.epsilon,
        weight_decay=training.weight_decay,
        fused=True,
    )


@dataclass(frozen=True)
class Span:
    """A part of the stream, in the budget's unit; both ends count from where the stage at hand begins."""

    begin: float
    end: float

    def share(self, spent: float, step_cost: float = 0.0) -> float:
        """The share that is over at the middle of a step that begins when `spent` is spent and costs `step_cost`."""
        length = max(self.end - self.begin, step_cost) or 1.0  # a budget may be shorter than a step
        return (spent + step_cost / 2 - self.begin) / length


@dataclass(frozen=True)
class Spans:
    """The parts of the stream that a step belongs to."""

    phase: Span
    stage: Span
    stream: Span

    def elapsed(self, spent: float, step_cost: float) -> Elapsed:
        """What is over of each at the middle of a step, see `Span.share`."""
        parts = (self.phase, self.stage, self.stream)
        return Elapsed(*(min(max(part.share(spent, step_cost), 0.0), 1.0) for part in parts))


@dataclass(frozen=True)
class LearningRate:
    """The learning rate in a phase."""

    schedule: Schedule
    peak: float

    def at(self, elapsed: Elapsed) -> float:
        """The rate of a step at whose middle so much is over."""
        return self.peak * self.schedule.at(getattr(elapsed, self.schedule.over))
