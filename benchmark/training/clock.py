"""The budget spent so far: the only place where training time is measured.

Charged: everything between `start` and `pause`, that is growth, data loading, forward, backward, optimizer, teachers,
importance passes and memory batches. Free, because the loop pauses: building the optimizer, compiling and warming up,
evaluation, checkpoints, progress lines. Free too: seconds in which the process was stopped.
"""

from __future__ import annotations

import functools
import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from benchmark.files import read_text
from benchmark.locks import Lock
from benchmark.record_lines import CoreShare
from benchmark.settings.suite import Budget, per_stage
from benchmark.settings.units import UNITS, Work
from benchmark.training.processes import World, node

_log = logging.getLogger(__name__)
STAT = Path("/proc/stat")  # where Linux counts what each core does
# where it counts how long the quota of a container held its processes back: cgroups of version 2 and 1
QUOTAS = {
    Path("/sys/fs/cgroup/cpu.stat"): ("throttled_usec", 1e-6),
    Path("/sys/fs/cgroup/cpu/cpu.stat"): ("throttled_time", 1e-9),
}
LOCK = Path("/tmp/lifelong-pretraining.lock")  # one place for all users, whatever their TMPDIR
MEASURABLE = 5.0  # seconds of a stage: the counters tick every 10 ms
JUMP = 1.0  # seconds: what the time of day is set by at once; less is slewed, or the system's own


@dataclass
class CoreTime:
    """Seconds while the clock ran, of one process on the cores that it may use."""

    wall: float = 0.0
    cpu: float = 0.0  # of all threads of this process
    busy: float = 0.0  # of all processes on these cores, added up over the cores, and what a quota kept from this one


@dataclass
class Running(CoreTime):
    """Core time in which the process was let run, wall seconds in which it was not, and jumps of the time of day."""

    stood_still: float = 0.0
    jumped: float = 0.0  # seconds by which the time of day was set, forth or back, or for which the machine slept


class CoreMeter:
    """Adds up the core time between `start` and `pause`. `lost` says what passed while the process stood still.

    A jump of the time of day is told and counted whenever it comes: a budget's seconds do not follow it, nor count what
    passes while the machine sleeps, but the times in records do.
    """

    def __init__(self, lost: Callable[[], CoreTime] = CoreTime) -> None:
        self.total, self._lost, self._ahead = Running(), lost, _time_of_day_ahead()

    def start(self) -> None:
        self._see_jumps()
        self._began, self._lost_before = core_time(), self._lost()

    def pause(self) -> None:
        now, lost = core_time(), self._lost()
        for name, before in asdict(self._began).items():
            missing = getattr(lost, name) - getattr(self._lost_before, name)
            setattr(self.total, name, getattr(self.total, name) + getattr(now, name) - before - missing)
        self.total.stood_still += lost.wall - self._lost_before.wall
        self._see_jumps()

    def _see_jumps(self) -> None:
        before, self._ahead = self._ahead, _time_of_day_ahead()
        if abs(jump := self._ahead - before) > JUMP:
            self.total.jumped += abs(jump)
            _log.warning("this machine slept, or its time of day was set: it jumped by %+.1f s; none is charged", jump)


@dataclass(frozen=True)
class CoreUse:
    """The core time of one process, and which cores it shares with whom."""

    machine: str
    cores: tuple[int, ...]
    threads: int
    time: Running


def contention(meter: CoreMeter, world: World) -> CoreShare:
    """Ask every process of the run, all of which must call this at once."""
    mine = CoreUse(node(), cores(), torch.get_num_threads(), meter.total)
    uses: list[CoreUse] = world.gather(mine)
    wall, cpu = max(use.time.wall for use in uses), sum(use.time.cpu for use in uses)
    still, jumped = max(use.time.stood_still for use in uses), max(use.time.jumped for use in uses)
    if wall < MEASURABLE or not STAT.exists():
        return CoreShare(wall=wall, cpu=cpu, others=None, share=None, stood_still=still, jumped=jumped)
    places = {(use.machine, use.cores) for use in uses}
    found = [others_and_share([use for use in uses if (use.machine, use.cores) == place]) for place in places]
    others, share = max(others for others, _ in found), min(share for _, share in found)
    return CoreShare(wall=wall, cpu=cpu, others=others, share=share, stood_still=still, jumped=jumped)


def others_and_share(uses: Sequence[CoreUse]) -> tuple[float, float]:
    """The cores that others kept busy, and the share of the wanted cores that they left, for processes on one set."""
    wall = max(use.time.wall for use in uses)
    available = len(uses[0].cores)
    wanted = min(available, sum(use.threads for use in uses))
    others = max(0.0, max(use.time.busy for use in uses) - sum(use.time.cpu for use in uses)) / wall
    return others, min(1.0, max(0.0, available - others) / wanted)


def cores() -> tuple[int, ...]:
    """The numbers of the cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))


def core_time() -> CoreTime:
    """What the clocks say now; only differences mean anything."""
    busy = _busy(cores()) + _held_back() if STAT.exists() else 0.0
    return CoreTime(time.perf_counter(), time.process_time(), busy)


def _time_of_day_ahead() -> float:
    """Seconds from the clock that budgets are charged by, which nobody sets and a machine's sleep stops, to the time of
    day; NTP slews both alike."""
    return time.time() - time.perf_counter()


def _busy(numbers: Sequence[int]) -> float:
    """Seconds that these cores have been busy since the machine started, stolen time included."""
    wanted, ticks = {f"cpu{number}" for number in numbers}, 0
    for line in read_text(STAT).splitlines():
        name, *fields = line.split()
        if name in wanted:
            user, nice, system, _idle, _waits, hard, soft, stolen = map(int, fields[:8])
            ticks += user + nice + system + hard + soft + stolen
    return ticks / os.sysconf("SC_CLK_TCK")


def _held_back() -> float:
    """Core-seconds that a CPU quota has kept from the processes of this container, since it started."""
    for file, (key, seconds) in QUOTAS.items():
        if file.exists():
            counters = dict(line.split() for line in read_text(file).splitlines())
            return int(counters.get(key, 0)) * seconds
    return 0.0


def machine_lock() -> Lock:
    """What a run holds that must not share this machine with others, whoever starts them."""
    return Lock(LOCK, mode=0o666)


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
