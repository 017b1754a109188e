"""Where the time of a step goes: batches, forward and backward passes, what the method adds, the optimizer."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

from benchmark.training.step import Stepper

PARTS = ("batches", "forward", "backward", "method", "optimizer", "other")


class Stopwatch:
    """Times functions that call each other: what one spends in another counts for that one alone."""

    def __init__(self, synchronize: Callable[[], None]) -> None:
        self.seconds = dict.fromkeys(PARTS, 0.0)
        self._synchronize, self._running = synchronize, ["other"]

    def timed(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*given: Any, **named: Any) -> Any:
            self._switch()
            self._running.append(part)
            try:
                return function(*given, **named)
            finally:
                self._switch()
                self._running.pop()

        return run

    def start(self) -> None:
        self._since = self._now()

    def stop(self) -> None:
        self._switch()

    def _switch(self) -> None:
        now = self._now()
        self.seconds[self._running[-1]] += now - self._since
        self._since = now

    def _now(self) -> float:
        self._synchronize()
        return time.perf_counter()


def shares(stepper: Stepper, steps: range) -> dict[str, float]:
    """The share of each of PARTS in the time of these steps, 0 to 1; together 1.

    "batches" is the wait for them, as they are made ahead. "forward" is the loss, teachers included; a loss that forms
    its own gradient (`models/linear_cross_entropy.py`) does so there. "method" is what `adjust_gradients`, `after_step`
    and `observe` do beyond passes through the model.
    """
    learner, method = stepper.learner, stepper.method
    watch = Stopwatch(stepper.inputs.world.synchronize)
    places = [
        ("batches", stepper.loader, "get"),
        ("backward", learner, "accumulate"),  # less the objective, which it calls
        ("forward", learner, "objective"),
        ("method", method, "adjust_gradients"),
        ("method", method, "observe"),
        ("method", method, "after_step"),
        ("optimizer", stepper, "update"),
    ]
    with ExitStack() as patches:
        for part, owner, name in places:
            patches.enter_context(patch.object(owner, name, watch.timed(part, getattr(owner, name))))
        watch.start()
        for step in steps:
            stepper.step(step)
        watch.stop()
    whole = sum(watch.seconds.values())
    return {part: seconds / whole for part, seconds in watch.seconds.items()}
