"""Time in which the system let this process do nothing: stopped by a signal, for another job's turn, or frozen.

A thread looks at the clock twice a second. Where it could not for seconds, and the thread that trains has computed
nothing in them either, the process stood still. One that only has to share its cores is not meant: it does look, or
compute. That is what benchmark/training/contention.py measures.
"""

from __future__ import annotations

import functools
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from benchmark.training.contention import CoreTime, core_time

TICK = 0.5  # seconds between two looks
LEAST = 2.0  # seconds: shorter ones may be the system's own


@dataclass(frozen=True)
class ClockReading:
    """One look at the clocks."""

    time: float
    computed: float  # seconds, by the thread that trains


class Standstill:
    """Watches the thread that makes it. `read` reads the clocks, `cores` the core time.

    Each step looks at the clocks. The cores take fifty times as long: only a tick, and a stop, looks at them.
    """

    def __init__(self, read: Callable[[], ClockReading], cores: Callable[[], CoreTime]) -> None:
        self._read, self._read_cores = read, cores
        self._lost, self._lock, self._last = CoreTime(), threading.Lock(), read()
        self._cores, self._cores_at = cores(), self._last.time

    def lost(self, tick: bool = False) -> CoreTime:
        """What the clocks have counted so far while the process stood still."""
        with self._lock:
            last, now = self._last, self._read()
            self._last = now
            gap = now.time - last.time
            stood_still = gap > TICK + LEAST and now.computed - last.computed < TICK + gap / 10
            if stood_still or tick:
                before, self._cores = self._cores, self._read_cores()
                passed, self._cores_at = now.time - self._cores_at, now.time
            if stood_still:
                wall = gap - TICK  # it may have run for up to a tick before
                # by `time`: the stop may have come between the clocks of one reading
                share = wall / passed
                cpu, busy = self._cores.cpu - before.cpu, self._cores.busy - before.busy
                self._lost = CoreTime(
                    self._lost.wall + wall, self._lost.cpu + share * cpu, self._lost.busy + share * busy
                )
            return self._lost

    def watch(self) -> None:
        """Look again and again, in a thread of its own."""
        while True:
            time.sleep(TICK)
            self.lost(tick=True)


def standstill() -> Standstill:
    """The watch over the calling thread, which begins with the first call."""
    return _watch_over(os.getpid(), threading.get_ident())


@functools.cache
def _watch_over(process: int, thread: int) -> Standstill:
    if not hasattr(time, "pthread_getcpuclockid"):  # such systems, macOS among them, cannot tell: nothing is lost
        return Standstill(lambda: ClockReading(0.0, 0.0), CoreTime)
    clock = time.pthread_getcpuclockid(thread)
    watch = Standstill(lambda: ClockReading(time.monotonic(), time.clock_gettime(clock)), core_time)
    threading.Thread(target=watch.watch, name="standstill", daemon=True).start()
    return watch
