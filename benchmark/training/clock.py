"""The budget spent so far: the only place where training time is measured.

Charged: everything between `start` and `pause`, that is growth, data loading, forward, backward, optimizer, teachers,
importance passes and memory batches. Free, because the loop pauses: building the optimizer, compiling and warming up,
evaluation, checkpoints, progress lines. Free too: seconds in which the process was stopped.
"""

from __future__ import annotations

import time

from benchmark.settings.config import Budget, per_stage
from benchmark.settings.units import UNITS, Work
from benchmark.training.contention import CoreMeter
from benchmark.training.processes import World
from benchmark.training.standstill import standstill


class Clock:
    """What one stage has spent, in every unit; `spent` is in the budget's own.

    Seconds are the slowest process's, and the same number on all of them, so that all stop after the same step.
    """

    def __init__(self, budget: Budget, stage: int, world: World) -> None:
        self.unit, self.limit = UNITS[budget.unit], per_stage(budget.amount, stage)
        self.share = 1.0  # of the limit that the stage's phases take; one may take what earlier stages left
        self._charged: dict[str, float] = dict.fromkeys(UNITS, 0)
        self._world = world
        self._pending = 0.0  # seconds that the processes have not agreed on yet
        self._still = 0.0  # of these, in which this process was stopped
        self._least = 0.0  # seconds that are spent whatever a checkpoint says
        self._lost = standstill().lost
        self.cores = CoreMeter(self._lost)
        self._started: float | None = None

    @property
    def spent(self) -> float:
        return self._charged[self.unit.name]

    @property
    def fraction(self) -> float:
        return self.spent / (self.limit * self.share)

    @property
    def seconds(self) -> float:
        return self._charged["seconds"]

    def charged(self) -> dict[str, float]:
        """What is spent in each unit."""
        return dict(self._charged)

    def restore(self, charged: dict[str, float]) -> None:
        """Go on with what a checkpoint says; seconds that an attempt which failed since has spent stay spent."""
        self._charged |= charged
        self._charged["seconds"] = max(self.seconds, self._least)

    def begin_at(self, seconds: float) -> None:
        """Begin with what an attempt which failed had spent."""
        self._charged["seconds"] = self._least = seconds

    @property
    def seconds_here(self) -> float:
        """All seconds that are charged, with those that this process alone knows of: the others are not asked."""
        running = time.perf_counter() - self._started if self._started is not None else 0.0
        return self.seconds + self._pending + running

    def give_up(self) -> float:
        """Stop in the middle of whatever failed, and return all seconds that are charged."""
        if self._started is not None:
            self.pause()
        self.count(Work())
        return self.seconds

    def start(self) -> None:
        assert self._started is None, "the clock is running"
        self._world.synchronize()
        self.cores.start()
        self._started, self._lost_before = time.perf_counter(), self._lost().wall

    def pause(self) -> None:
        """Stop charging, after the device has finished what was charged."""
        self._world.synchronize()
        self._read()
        self._started = None
        self.cores.pause()

    def count(self, work: Work, alarm: int = 0) -> int:
        """Charge some work and the time that it took.

        All processes call this at once. They raise `alarm`s here, and each of them learns of the gravest.
        """
        if self._started is not None:
            self._read()
        # where one process is stopped, the others wait for it
        slowest, still, gravest = self._world.maximum(self.seconds + self._pending, self._still, alarm)
        for name, unit in UNITS.items():
            self._charged[name] = slowest - still if unit.cost is None else self._charged[name] + unit.cost(work)
        self._pending = self._still = 0.0
        return int(gravest)

    def _read(self) -> None:
        assert self._started is not None, "the clock is paused"
        now, lost = time.perf_counter(), self._lost().wall
        self._pending += now - self._started
        self._still += lost - self._lost_before
        self._started, self._lost_before = now, lost
