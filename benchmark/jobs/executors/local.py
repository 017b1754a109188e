"""This machine, and whatever processes torchrun has started here: a pool goes through the waves."""

from __future__ import annotations

import contextlib
import glob
import logging
import os
import platform
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Literal

import numpy as np
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

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
from benchmark.training.progress import WATCHED, read_heartbeat

Show = Callable[[Sequence[Unit]], None]  # is told which are under way
SIDE = 1024  # rows of a matrix
GPUS = (
    "/dev/nvidia[0-9]*",
    "/dev/kfd",
    "/dev/dri/renderD*",
    "/dev/accel*",
)  # torch knows, but takes seconds to ask
PAUSE = 2.0  # seconds between two looks at what is under way


def describe(plan: Plan) -> list[str]:
    rest = count_by_kind(
        unit for wave in plan.waves if wave.kind not in TRAINS for unit in wave.units
    )
    return [f"  {rest}"] if rest else []


def execute(plan: Plan) -> int:
    """Go through the waves, and render. Raises KeyboardInterrupt when asked to stop, after a
    checkpoint.

    Several processes, of `--processes` or torchrun, train together, and the first alone does all
    else.
    """
    from benchmark.models.devices import find_accelerators
    from benchmark.training.processes import Stopped, join, read_launch

    (rank, together), wanted = read_launch(), [state.config for state in plan.wanted]
    leads = rank == 0
    count = (
        count_processes(plan.processes) if plan.processes and wanted and together == 1 else together
    )
    if count > 1 and plan.parallel not in (None, 1):
        raise ConfigError(
            f"--parallel {plan.parallel}: {count} processes train one run at a time: leave one of "
            "both out"
        )
    if count > together:
        return launch(count, plan.program)
    slots = share_machine(wanted, plan.parallel) if count == 1 else []
    if leads:
        print(_describe_start(plan), file=sys.stderr)
        if wanted and (idle := find_accelerators()[1] - max(together, len(slots))) > 0:
            trains = "--processes all trains each run on all of them, --parallel N several runs at a time"
            print(f"{idle} GPUs of this machine stand idle: {trains}", file=sys.stderr)
    failed, waves = list[Unit](), plan.waves
    with (
        StopSignals(signal.SIGINT, signal.SIGTERM) as asked_to_stop,
        show_work(plan.suite.name if leads else "") as show,
    ):
        try:
            with join() as world:
                worker = Worker(world, asked_to_stop)
                for wave in waves:
                    units = world.agree(
                        list(wave.units)
                    )  # records may have changed since another process read them
                    if wave.kind == "prepare":  # a wrong text is wrong for all its runs
                        for unit in units:
                            show([unit])
                            world.let_first(partial(unit, worker))
                    elif wave.kind == "train" or (
                        wave.kind in TRAINS and slots
                    ):  # in turns the first trains for all
                        failed += do_units(units, slots, worker, show)
            for wave in waves if leads else ():
                if wave.kind not in (
                    "prepare",
                    *TRAINS,
                ):  # small steps, which two threads do not make faster
                    cores = list_physical_cores()
                    count = 1 if find_accelerators()[1] else min(len(cores), len(wave.units))
                    single = make_slots(count, cores, 0) if count > 1 else []
                    failed += do_units(wave.units, single, worker, show)
        except Stopped:
            raise KeyboardInterrupt from None
    if leads:
        [report] = plan.report.units
        report(worker)
    return _tell_failures(plan, failed)


def count_processes(asked: int | Literal["all"]) -> int:
    """The processes that `--processes` asks for. Raises ConfigError for all GPUs of a machine that
    has none.
    """
    from benchmark.models.devices import find_accelerators

    if asked != "all":
        return asked
    if gpus := find_accelerators()[1]:
        return gpus
    raise ConfigError(
        "--processes all: a process for each GPU, and torch finds none here: give a number"
    )


def launch(count: int, program: Sequence[str]) -> int:
    """Run a command line of Python in so many processes, as torchrun does.

    Returns 0, or the exit status of the first that failed, upon which torch ends the others. Raises
    KeyboardInterrupt when asked to stop.
    """
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import parse_args, run

    logging.getLogger("torch.distributed.elastic").setLevel(
        logging.CRITICAL
    )  # the processes speak for themselves
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, len(list_physical_cores()) // count)))
    try:
        run(
            parse_args(
                ["--standalone", "--local-addr=localhost", f"--nproc-per-node={count}", *program]
            )
        )
    except ChildFailedError as error:
        status = error.get_first_failure()[1].exitcode
        return status if status > 0 else 128 - status
    except SignalException:
        raise KeyboardInterrupt from None
    return 0


def do_units(
    units: Sequence[Unit], slots: Sequence[Slot], worker: Worker, show: Show
) -> list[Unit]:
    """Do units side by side in slots, or else one after the other here, with all processes of this
    world.

    Returns those that failed. Raises Stopped, or KeyboardInterrupt, when asked to stop.
    """
    if slots:
        return work_through(units, slots, worker.asked_to_stop, show=show)
    failed = []
    later: list[Unit] = []  # what others have at first is waited for at the end
    for unit in chain(units, later):
        show([unit])
        if worker.world.size > 1:
            unit(worker)  # where one process fails all do
            continue
        outcome = do_unit(unit, replace(worker, waits=unit in later))
        if outcome == "taken":
            later.append(unit)
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
        f"{plan.suite.name}: training {len(plan.wanted)} of {len(plan.states)} runs; records and "
        "checkpoints go to "
        f"{plan.runs}; Ctrl-C stops after a checkpoint, and the same command goes on"
    )


def _tell_failures(plan: Plan, failed: Sequence[Unit]) -> int:
    """Say what failed. Returns an exit status."""
    if failed or plan.left_out:
        print(
            f"{len(failed)} failed, for the reasons that their lines above say, and "
            f"{len(plan.left_out)} runs before; "
            f"tracebacks of runs are in {plan.runs}/suites/{plan.suite.name}; mend that, and the "
            "same command with "
            "--retry-failed goes on",
            file=sys.stderr,
        )
    unknown = any(state.state == "unknown" for state in plan.states)
    return FAILED if failed or plan.left_out else UNKNOWN if unknown else 0


def examine(suite: Suite, configs: Sequence[RunConfig], runs: Path) -> Iterator[str]:
    """Look at what torch finds here, and whether the folder of the runs can be written and locked."""
    import torch

    from benchmark.models.devices import find_accelerators

    kind, number = find_accelerators()
    count = f"{number} {kind}" if number else "no accelerator, so the CPU computes"
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
        yield f"wrong  {runs}: {error}: each run must write there: name another --runs, or have its owner allow it"
        return
    yield (f"ok     {runs}: files can be written and locked; {free / 1e9:.1f} GB free")


@contextlib.contextmanager
def show_work(name: str) -> Iterator[Show]:
    """Show the units under way, which the function in the block is told: on a terminal in a live
    table.
    """
    console = Console(stderr=True)
    if not (name and console.is_terminal):
        yield lambda units: None
        return
    under_way: dict[str, Unit] = {}
    ended = 0

    def show(units: Sequence[Unit]) -> None:
        nonlocal under_way, ended
        shown = {unit.id: unit for unit in units}
        ended += len(under_way.keys() - shown.keys())
        under_way = shown

    def render() -> Group:
        head, table = (
            Text(f"{name}: {ended} units of work done"),
            Table(box=None, show_header=False),
        )
        for unit in under_way.values():
            beat = (
                read_heartbeat(unit.store.heartbeat_file(unit.config))
                if unit.kind in TRAINS
                else None
            )
            table.add_row(Text(unit.name), Text(str(beat or unit.kind)))
        return Group(head, table)

    with (
        tempfile.TemporaryDirectory() as said,
        Live(console=console, get_renderable=render, refresh_per_second=1 / PAUSE, transient=True),
    ):
        os.environ[WATCHED] = said
        try:
            yield show
        finally:
            del os.environ[WATCHED]


def guess_flops_per_second() -> float:
    """Guess what small models reach on this machine's CPU, by a matrix product; 0 where there may
    be a GPU.
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
