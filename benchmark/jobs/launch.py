"""Training a run: one callable, the same in this process and in a Slurm job."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, ClassVar, Protocol

import submitit
import torch
from submitit.helpers import DelayedSubmission, TorchDistributedEnvironment

from benchmark import records
from benchmark.errors import UserError
from benchmark.jobs import snapshot
from benchmark.jobs.slurm_process import PREEMPTION
from benchmark.settings.config import RunConfig
from benchmark.store import Store
from benchmark.training.processes import World, join, node
from benchmark.training.progress import Line, Silent
from benchmark.training.provenance import ROOT
from benchmark.training.run import Build, Run, corpus_of
from benchmark.training.stage import Stopped


class Work(Protocol):
    """What a job does. `looks_up`: it calls `asked_to_stop` every now and then, and raises Stopped if so."""

    looks_up: ClassVar[bool]

    def __call__(self, world: World, asked_to_stop: Callable[[], bool]) -> None: ...


@dataclass(frozen=True)
class Training:
    """Train what is missing of a run, or of its stages up to `last_stage`.

    Raises Stopped after a checkpoint when asked to stop, and whatever went wrong; both can be continued by another
    call. Errors are in the run's records.
    """

    config: RunConfig
    build: Build
    runs: Path
    last_stage: int | None = None
    looks_up: ClassVar[bool] = True

    def __call__(self, world: World, asked_to_stop: Callable[[], bool]) -> None:
        config, store = self.config, Store(self.runs)
        name = f"{config.suite}: {config.row}, seed {config.seed}"
        line = Line(name, store.beacon(config)) if world.leads else Silent()
        try:
            method = lambda: self.build(config.method, config.options)  # noqa: E731
            run = Run(config, method, store, world, line, asked_to_stop)
            [done] = world.maximum(world.leads and run.done())  # the first process decides: it writes the records
            if done:
                line.finish("done before")
                return
            run.train(self.last_stage)
        except Stopped:
            line.finish("stopped; goes on from its checkpoint")
            raise
        except Exception as error:
            line.finish(f"failed: {error}")
            raise
        line.finish("done" if self.last_stage is None else "shared stages done")


@dataclass(frozen=True)
class Preparation:
    """Tokenise the text of a run's domains."""

    config: RunConfig
    runs: Path
    looks_up: ClassVar[bool] = False

    def __call__(self, world: World, asked_to_stop: Callable[[], bool]) -> None:
        corpus_of(self.config, Store(self.runs), lambda text: print(text, file=sys.stderr))


class StopSignals:
    """Notes signals that ask to stop, for who looks up between two steps; a second Ctrl-C insists.

    `at_once` raises Stopped instead, for work that does not look up.
    """

    def __init__(self, *numbers: int, at_once: bool = False) -> None:
        self.came: list[int] = []
        self.before: dict[int, Any] = {}
        self._numbers, self._at_once = numbers, at_once

    def __call__(self) -> bool:
        return bool(self.came)

    def __enter__(self) -> StopSignals:
        self.before = {number: signal.signal(number, self._note) for number in self._numbers}
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT and number in self.came:
            raise KeyboardInterrupt
        self.came.append(number)
        if self._at_once:
            raise Stopped


def train_here(configs: Iterable[RunConfig], build: Build, runs: Path) -> list[RunConfig]:
    """Train runs one after the other: under a wall-time budget they would slow each other. Returns those that failed.

    Raises KeyboardInterrupt when asked to stop, after a checkpoint.
    """
    failed = []
    with join() as world, StopSignals(signal.SIGINT, signal.SIGTERM) as asked_to_stop:
        for config in world.agree(list(configs)):  # records may have changed between two processes' looks
            if world.leads:  # the others wait in Run for the data; what is wrong with it is so for all runs
                corpus_of(config, Store(runs), lambda text: print(text, file=sys.stderr))
            try:
                Training(config, build, runs)(world, asked_to_stop)
            except Stopped:
                raise KeyboardInterrupt from None
            except Exception:  # it is in the run's records, and said in its line: the other runs go on
                if world.size > 1:
                    raise
                failed.append(config)
                logging.debug(traceback.format_exc())
    return failed


@dataclass(frozen=True)
class SlurmJob:
    """What submitit runs in every process of a job: some work, its signals, and what it has to say.

    On the signal of a time limit or a preemption all processes stop after the same step, one of them having saved a
    checkpoint, and only then submitit's own handler is called, which queues the job again. (It would be called in the
    middle of a step, and only in one process, so it is put aside.) After SIGTERM alone the job just ends: someone
    cancelled it.
    """

    work: Work
    folder: Path  # of the suite's job files
    gpus: bool
    exclusive: bool | str

    def __call__(self) -> None:
        place = TorchDistributedEnvironment()
        # Slurm says which GPUs are the job's, and `join` chooses among them; submitit would count from 0.
        place.export(set_cuda_visible_devices=False, overwrite=True)
        if cores := os.environ.get("SLURM_CPUS_ON_NODE"):  # the job's, where torch may count those of the whole machine
            torch.set_num_threads(max(1, min(torch.get_num_threads(), int(cores) // place.local_world_size)))
        file = self.folder / f"{submitit.JobEnvironment().job_id}.jsonl"
        signals = StopSignals(PREEMPTION, signal.SIGTERM, at_once=not self.work.looks_up)
        try:
            with signals, _deliver(PREEMPTION):
                if place.rank == 0:
                    self._start(file)
                self._check()
                with join() as world:
                    self.work(dataclasses.replace(world, exclusive=self.exclusive), signals)
        except Stopped:
            self._leave(file, signals, place.rank)
        except Exception as error:
            text = f"{type(error).__name__}: {error}"
            _end(file, "failed", error=text, traceback=traceback.format_exc(), rank=place.rank)
            raise
        if place.rank == 0:
            _end(file, "done")

    def checkpoint(self) -> DelayedSubmission:
        """Called by submitit before it queues the job again, which ends this process: not before it is done, please."""
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        return DelayedSubmission(self)

    def _start(self, file: Path) -> None:
        gpus = os.environ.get("CUDA_VISIBLE_DEVICES")
        restarts = int(os.environ.get("SLURM_RESTART_COUNT", 0))
        records.append(file, {"kind": "started", "node": node(), "gpus": gpus, "restarts": restarts})

    def _check(self) -> None:
        if snapshot.digest(ROOT) != ROOT.name:
            raise UserError(f"the code in {ROOT} is not what was submitted: cancel the suite and run it again")
        if self.gpus and not torch.cuda.is_available():
            raise UserError(
                f"the job asked for GPUs, but torch finds none on {node()}: look at its driver and at torch"
            )

    def _leave(self, file: Path, signals: StopSignals, rank: int) -> None:
        if rank == 0 and signals.came[:1] == [PREEMPTION]:
            try:
                signals.before[PREEMPTION](PREEMPTION, None)
            except Exception as error:
                why = f"saved, but cannot be queued again from {node()} ({error}): `run` goes on"
                _end(file, "stopped", error=why)
                raise
        elif rank == 0:
            _end(file, "stopped", error="saved and ended by SIGTERM")
            sys.exit(128 + signal.SIGTERM)
        sys.exit(0)


@contextlib.contextmanager
def _deliver(number: int) -> Iterator[None]:
    """Receive a signal that is else held back: `start.py` does so until there is a handler, we do when we are done."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [number])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_BLOCK, [number])


def _end(file: Path, state: str, **values: Any) -> None:
    records.append(file, {"kind": "ended", "state": state, **values})
