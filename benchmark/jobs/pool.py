"""Run units of work side by side on one machine.

Each unit has a process of its own, on the cores or the GPU of a slot. The units are those of a wave
of a local sweep, or the runs that share a job of a cluster.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import wait
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Literal, get_args

from benchmark import cancel
from benchmark.cancel import Stopped, Taken
from benchmark.errors import UserError
from benchmark.interpreters import set_up_to_compute
from benchmark.jobs.work import Train, Unit, Worker
from benchmark.settings.base import ConfigError
from benchmark.settings.suite import RunConfig
from benchmark.settings.units import UNITS

if TYPE_CHECKING:
    from benchmark.training.processes import Sources

CONTEXT = multiprocessing.get_context("forkserver")
Outcome = Literal["done", "failed", "stopped", "taken"]
OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)  # the index is a process's exit status
PATIENCE = 0.5  # seconds until a signal is noticed
AGAIN = 10.0  # seconds until the next try of a unit that another process has
# bytes of memory that a process with a small model takes. For larger models, give --parallel
BYTES_PER_PROCESS = 2.0e9
TOPOLOGY = Path("/sys/devices/system/cpu")


@dataclass(frozen=True)
class Slot:
    """The cores and the GPU of one process.

    `gpu_share` is the part of the GPU's memory that the process may take, 0 to 1.
    """

    cores: tuple[int, ...]  # empty: not pinned to cores
    threads: int
    gpu: int | None = None  # its index among the GPUs that the parent process may use
    gpu_share: float = 1.0


def share_machine(runs: Sequence[RunConfig], parallel: int | None) -> list[Slot]:
    """Divide the machine into equal slots, at most one per run.

    `parallel` is the number of slots. If it is None, there is one slot under a budget of wall time,
    and otherwise as many as cores, GPUs and memory allow. Returns an empty list instead of a single
    slot: the runs then train one after the other. Raises ConfigError if, under a budget of wall
    time, `parallel` slots cannot each have physical cores and a GPU of their own.
    """
    from benchmark.devices import find_accelerators

    # a run that shares its cores trains less in the same wall time
    timed = any(UNITS[run.budget.unit].is_wall_time for run in runs)
    cores = list_physical_cores()
    _, gpus = find_accelerators()
    most_separate = min(len(cores), gpus or len(cores))
    if parallel is not None:
        count = parallel
    elif timed:
        count = 1
    else:
        count = min(most_separate, int(read_memory_size() / BYTES_PER_PROCESS))
    count = min(count, len(runs))
    if count <= 1:
        return []
    if timed and count > most_separate:
        raise ConfigError(
            f"--parallel {count}: under a budget in seconds each run needs physical cores, and "
            f"GPUs if there are some, of its own: this machine has them for {most_separate}: "
            f"give at most {most_separate}, or use another budget.unit"
        )
    return make_slots(count, cores, gpus)


def make_slots(count: int, cores: Sequence[tuple[int, ...]], gpus: int) -> list[Slot]:
    """Make `count` equal slots, and leave the remaining cores idle."""
    size = len(cores) // count
    gpu_share = 1.0
    if gpus:
        slots_of_gpu = -(-count // gpus)
        gpu_share = 1 / slots_of_gpu
    slots = []
    for number in range(count):
        groups = cores[number * size : (number + 1) * size]
        if not groups:  # more slots than cores: several share a core
            groups = [cores[number % len(cores)]]
        slot = Slot(
            cores=tuple(sorted(core for group in groups for core in group)),
            threads=max(1, size),
            gpu=number % gpus if gpus else None,
            gpu_share=gpu_share,
        )
        slots.append(slot)
    return slots


def share_job(count: int, core_count: int, is_alone: bool) -> list[Slot]:
    """Divide this process's GPUs and `core_count` cores (0: all) into `count` equal slots.

    Slots are pinned to cores, except if this process may use more than `core_count` cores and other
    jobs may be on the node (`is_alone` is false): they could be pinned to the same cores.
    """
    from benchmark.devices import find_accelerators

    cores = list_physical_cores()
    _, gpus = find_accelerators()
    slots = make_slots(count, cores, gpus)
    if core_count and sum(map(len, cores)) > core_count and not is_alone:
        threads = max(1, core_count // count)
        slots = [replace(slot, cores=(), threads=threads) for slot in slots]
    return slots


def list_physical_cores() -> list[tuple[int, ...]]:
    """The logical cores that this process may use, grouped by physical core."""
    groups: dict[str, list[int]] = {}
    for core in sorted(os.sched_getaffinity(0)):
        path = TOPOLOGY / f"cpu{core}" / "topology" / "thread_siblings_list"
        siblings = str(core)
        if path.exists():
            siblings = path.read_text()
        groups.setdefault(siblings, []).append(core)
    return [tuple(group) for group in groups.values()]


def read_memory_size() -> int:
    """The bytes of this machine's memory."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


class StopSignals(contextlib.ExitStack):
    """Notes signals that ask to stop, for work that checks for them between two steps.

    A second Ctrl-C raises KeyboardInterrupt. With `at_once`, a signal raises Stopped immediately,
    for work that never checks.
    """

    def __init__(self, *numbers: int, at_once: bool = False) -> None:
        super().__init__()
        self.came: list[int] = []
        self._numbers = numbers
        self.at_once = at_once

    def has_come(self) -> bool:
        return bool(self.came)

    def __enter__(self) -> StopSignals:
        self.enter_context(cancel.heed(self.has_come))
        for number in self._numbers:
            previous = signal.signal(number, self._note)
            self.callback(signal.signal, number, previous)  # at the end of the block
        return self

    def _note(self, number: int, _: FrameType | None) -> None:
        if number == signal.SIGINT and number in self.came:
            raise KeyboardInterrupt
        self.came.append(number)
        if self.at_once:
            raise Stopped


@contextlib.contextmanager
def hold_signals() -> Iterator[None]:
    """Delay SIGINT and SIGTERM to the end of the block, where they raise KeyboardInterrupt.

    Programs that the block starts do not receive them at all.
    """
    with StopSignals(signal.SIGINT, signal.SIGTERM) as signals:
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    if signals.has_come():
        raise KeyboardInterrupt


def work_through(
    units: Sequence[Unit],
    slots: Sequence[Slot],
    when_idle: Callable[[Sequence[Unit]], None] = lambda units: None,
) -> list[Unit]:
    """Do units in slots, one at a time in each, and go on if a unit fails.

    The last units begin first: they have most stages left, and none of them should be alone at the
    end while cores are idle. A unit that another process has is tried again after ten seconds, at
    the end of the queue. While only such units are left and none runs here, `when_idle` is called
    with them. Returns the units that failed. Raises Stopped, after checkpoints, if this process or
    the process of a unit was asked to stop. Raises what `when_idle` raises.
    """
    from benchmark.training.processes import Sources, start_fork_server

    queue = [*units][::-1]
    retry_times: dict[str, float] = {}  # by id: when to try a unit again that another has
    failed: list[Unit] = []
    is_stopping = False
    free = list(slots)
    busy: dict[int, tuple[Unit, Slot, ForkServerProcess]] = {}  # by sentinel
    sources = Sources.read()
    start_fork_server()
    try:
        while busy or (queue and not is_stopping):
            if not busy and all(unit.id in retry_times for unit in queue):
                when_idle(queue)
            due = []
            if not is_stopping:
                now = time.monotonic()
                due = [unit for unit in queue if retry_times.get(unit.id, 0.0) <= now]
            for unit in due[: len(free)]:
                queue.remove(unit)
                slot = free.pop(0)
                process = _start(unit, slot, sources)
                busy[process.sentinel] = (unit, slot, process)
            was_stopping = is_stopping
            is_stopping |= cancel.is_asked()
            for sentinel in wait(list(busy), PATIENCE):
                unit, slot, process = busy.pop(sentinel)  # type: ignore[arg-type]
                free.append(slot)
                outcome = _collect_outcome(unit, process)
                if outcome == "stopped":
                    is_stopping = True
                elif outcome == "failed":
                    failed.append(unit)
                elif outcome == "taken":
                    if unit.id not in retry_times:
                        line = f"{unit.name}  another process has it: its turn comes later"
                        print(line, file=sys.stderr)
                    retry_times[unit.id] = time.monotonic() + AGAIN
                    queue.append(unit)
            if is_stopping and not was_stopping:
                for _, _, process in busy.values():
                    process.terminate()  # only once, because the process is saving
    finally:
        for _, _, process in busy.values():
            process.kill()
            process.join()
    if is_stopping:
        raise Stopped
    return failed


def _start(unit: Unit, slot: Slot, sources: Sources) -> ForkServerProcess:
    """Start a process that does a unit."""
    arguments = (unit, slot, dict(os.environ), sources)
    process = CONTEXT.Process(target=_work, args=arguments, daemon=True)
    process.start()
    return process


def _collect_outcome(unit: Unit, process: ForkServerProcess) -> Outcome:
    """The outcome of a process that has ended, "failed" if it crashed or was killed."""
    process.join()
    status = process.exitcode or 0
    if 0 <= status < len(OUTCOMES):
        return OUTCOMES[status]
    cure = ""
    if status == -signal.SIGKILL:
        cure = (
            "; if the kernel killed it for lack of memory, a smaller training.micro_batch_size "
            "needs less"
        )
    print(
        f"{unit.name}  its process died, exit status {status}; `run` goes on{cure}", file=sys.stderr
    )
    return "failed"


def _work(unit: Unit, slot: Slot, environment: Mapping[str, str], sources: Sources) -> None:
    """Do a unit in a process of its own, whose exit status says how the unit ended.

    The process begins with Ctrl-C and SIGTERM blocked. Ctrl-C stays so, because the parent process
    handles it. The unit is asked to stop by SIGTERM, and by the end of the parent process.
    """
    import torch
    from threadpoolctl import threadpool_limits

    from benchmark.devices import limit_memory
    from benchmark.training.processes import join

    os.environ.update(environment)  # the fork server has the variables of when it started
    set_up_to_compute()
    if slot.gpu is not None:
        os.environ["LOCAL_RANK"] = str(slot.gpu)  # the device that `join` takes
    try:
        sources.check()
    except UserError as error:
        print(f"{unit.name}  failed: {error}", file=sys.stderr)
        sys.exit(OUTCOMES.index("failed"))
    if slot.cores:
        os.sched_setaffinity(0, slot.cores)
    torch.set_num_threads(min(torch.get_num_threads(), slot.threads))
    threadpool_limits(slot.threads, "blas")  # of numpy and scipy
    parent = multiprocessing.parent_process()
    is_orphan = lambda: bool(parent and not parent.is_alive())  # noqa: E731
    with StopSignals(signal.SIGTERM), cancel.heed(is_orphan), join() as world:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
        if slot.gpu_share < 1:
            limit_memory(world.device, slot.gpu_share)
        outcome = do_unit(unit, Worker(world, waits=False))
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])  # too late: the unit has ended
    sys.exit(OUTCOMES.index(outcome))


def do_unit(unit: Unit, worker: Worker) -> Outcome:
    """Do a unit, and return how it ended.

    Prints why it failed. A Train unit prints that itself.
    """
    try:
        unit(worker)
    except Taken:
        return "taken"
    except Stopped:
        return "stopped"
    except Exception as error:
        if not isinstance(unit, Train):
            print(f"{unit.name}  failed: {error}", file=sys.stderr)
        return "failed"
    return "done"
