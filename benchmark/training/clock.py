"""The budget spent so far: the only place that measures training time and counts FLOPs.

Charged: everything between `start` and `pause`, that is growth, data loading, forward, backward,
optimizer, teachers, importance passes and memory batches. Free, because the loop pauses: building
the optimizer, compiling and warming up, evaluation, checkpoints, progress lines. Free too: seconds
in which the process was stopped.

Wall times can only be compared if nothing else used the cores meanwhile. So the share of its cores
that a stage had is measured while the clock runs, and recorded.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmark.ledger.records import SECONDS_TO_MEASURE_CORES, CoreShare
from benchmark.settings.suite import Budget, pick_for_stage
from benchmark.settings.units import UNITS, Work
from benchmark.training.processes import World, find_machine_name, list_own_cores

STAT = Path("/proc/stat")  # where Linux counts what each core does
STOP = 2.0  # shortest stop, in seconds between two readings. The system itself causes shorter ones
# seconds between two readings of the cores, because one takes as long as fifty clock readings
CORE_READ_INTERVAL = 0.5


@dataclass
class CoreTime:
    """Seconds of one process on the cores that it may use, while the clock ran."""

    wall: float = 0.0
    cpu: float = 0.0  # of all threads of this process
    busy: float = 0.0  # of all processes on these cores, added up over the cores
    stood_still: float = 0.0  # in which the process was stopped, not part of `wall`


class Clock:
    """The costs of one stage so far, in every unit. `spent` is in the budget's unit.

    Seconds are those of the slowest process. All processes have this number, so that all stop after
    the same step.
    """

    def __init__(self, budget: Budget, stage: int, world: World) -> None:
        self.unit = UNITS[budget.unit]
        self.limit = pick_for_stage(budget.amount, stage)
        # sum of the phases' shares. It exceeds 1 if the stage spends what earlier stages left
        self.share = 1.0
        self.cores = CoreTime()
        self.charged: dict[str, float] = dict.fromkeys(UNITS, 0)  # by unit
        self._world = world
        self._pending = 0.0  # seconds that the processes have not agreed on yet
        self._still = 0.0  # the part of `_pending` in which this process was stopped
        self._read_at: float | None = None  # wall time of the last reading, None while paused
        # for other devices a process sleeps while it waits, so little CPU time is no sign of a stop
        self._waits_awake = world.device.type == "cpu" or (
            world.device.type == "cuda" and not torch.version.hip
        )

    @property
    def spent(self) -> float:
        return self.charged[self.unit.name]

    @property
    def fraction(self) -> float:
        return self.spent / (self.limit * self.share)

    @property
    def seconds(self) -> float:
        return self.charged["seconds"]

    @property
    def tokens_per_second(self) -> float:
        if self.seconds:
            return self.charged["tokens"] / self.seconds
        return 0.0

    def has_passed_mark(self, fraction: float, marks: int) -> bool:
        """Whether one of `marks` evenly spaced points lies between `fraction` and the current one.

        The stage's end does not count.
        """
        mark = int(self.fraction * marks + 1e-9)
        last_mark = int(fraction * marks + 1e-9)
        return mark > last_mark and self.fraction < 1 - 1e-9

    def start(self) -> None:
        assert self._read_at is None, "the clock is running"
        self._world.synchronize()
        self._cores_before = read_core_time()
        self._read_at = time.perf_counter()
        self._cpu_before = time.process_time()

    def pause(self) -> None:
        """Stop charging, after the device has finished the charged work."""
        self._world.synchronize()
        self._read(read_cores=True)
        self._read_at = None

    def count(self, work: Work, alarm: int = 0) -> int:
        """Charge some work, and the time that the clock ran since the last charge.

        All processes must call this together. Returns the largest `alarm` of all processes.
        """
        if self._read_at is not None:
            self._read()
        # the longest stop is free for all processes, because the others wait for the stopped one
        seconds = self.seconds + self._pending
        slowest, longest_stop, gravest = self._world.find_maximum(seconds, self._still, alarm)
        for name, unit in UNITS.items():
            if unit.cost is None:  # wall time, which no work determines
                self.charged[name] = slowest - longest_stop
            else:
                self.charged[name] += unit.cost(work)
        self._pending = 0.0
        self._still = 0.0
        return int(gravest)

    def _read(self, read_cores: bool = False) -> None:
        """Add the time since the last reading.

        More than STOP seconds count as a stop if the process computed in less than a tenth of them.
        """
        assert self._read_at is not None, "the clock is paused"
        now = time.perf_counter()
        cpu = time.process_time()
        duration = now - self._read_at
        computed_little = cpu - self._cpu_before < duration / 10
        was_stopped = self._waits_awake and duration > STOP and computed_little
        self._pending += duration
        self._still += duration if was_stopped else 0.0
        self._read_at = now
        self._cpu_before = cpu
        last_core_time = self._cores_before
        if read_cores or was_stopped or now - last_core_time.wall > CORE_READ_INTERVAL:
            reading = read_core_time()
            self._cores_before = reading
            if was_stopped:  # the core times since their last reading include the stop: drop them
                self.cores.stood_still += duration
            else:
                self.cores.wall += reading.wall - last_core_time.wall
                self.cores.cpu += reading.cpu - last_core_time.cpu
                self.cores.busy += reading.busy - last_core_time.busy


@dataclass(frozen=True)
class CoreUse:
    """The core time of one process, with its machine, its cores and its number of threads."""

    machine: str
    cores: tuple[int, ...]
    threads: int
    time: CoreTime


def measure_core_share(core_time: CoreTime, world: World) -> CoreShare:
    """The share of their cores that the run's processes had: the least over all sets of cores.

    It is None if the stage was too short to tell. All processes must call this together.
    """
    cores = tuple(list_own_cores())
    own_use = CoreUse(find_machine_name(), cores, torch.get_num_threads(), core_time)
    uses = world.gather(own_use)
    groups: dict[Any, list[CoreUse]] = {}
    for use in uses:
        place = (use.machine, use.cores)
        groups.setdefault(place, []).append(use)
    shares = [measure_share(group) for group in groups.values()]
    can_tell = max(use.time.wall for use in uses) >= SECONDS_TO_MEASURE_CORES
    pause = max(use.time.stood_still for use in uses)
    return CoreShare(share=min(shares) if can_tell else None, stood_still=pause)


def measure_share(uses: Sequence[CoreUse]) -> float:
    """Of the cores that processes can keep busy, the share that other programs left to them.

    All these processes run on one set of cores.
    """
    wall = max(use.time.wall for use in uses) or 1.0  # 0 if there was no step
    available = len(uses[0].cores)
    demand = min(available, sum(use.threads for use in uses))
    busy = max(use.time.busy for use in uses)  # each process measured the same cores
    cpu = sum(use.time.cpu for use in uses)
    foreign_cores = max(0.0, busy - cpu) / wall
    return min(1.0, max(0.0, available - foreign_cores) / demand)


def read_core_time() -> CoreTime:
    """The current readings of the clocks.

    Only differences between two readings mean anything.
    """
    wall = time.perf_counter()
    cpu = time.process_time()
    return CoreTime(wall, cpu, _read_busy_seconds(list_own_cores()))


def _read_busy_seconds(numbers: Sequence[int]) -> float:
    """Seconds that these cores have been busy since the machine started, stolen time included."""
    cores = {f"cpu{number}" for number in numbers}
    ticks = 0
    for line in STAT.read_text().splitlines():
        name, *fields = line.split()
        if name in cores:
            counts = [int(field) for field in fields[:8]]
            user, nice, system, _idle, _waits, hard, soft, stolen = counts
            ticks += user + nice + system + hard + soft + stolen
    return ticks / os.sysconf("SC_CLK_TCK")


# The floating-point operations of matrix products

_BACKENDS = ("flash_attention", "efficient_attention", "cudnn_attention", "flash_attention_for_cpu")


def count_flops(run: Callable[[], Any]) -> float:
    """The FLOPs of calling `run`.

    Nothing in it may be compiled: the counter sees operators, not kernels.
    """
    formulas: dict[Any, Any] = {}
    for backend in _BACKENDS:
        name = f"_scaled_dot_product_{backend}"
        formulas[getattr(torch.ops.aten, name)] = _count_attention
        formulas[getattr(torch.ops.aten, f"{name}_backward")] = _count_attention_backward
    counter = FlopCounterMode(display=False, custom_mapping=formulas)
    with counter:
        run()
    return float(counter.get_total_flops())


def _count_attention(
    query: torch.Size, key: torch.Size, value: torch.Size, *_: Any, **__: Any
) -> int:
    """The FLOPs of the attention scores and of their product with the values.

    Shapes (B, H, T, D / H).
    """
    rows, heads, length, size = query
    return 2 * rows * heads * length * key[2] * (size + value[3])


def _count_attention_backward(grad: torch.Size, *shapes: Any, **_: Any) -> int:
    return 2 * _count_attention(*shapes[:3])
