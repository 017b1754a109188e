"""What share of its cores a stage had while the clock ran, and a lock for runs that must not share a machine.

Wall times can only be compared when nothing else ran beside them, which is measured, and recorded with each stage.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from benchmark.files import read_text
from benchmark.locks import Lock
from benchmark.record_lines import CoreShare
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
