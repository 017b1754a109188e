"""Where the time of a step goes: batches, forward and backward passes, the method's work, the optimizer, the loop."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

from benchmark.settings.schedules import schedule_of
from benchmark.settings.suite import Budget
from benchmark.settings.units import Work
from benchmark.training.optimization import LearningRate, Span, Spans
from benchmark.training.progress import Silent
from benchmark.training.stage import StageRun
from benchmark.training.step import Stepper

PARTS = ("batches", "forward", "backward", "method", "optimizer", "other", "loop")
OUTSIDE = "outside"  # where the clock starts and pauses: once an evaluation, and of no step
AHEAD = "ahead"  # the CPU time of making batches, most of it in a thread beside the step's


class Stopwatch:
    """Times functions that call each other: what one spends in another counts for that one alone."""

    def __init__(self, synchronize: Callable[[], None]) -> None:
        self.seconds = dict.fromkeys((*PARTS, OUTSIDE), 0.0)
        self._synchronize, self._running = synchronize, ["loop"]

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
    """The share of each of PARTS in the time of these steps, as a stage takes them, 0 to 1; together 1. And AHEAD.

    "batches" is the wait for them; on one core the thread that makes them ahead lengthens all parts, by AHEAD in all.
    "forward" is the loss, teachers included; a loss that forms its own gradient (`models/linear_cross_entropy.py`)
    does so there. "method" is what `adjust_gradients`, `after_step` and `observe` do beyond passes through the model,
    "other" what is left of a step, "loop" what the loop does around it: clock, learning rate, a look at the loss.
    """
    inputs, learner, method, loader = stepper.inputs, stepper.learner, stepper.method, stepper.loader
    watch = Stopwatch(inputs.world.synchronize)
    places = [
        ("other", stepper, "step"),
        ("batches", loader, "get"),
        ("backward", learner, "accumulate"),  # less the objective, which it calls
        ("forward", learner, "objective"),
        ("method", method, "adjust_gradients"),
        ("method", method, "observe"),
        ("method", method, "after_step"),
        ("optimizer", stepper, "update"),
    ]
    ahead, compute = [], loader.compute

    def computed(step: int) -> Any:
        began = time.thread_time()
        made = compute(step)
        ahead.append(time.thread_time() - began)
        return made

    without_end = inputs.config.model_copy(update={"budget": Budget(unit="steps", amount=1e9)})
    loop = StageRun(
        replace(inputs, config=without_end),
        Path(os.devnull),
        record=lambda *given, **named: None,
        asked_to_stop=lambda: False,
        progress=Silent(),
    )
    places += [(OUTSIDE, loop.clock, name) for name in ("start", "pause")]
    loop.position.step = steps.start
    rate, span = LearningRate(schedule_of("constant", 0.0), 0.0), Span(0.0, len(steps))
    with ExitStack() as patches:
        for part, owner, name in places:
            patches.enter_context(patch.object(owner, name, watch.timed(part, getattr(owner, name))))
        patches.enter_context(patch.object(loader, "compute", computed))
        watch.start()
        loop.take_steps(stepper, Work(1, loader.tokens), rate, Spans(span, span, span))
        watch.stop()
    whole = sum(watch.seconds[part] for part in PARTS)
    return {part: watch.seconds[part] / whole for part in PARTS} | {AHEAD: sum(ahead) / whole}
