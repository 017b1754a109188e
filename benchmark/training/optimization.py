"""The optimizer and the learning rate, the same for every method."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from benchmark.settings.config import Training


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


def scheduled(schedule: str, done: float, warmup: float) -> float:
    """Share of the peak learning rate when the share `done` of a phase's budget is spent.

    Linear warm-up over the share `warmup`; then linear decay to 0 (the paper's BERT), inverse square root decay (its
    GPT: peak * sqrt(warmup / done)), or cosine decay to a tenth.
    """
    done = min(done, 1.0)
    if done < warmup:
        return done / warmup
    if schedule == "linear":
        return (1 - done) / (1 - warmup) if warmup < 1 else 1.0
    if schedule == "inverse_sqrt":
        return math.sqrt(warmup / done) if warmup else 1.0
    assert schedule == "cosine", schedule
    return 0.1 + 0.45 * (1 + math.cos(math.pi * (done - warmup) / (1 - warmup)))


@dataclass(frozen=True)
class LearningRate:
    """The learning rate in a phase that lasts from `begin` to `end` of what its stage spends."""

    schedule: str
    peak: float
    warmup: float  # share of the phase
    begin: float
    end: float

    def at(self, spent: float, step_cost: float) -> float:
        """The rate of a step that begins when `spent` is spent: that of its middle, if it costs `step_cost`."""
        length = max(self.end - self.begin, step_cost) or 1.0  # a budget may be shorter than a step
        return self.peak * scheduled(self.schedule, (spent + step_cost / 2 - self.begin) / length, self.warmup)
