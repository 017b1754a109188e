"""One line a run: stage, phase, fraction of the budget, tokens/s, loss, time left."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import msgspec
from torch import Tensor

from benchmark.files import naming
from benchmark.settings.units import duration
from benchmark.store import WATCHED, Heartbeat
from benchmark.training.clock import Clock
from benchmark.training.method import Phase, Stage

IN_PROGRESS = "left of the stage"  # how a line ends that is soon replaced
HEARTBEAT = 10.0  # seconds, between two at most
SHOWN = 1.0  # likewise where a table on a terminal shows them
LINE = 60.0  # likewise between two lines


class ProgressLine:
    """Prints a line a minute, or nothing where a table shows the work under way.

    `heartbeat` is a file that always says the same in JSON, every ten seconds, for that table and for `status`.
    """

    def __init__(self, name: str, heartbeat: Path | None = None) -> None:
        self.name, self._heartbeat = name, heartbeat
        self._watched = WATCHED in os.environ
        self._next, self._next_line = 0.0, time.monotonic() + LINE

    def due(self) -> bool:
        return time.monotonic() >= self._next

    def show(self, stage: Stage, phase: Phase, clock: Clock, loss: Tensor) -> None:
        """`loss`: of the last step, all that the method adds included."""
        self._next = time.monotonic() + (SHOWN if self._watched else HEARTBEAT)
        rate, fraction = clock.tokens_per_second, clock.fraction
        left = max(0.0, clock.seconds * (1 - fraction) / fraction) if fraction else 0.0
        self.passing(
            f"stage {stage.index + 1}/{stage.outlook.stages} {stage.domains[stage.index]}  {phase.name}  "
            f"{fraction:4.0%}  {rate:,.0f} tokens/s  "
            + (f"loss {loss.item():,.3f}  " if phase.trains else "")
            + f"{duration(left)} {IN_PROGRESS}"
        )
        if self._heartbeat:
            heartbeat = Heartbeat(
                stage=stage.index,
                domain=stage.domains[stage.index],
                phase=phase.name,
                fraction=fraction,
                seconds=clock.seconds,
                tokens_per_second=rate,
                time=time.time(),
            )
            beside = self._heartbeat.with_suffix(".part")
            with naming(self._heartbeat):
                beside.write_bytes(msgspec.json.encode(heartbeat))
                os.replace(beside, self._heartbeat)

    def passing(self, text: str) -> None:
        """Print a text that is soon replaced, once a minute."""
        if time.monotonic() >= self._next_line:
            self._next_line = time.monotonic() + LINE
            self.finish(text, is_news=False)

    def finish(self, text: str, is_news: bool = True) -> None:
        """Print a text; where a table is shown only one that is news to who watches it."""
        if is_news or not self._watched:
            print(f"{self.name}  {text}", file=sys.stderr, flush=True)
