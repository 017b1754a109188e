"""The progress of a run: stage, phase, fraction of the budget, tokens/s, loss, time left.

No torch here.
"""

from __future__ import annotations

import math
import os
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from benchmark.files import name_in_errors
from benchmark.settings.units import format_duration
from benchmark.training.method import Phase, Stage

if TYPE_CHECKING:
    from torch import Tensor

    from benchmark.training.clock import Clock

HEARTBEAT_INTERVAL = 10.0  # seconds after which the next heartbeat is due
LINE_INTERVAL = 60.0  # seconds after which the next line is due
FORWARD_PASSES_PER_STEP = 3  # that take as long as a training step


class Heartbeat(msgspec.Struct):
    """The last progress of a run, in a file that other processes read."""

    stage: int
    stages: int
    domain: str
    phase: str
    fraction: float  # of the stage's budget, 0 to 1
    tokens_per_second: float
    time: float  # when this was written, in seconds since 1970
    left: float = 0.0  # estimated seconds until the end of the stage, with its evaluations
    loss: float | None = None  # of the last step, with all terms that the method adds

    def __str__(self) -> str:
        """The progress in words."""
        stage = f"stage {self.stage + 1} of {self.stages}: {self.domain}"
        speed = f"{self.tokens_per_second:,.0f} tokens/s"
        loss = "" if self.loss is None else f", loss {self.loss:,.3f}"
        rest = f", {format_duration(self.left)} left" if self.left else ""
        return f"{stage}, {self.phase}, {self.fraction:.0%}, {speed}{loss}{rest}"


def read_heartbeat(path: Path) -> Heartbeat | None:
    """The last progress of a run.

    None if it has written nothing, or if its machine went down and left half a file.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=Heartbeat)
    except (OSError, msgspec.DecodeError, ValueError):
        return None


class EvaluationTimes:
    """The times of a stage's evaluations, which its clock does not count.

    Future evaluations are assumed to take as long as past ones.
    """

    def __init__(self, count: int, tokens: int) -> None:
        self._count = count  # evaluations, evenly over the budget, the last one at its end
        self._tokens = tokens  # per evaluation
        self._seconds: list[float] = []

    @contextmanager
    def measure(self) -> Iterator[None]:
        began = time.monotonic()
        yield
        self._seconds.append(time.monotonic() - began)

    def estimate_rest(self, fraction: float, tokens_per_second: float) -> float:
        """Estimate the seconds of the evaluations that remain at a fraction of the budget.

        Before the first evaluation, training's tokens per second are the measure: a forward pass
        takes a third of a step.
        """
        rest = math.ceil(self._count * (1 - min(1.0, fraction)))
        if self._seconds:
            return rest * statistics.fmean(self._seconds)
        if tokens_per_second:
            return rest * self._tokens / (FORWARD_PASSES_PER_STEP * tokens_per_second)
        return 0.0


class ProgressLine:
    """Prints one line per minute.

    `heartbeat` is the file of the run's Heartbeat, written every ten seconds for `status`.
    """

    def __init__(self, name: str, heartbeat: Path | None = None) -> None:
        self.name = name
        self._heartbeat = heartbeat
        self._next_heartbeat = 0.0
        self._next_line = time.monotonic() + LINE_INTERVAL

    def is_due(self) -> bool:
        return time.monotonic() >= self._next_heartbeat

    def show(
        self, stage: Stage, phase: Phase, clock: Clock, loss: Tensor, evaluations: EvaluationTimes
    ) -> None:
        """Report the progress of a stage."""
        training_left = 0.0
        if clock.fraction:
            training_left = max(0.0, clock.seconds * (1 / clock.fraction - 1))
        evaluation_left = evaluations.estimate_rest(clock.fraction, clock.tokens_per_second)
        self._next_heartbeat = time.monotonic() + HEARTBEAT_INTERVAL
        heartbeat = Heartbeat(
            stage=stage.index,
            stages=stage.stream_info.stages,
            domain=stage.domains[stage.index],
            phase=phase.name,
            fraction=clock.fraction,
            tokens_per_second=clock.tokens_per_second,
            time=time.time(),
            left=training_left + evaluation_left,
            loss=loss.item() if phase.trains else None,
        )
        self.say_briefly(str(heartbeat))
        if self._heartbeat:
            part_file = self._heartbeat.with_suffix(".part")
            with name_in_errors(self._heartbeat):
                part_file.write_bytes(msgspec.json.encode(heartbeat))
                os.replace(part_file, self._heartbeat)

    def say_briefly(self, text: str) -> None:
        """Print a text that is soon outdated, at most once per minute."""
        if time.monotonic() >= self._next_line:
            self._next_line = time.monotonic() + LINE_INTERVAL
            self.say(text)

    def say(self, text: str) -> None:
        """Print a text immediately."""
        print(f"{self.name}  {text}", file=sys.stderr, flush=True)
