"""The budget spent so far: the only place where training time is measured.

Charged: everything between `start` and `pause`, that is growth, data loading, forward, backward, optimizer, teachers,
importance and reference passes. Free, because the loop pauses: building the optimizer, compiling and warming up,
evaluation, checkpoints, progress lines.
"""

from __future__ import annotations

import time

from benchmark.settings.config import Budget, per_stage
from benchmark.training.processes import World


class Clock:
    """What one stage has spent, in every unit; `spent` is in the budget's own.

    Seconds are the slowest process's, and the same number on all of them, so that all stop after the same step.
    """

    def __init__(self, budget: Budget, stage: int, world: World) -> None:
        self.unit, self.limit = budget.unit, per_stage(budget.amount, stage)
        self.share = 1.0  # of the limit that the stage's phases take; one may take what earlier stages left
        self.seconds = 0.0
        self.steps = self.tokens = 0
        self.flops = self.reference = 0.0
        self._world = world
        self._pending = 0.0  # seconds that the processes have not agreed on yet
        self._started: float | None = None

    @property
    def spent(self) -> float:
        return float(getattr(self, self.unit))

    @property
    def fraction(self) -> float:
        return self.spent / (self.limit * self.share)

    def start(self) -> None:
        assert self._started is None, "the clock is running"
        self._world.synchronize()
        self._started = time.perf_counter()

    def pause(self) -> None:
        """Stop charging, after the device has finished what was charged."""
        self._world.synchronize()
        self._read()
        self._started = None

    def count_set_up(self, reference: float = 0.0) -> None:
        """Charge what a method did before the first step."""
        self.reference += reference
        self._agree()

    def count_step(self, tokens: int, flops: float = 0.0, reference: float = 0.0, alarm: int = 0) -> int:
        """Charge one step. Processes raise `alarm`s here, and all of them learn of the gravest."""
        self._read()
        self.steps += 1
        self.tokens += tokens
        self.flops += flops
        self.reference += reference
        return int(self._agree(alarm))

    def charged(self) -> dict[str, float]:
        return {name: getattr(self, name) for name in ("seconds", "steps", "tokens", "flops", "reference")}

    def restore(self, charged: dict[str, float]) -> None:
        for name, value in charged.items():
            setattr(self, name, value)

    def _agree(self, alarm: int = 0) -> float:
        slowest, gravest = self._world.maximum(self.seconds + self._pending, alarm)
        self.seconds, self._pending = slowest, 0.0
        return gravest

    def _read(self) -> None:
        assert self._started is not None, "the clock is paused"
        now = time.perf_counter()
        self._pending += now - self._started
        self._started = now
