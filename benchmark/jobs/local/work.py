"""The work of a plan on this machine, with whatever processes torchrun has started: side by side, or in turns."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import torch

from benchmark.data.tokens import corpus_of
from benchmark.downstream.scoring import load_tasks, score_runs
from benchmark.errors import UserError
from benchmark.jobs.local.board import board
from benchmark.jobs.payloads import TrainRun
from benchmark.jobs.plan import Plan, data_key
from benchmark.jobs.side_by_side import WorkerShare, train_side_by_side
from benchmark.jobs.slots import Slot, slots_for
from benchmark.jobs.states import FAILED, UNKNOWN
from benchmark.jobs.stop_signals import StopSignals
from benchmark.jobs.training_graph import Segment
from benchmark.locks import Lease
from benchmark.models.transformer import load_network
from benchmark.settings.suite import RunConfig
from benchmark.settings.units import UNITS
from benchmark.store import Store
from benchmark.training.clock import machine_lock
from benchmark.training.method import Build
from benchmark.training.processes import Stopped, World, join, polled

SHOWN = 3  # files of failed runs, in a line


def work_through(plan: Plan) -> int:
    """Train, score, measure, render. Raises KeyboardInterrupt when asked to stop, after a checkpoint.

    Returns an exit status, 0 for success.
    """
    suite, store = plan.suite, plan.store
    leads = int(os.environ.get("RANK", 0)) == 0
    slots = slots_for([state.config for state in plan.wanted], plan.options.parallel)
    if leads:
        load_tasks(suite, store)  # what is wrong with them is said now, not after days of training
        for folder in plan.start_folders:
            load_network(folder)
        print(_beginning(plan), file=sys.stderr)
    lock = machine_lock()
    states_now = plan.present.states if plan.present and leads and len(plan.states) > 1 else None
    with board(states_now) if states_now else contextlib.nullcontext() as shown:
        failed = _train(plan, slots, lock)
        with shown.by_itself() if shown else contextlib.nullcontext():
            unscored = _score_and_measure(plan) if leads else 0
    if leads:
        plan.tables.render([(suite, plan.configs)], store.root, plan.tables.out)
    lock.release()
    if failed:
        files = ", ".join(str(store.run_file(config)) for config in failed[:SHOWN])
        print(
            f"{len(failed)} runs failed, for the reasons that their lines above say (tracebacks, if any, in {files}); "
            "mend that, and the same command with --retry-failed goes on from their checkpoints",
            file=sys.stderr,
        )
    if unscored:
        print(f"{unscored} models could not be scored, see above; the same command tries them again", file=sys.stderr)
    unknown = any(state.state == "unknown" for state in plan.states)
    return FAILED if failed or plan.left_out or unscored else UNKNOWN if unknown else 0


def _score_and_measure(plan: Plan) -> int:
    """What tables need besides training. Returns how many models could not be scored."""
    unscored = score_runs(plan.suite, plan.configs, plan.store.root)
    for config in plan.configs:
        for measure in plan.tables.measures:
            measure(config, plan.store)
    return unscored


def _beginning(plan: Plan) -> str:
    """What this call is going to do, and where."""
    if not plan.wanted:
        how = ", ".join(f"{count} {state}" for state, count in Counter(one.state for one in plan.states).items())
        return f"{plan.suite.name}: nothing to train: {len(plan.states)} runs in {plan.store.root}, {how}"
    return (
        f"{plan.suite.name}: training {len(plan.wanted)} of {len(plan.states)} runs; records and checkpoints go to "
        f"{plan.store.root}; Ctrl-C stops after a checkpoint, and the same command goes on"
    )


def _train(plan: Plan, slots: Sequence[Slot], machine: Lease) -> list[RunConfig]:
    """Train what is wanted, with the machine's lock if that needs it. Returns the runs that failed."""
    runs, wanted = plan.store.root, [state.config for state in plan.wanted]
    timed = any(UNITS[config.budget.unit].is_wall_time for config in wanted)
    alone = machine if timed and not plan.options.share_machine else None
    if len(slots) == 1:
        return train_here(wanted, plan.build, runs, alone)
    if alone:
        with StopSignals(signal.SIGINT, signal.SIGTERM) as asked_to_stop:
            _take(alone, World(0, 1, torch.device("cpu")), asked_to_stop)
    for config in {data_key(config): config for config in wanted}.values():  # else all would wait for one
        corpus_of(config, plan.store, _say)
    return train_in(slots, plan.segments, plan.build, runs)


def train_in(slots: Sequence[Slot], segments: Sequence[Segment], build: Build, runs: Path) -> list[RunConfig]:
    """Train segments side by side. Returns the runs that failed; the others go on.

    Raises KeyboardInterrupt when asked to stop, after checkpoints; a second Ctrl-C kills the processes.
    """
    failed = []

    def tell(segment: Segment, outcome: str, _: str) -> None:
        if outcome == "failed" and segment.last_stage is None:  # else those that share it will say
            failed.append(segment.config)

    shares = [WorkerShare(slot, len(slots), build, runs) for slot in slots]
    with StopSignals(signal.SIGINT, signal.SIGTERM) as asked_to_stop:
        if train_side_by_side(segments, shares, asked_to_stop, tell):
            raise KeyboardInterrupt
    return failed


def train_here(configs: Iterable[RunConfig], build: Build, runs: Path, alone: Lease | None = None) -> list[RunConfig]:
    """Train runs one after the other: under a wall-time budget they would slow each other. Returns those that failed.

    `alone` is a lock to take first, and to keep. Raises KeyboardInterrupt when asked to stop, after a checkpoint.
    """
    failed = []
    with join() as world, StopSignals(signal.SIGINT, signal.SIGTERM) as asked_to_stop:
        configs = world.agree(list(configs))  # records may have changed since another process read them
        if alone:
            _take(alone, world, asked_to_stop)
        for config in configs:
            try:
                if world.leads:  # the others wait in Run for the data; what is wrong with it is so for all runs
                    corpus_of(config, Store(runs), _say, poll=polled(asked_to_stop))
            except Stopped:
                raise KeyboardInterrupt from None
            try:
                TrainRun(config, build, runs)(world, asked_to_stop)
            except Stopped:
                raise KeyboardInterrupt from None
            except Exception:  # it is in the run's records, and said in its line: the other runs go on
                if world.size > 1:
                    raise
                failed.append(config)
                logging.debug(traceback.format_exc())
    return failed


def _say(text: str) -> None:
    print(text, file=sys.stderr)


def _take(machine: Lease, world: World, asked_to_stop: Callable[[], bool]) -> None:
    """Wait for the machine's lock. Raises KeyboardInterrupt when asked to stop, UserError if the lock cannot be had."""
    waits = "another run under a budget of wall time has this machine: this one waits (--share-machine would not)"
    try:
        taken = world.acquire(machine, asked_to_stop, lambda: _say(waits))
    except OSError as error:
        raise UserError(
            f"runs under a budget of wall time wait for each other by the file {machine.path}, which cannot be "
            f"made ({error.strerror}): let its owner remove it, or give --share-machine"
        ) from None
    if not taken:
        raise KeyboardInterrupt
