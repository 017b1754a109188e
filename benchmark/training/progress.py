"""One line a run: stage, phase, fraction of the budget, tokens/s, loss, time left."""

from __future__ import annotations

import os
import sys
import time
from multiprocessing import parent_process
from pathlib import Path
from typing import TextIO

import msgspec
from torch import Tensor

from benchmark.files import naming
from benchmark.settings.units import duration
from benchmark.store import Heartbeat
from benchmark.training.clock import Clock
from benchmark.training.method import Phase, Stage

IN_PROGRESS = "left of the stage"  # how a line ends that is soon replaced
HEARTBEAT = 10.0  # seconds, between two at most
LINE = 60.0  # likewise between two lines in a file


class ProgressLine:
    """Overwrites one line on a terminal, every half second; elsewhere prints a new one each minute.

    `heartbeat` is a file that always says the same in JSON, every ten seconds, for `status`.
    """

    def __init__(self, name: str, heartbeat: Path | None = None, out: TextIO | None = None) -> None:
        self.name, self.out, self._heartbeat = name, out or sys.stderr, heartbeat
        self._live = self.out.isatty() and not parent_process()  # else others write there, too
        self._next = 0.0
        self._next_line = 0.0
        self._width = 0

    def due(self) -> bool:
        return time.monotonic() >= self._next

    def show(self, stage: Stage, phase: Phase, clock: Clock, loss: Tensor) -> None:
        """`loss`: of the last step, all that the method adds included."""
        self._next = time.monotonic() + (0.5 if self._live else HEARTBEAT)
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
        """Show a text that is soon replaced; elsewhere than on a terminal one a minute."""
        if self._live or time.monotonic() >= self._next_line:
            self._next_line = time.monotonic() + LINE
            self._print(f"{self.name}  {text}")

    def finish(self, text: str) -> None:
        self._print(f"{self.name}  {text}")
        if self._live:
            self.out.write("\n")

    def _print(self, text: str) -> None:
        if self._live:
            self.out.write("\r" + text.ljust(self._width))
            self._width = len(text)
        else:
            self.out.write(text + "\n")
        self.out.flush()
