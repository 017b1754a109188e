"""Signals that ask to stop, noted until whoever works asks for them between two steps."""

from __future__ import annotations

import math
import signal
import time
from types import FrameType
from typing import Any

from benchmark.training.processes import Stopped


class StopSignals:
    """Notes signals that ask to stop, for work that asks between two steps; a second Ctrl-C insists.

    `at_once` raises Stopped instead, for work that never asks.
    """

    def __init__(self, *numbers: int, at_once: bool = False) -> None:
        self.came: list[int] = []
        self.before: dict[int, Any] = {}
        self._numbers, self._at_once, self._first = numbers, at_once, math.inf

    def __call__(self) -> bool:
        return bool(self.came)

    def seconds(self) -> float:
        """How long ago the first one came; less than 0 before that."""
        return time.monotonic() - self._first

    def __enter__(self) -> StopSignals:
        self.before = {number: signal.signal(number, self._note) for number in self._numbers}
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)

    def _note(self, number: int, _: FrameType | None) -> None:
        if number == signal.SIGINT and number in self.came:
            raise KeyboardInterrupt
        self._first = min(self._first, time.monotonic())
        self.came.append(number)
        if self._at_once:
            raise Stopped
