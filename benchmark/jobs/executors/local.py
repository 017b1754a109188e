"""The executor for this machine: a pool of processes, or several that train each run together."""

from __future__ import annotations

import glob
import logging
import os
import platform
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Literal

import numpy as np

from benchmark.cancel import Stopped
from benchmark.jobs.executors import Executor
from benchmark.jobs.pool import (
    Slot,
    StopSignals,
    do_unit,
    list_physical_cores,
    make_slots,
    share_machine,
    work_through,
)
from benchmark.jobs.status import FAILED, UNKNOWN, describe_sweep
from benchmark.jobs.waves import Plan, count_by_kind
from benchmark.jobs.work import TRAINS, Unit, Worker
from benchmark.locks import Lease
from benchmark.settings.base import ConfigError
from benchmark.settings.suite import RunConfig, Suite
from benchmark.training.evaluation_time import UTILISATION

SIDE = 1024  # rows of a matrix
# device files of GPUs: torch would find the GPUs, but takes seconds to import
GPUS = ("/dev/nvidia[0-9]*", "/dev/kfd", "/dev/dri/renderD*", "/dev/accel*")


def describe(plan: Plan) -> list[str]:
    """The line of --dry-run about missing work other than training."""
    waves = [wave for wave in plan.waves if wave.kind not in TRAINS]
    counts = count_by_kind(unit for wave in waves for unit in wave.units)
    if counts:
        return [f"  {counts}"]
    return []


def execute(plan: Plan) -> int:
    """Do the waves, and render the report.

    Several processes, from `--processes` or torchrun, train each run together, and only the first
    does everything else. Raises KeyboardInterrupt when asked to stop, after a checkpoint.
    """
    from benchmark.training.processes import join, read_launch

    rank, launched_count = read_launch()
    configs = [state.config for state in plan.wanted]
    leads = rank == 0
    process_count = launched_count  # of the processes that train each run together
    if plan.processes and configs and launched_count == 1:
        process_count = count_processes(plan.processes)
    if process_count > 1 and plan.parallel not in (None, 1):
        raise ConfigError(
            f"--parallel {plan.parallel}: {process_count} processes train one run at a time: leave "
            "one of both out"
        )
    if process_count > launched_count:
        return launch(process_count, plan.program)  # each of these calls `execute` again
    slots = share_machine(configs, plan.parallel) if process_count == 1 else []
    if leads:
        print(_describe_start(plan), file=sys.stderr)
        if configs:
            _tell_idle_gpus(max(process_count, len(slots)))
    failed: list[Unit] = []
    waves = plan.waves
    with StopSignals(signal.SIGINT, signal.SIGTERM):
        try:
            with join() as world:
                worker = Worker(world)
                for wave in waves:
                    # use the first process's units, because others may have read other records
                    units = world.broadcast(list(wave.units))
                    # errors are raised: a wrong text is wrong for all its runs
                    if wave.kind == "prepare":
                        for unit in units:
                            world.let_first(partial(unit, worker))
                    elif wave.kind == "train" or (wave.kind == "stages" and slots):
                        # without slots, the first run trains shared stages for all
                        failed += do_units(units, slots, worker)
            if leads:
                for wave in waves:
                    if wave.kind not in ("prepare", *TRAINS):
                        failed += _do_small_units(wave.units, worker)
        except Stopped:
            raise KeyboardInterrupt from None
    if leads:
        [report] = plan.report.units
        report(worker)
    return _tell_failures(plan, failed)


def _tell_idle_gpus(count: int) -> None:
    """Print how many GPUs are idle while `count` are in use."""
    from benchmark.devices import find_accelerators

    _, gpus = find_accelerators()
    idle = gpus - count
    if idle > 0:
        print(
            f"{idle} GPUs of this machine stand idle: --processes all trains each run on all of "
            "them, --parallel N several runs at a time",
            file=sys.stderr,
        )


def _do_small_units(units: Sequence[Unit], worker: Worker) -> list[Unit]:
    """Do units, one per core, because a second thread does not speed up their small steps.

    With a GPU, they are done one after the other. Returns the units that failed.
    """
    from benchmark.devices import find_accelerators
    from benchmark.training.processes import World

    # processes that trained together have parted by now
    worker = replace(worker, world=World(0, 1, worker.world.device))
    cores = list_physical_cores()
    _, gpus = find_accelerators()
    count = 1 if gpus else min(len(cores), len(units))
    slots = make_slots(count, cores, 0) if count > 1 else []
    return do_units(units, slots, worker)


def count_processes(number: int | Literal["all"]) -> int:
    """The number of processes that `--processes` asks for.

    Raises ConfigError for "all" on a machine without GPUs.
    """
    from benchmark.devices import find_accelerators

    if number != "all":
        return number
    _, gpus = find_accelerators()
    if gpus:
        return gpus
    raise ConfigError(
        "--processes all: a process for each GPU, and torch finds none here: give a number"
    )


def launch(count: int, program: Sequence[str]) -> int:
    """Run a command line of Python in `count` processes, as torchrun does.

    Returns 0, or the exit status of the first process that failed, after which torch ends the
    others. Raises KeyboardInterrupt when asked to stop.
    """
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import parse_args, run

    # the processes report their own errors
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
    threads = max(1, len(list_physical_cores()) // count)
    os.environ.setdefault("OMP_NUM_THREADS", str(threads))
    options = ["--standalone", "--local-addr=localhost", f"--nproc-per-node={count}"]
    try:
        run(parse_args([*options, *program]))
    except ChildFailedError as error:
        status = error.get_first_failure()[1].exitcode
        if status > 0:
            return status
        return 128 - status
    except SignalException:
        raise KeyboardInterrupt from None
    return 0


def do_units(units: Sequence[Unit], slots: Sequence[Slot], worker: Worker) -> list[Unit]:
    """Do units side by side in slots or, without slots, one after the other here.

    Without slots, all processes of this world do each unit together. Returns the units that failed.
    Raises Stopped or KeyboardInterrupt when asked to stop.
    """
    if slots:
        return work_through(units, slots)
    failed = []
    postponed: list[Unit] = []  # units that others had at first: they are waited for at the end
    # the loop also comes to units that it has itself appended to `postponed`
    for unit in chain(units, postponed):
        if worker.world.size > 1:
            unit(worker)  # if one process fails, all fail
            continue
        outcome = do_unit(unit, replace(worker, waits=unit in postponed))
        if outcome == "taken":
            postponed.append(unit)
        elif outcome == "failed":
            failed.append(unit)
        elif outcome == "stopped":
            raise KeyboardInterrupt
    return failed


def _describe_start(plan: Plan) -> str:
    """A line that says what this call is going to do, and where."""
    if not plan.wanted:
        return f"{plan.suite.name}: nothing to train in {plan.runs}: {describe_sweep(plan.states)}"
    return (
        f"{plan.suite.name}: training {len(plan.wanted)} of {len(plan.states)} runs. Records and "
        f"checkpoints are saved in {plan.runs}/. Ctrl-C stops after a checkpoint, and the same "
        "command continues."
    )


def _tell_failures(plan: Plan, failed: Sequence[Unit]) -> int:
    """Say what failed. Returns an exit status."""
    if failed or plan.not_retried:
        print(
            f"{len(failed)} failed, for the reasons that their lines above say, and "
            f"{len(plan.not_retried)} runs before. Tracebacks of runs are in "
            f"{plan.runs}/suites/{plan.suite.name}. Mend that, and the same command with "
            "--retry-failed continues.",
            file=sys.stderr,
        )
        return FAILED
    is_unknown = any(state.state == "unknown" for state in plan.states)
    return UNKNOWN if is_unknown else 0


def examine(suite: Suite, configs: Sequence[RunConfig], runs: Path) -> Iterator[str]:
    """Say what torch finds, and whether files in the runs' folder can be written and locked.

    The suite does not matter here. Executors of clusters read it.
    """
    import torch

    from benchmark.devices import find_accelerators

    kind, number = find_accelerators()
    count = f"{number} {kind}" if number else "no accelerator on this machine"
    cores = len(list_physical_cores())
    yield (
        f"ok     Python {platform.python_version()}, torch {torch.__version__}, {count}, physical "
        f"cores: {cores}"
    )
    try:
        runs.mkdir(parents=True, exist_ok=True)
        with (
            tempfile.TemporaryDirectory(prefix=".doctor-", dir=runs) as folder,
            Lease(Path(folder) / "lock"),
        ):
            free = shutil.disk_usage(runs).free
    except OSError as error:
        yield (
            f"wrong  {runs}: {error}: each run must write there: name another --runs, or have its "
            "owner allow it"
        )
        return
    yield f"ok     {runs}: files can be written and locked; {free / 1e9:.1f} GB free"


def guess_flops_per_second() -> float:
    """Guess the FLOPs per second of small models on this machine's CPU from a matrix product.

    Returns 0 if there may be a GPU.
    """
    if any(glob.glob(place) for place in GPUS):
        return 0.0
    factor = np.ones((SIDE, SIDE), np.float32)
    times = []
    for _ in range(5):
        began = time.perf_counter()
        factor @ factor
        times.append(time.perf_counter() - began)
    return UTILISATION * 2 * SIDE**3 / min(times)


EXECUTOR = Executor(
    describe=describe,
    execute=execute,
    examine=examine,
    guess_flops_per_second=guess_flops_per_second,
)
