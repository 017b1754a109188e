"""A job of Slurm from the inside: what submitit runs in each of its processes."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import submitit
import torch
from submitit.helpers import DelayedSubmission, TorchDistributedEnvironment
from submitit.slurm.slurm import SlurmJobEnvironment

from benchmark import records
from benchmark.errors import UserError
from benchmark.jobs.payloads import Payload
from benchmark.jobs.slurm import commands, snapshot
from benchmark.jobs.slurm.bundle import TrainBundle
from benchmark.jobs.slurm.commands import SlurmError
from benchmark.jobs.slurm.private import for_the_user_alone
from benchmark.jobs.slurm.process import PREEMPTION
from benchmark.jobs.stop_signals import StopSignals
from benchmark.locks import JOB
from benchmark.models.devices import accelerators
from benchmark.training.processes import ROOT, Stopped, join, node

PAUSE = 5.0  # seconds between two questions to a controller that is silent
REFUSALS = ("no scontrol here", "denied", "disabled")  # in what says that it is no use to ask again
T = TypeVar("T")


@dataclass(frozen=True)
class SlurmJob:
    """What submitit runs in every process of a job: a payload, its signals, and what it has to say.

    On the signal of a time limit or a preemption all processes stop after the same step, one of them having saved a
    checkpoint, and only then submitit's own handler is called, which queues the job again. (It would be called in the
    middle of a step, and only in one process, so it is put aside.) After SIGTERM alone Slurm is asked: where preemption
    cancels jobs (PreemptMode=CANCEL) that is all that they get, and the job is queued again too. Else someone cancelled
    it, and it just ends.
    """

    payload: Payload
    folder: Path  # of the suite's job files
    gpus: bool
    exclusive: bool | str
    grace: float  # seconds from the signal of a time limit to that

    def __call__(self) -> None:
        gc.freeze()  # what is imported stays: collections, those of forks too, need not look at it
        gc.enable()
        place = TorchDistributedEnvironment()
        # Slurm says which GPUs are the job's, and `join` chooses among them; submitit would count from 0.
        place.export(set_cuda_visible_devices=False, overwrite=True)
        if cores := os.environ.get("SLURM_CPUS_ON_NODE"):  # the job's, where torch may count those of the whole machine
            torch.set_num_threads(max(1, min(torch.get_num_threads(), int(cores) // place.local_world_size)))
        os.environ[JOB] = submitit.JobEnvironment().job_id  # who has a lease names it
        file = self.folder / f"{os.environ[JOB]}.jsonl"
        work = self.payload
        if isinstance(work, TrainBundle):
            work = dataclasses.replace(work, file=file)
        signals = StopSignals(PREEMPTION, signal.SIGTERM, at_once=not work.polls)
        try:
            with signals, _deliver(PREEMPTION):
                if place.rank == 0:
                    self._start(file)
                self._check()
                with join() as world:
                    work(dataclasses.replace(world, exclusive=self.exclusive), signals)
        except Stopped:
            self._leave(file, signals, place.rank)
        except Exception as error:
            text = f"{type(error).__name__}: {error}"
            _end(file, "failed", error=text, traceback=traceback.format_exc(), rank=place.rank, restarts=_restarts())
            raise
        if place.rank == 0:
            _end(file, "done")

    def checkpoint(self) -> DelayedSubmission:
        """Called by submitit before it queues the job again, which ends this process: not before it is done, please."""
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        return DelayedSubmission(self)

    def _start(self, file: Path) -> None:
        gpus = os.environ.get("CUDA_VISIBLE_DEVICES")
        records.append(file, {"kind": "started", "node": node(), "gpus": gpus, "restarts": _restarts()})

    def _check(self) -> None:
        if snapshot.digest(ROOT) != ROOT.name:
            raise UserError(f"the code in {ROOT} is not what was submitted: cancel the suite and run it again")
        if self.gpus and not accelerators()[1]:
            raise UserError(
                f"the job asked for GPUs, but torch finds none on {node()}: look at its driver and at torch"
            )

    def _leave(self, file: Path, signals: StopSignals, rank: int) -> None:
        if rank == 0 and (signals.came[:1] == [PREEMPTION] or self._is_preempted(signals)):
            SlurmJobEnvironment._requeue = self._requeue(signals)  # type: ignore[method-assign, assignment]
            try:
                with for_the_user_alone():  # it writes the pickle anew
                    signals.before[PREEMPTION](PREEMPTION, None)
            except Exception as error:
                why = f"saved, but cannot be queued again from {node()} ({error}): `run` goes on"
                _end(file, "stopped", error=why)
                raise
        elif rank == 0:
            _end(file, "stopped", error="saved and ended by SIGTERM")
            sys.exit(128 + signal.SIGTERM)
        sys.exit(0)

    def _requeue(self, signals: StopSignals) -> Callable[[SlurmJobEnvironment, int], None]:
        """What takes the place of what submitit's handler calls last, which would ask Slurm once."""
        return lambda environment, _: self._patiently(commands.requeue, environment.job_id, signals)

    def _is_preempted(self, signals: StopSignals) -> bool:
        """Whether Slurm ends this job for another one; not where it cannot be asked."""
        with contextlib.suppress(UserError):
            return self._patiently(commands.is_preempted, os.environ["SLURM_JOB_ID"], signals)
        return False

    def _patiently(self, ask: Callable[[str], T], job: str, signals: StopSignals) -> T:
        """What Slurm answers, asked again and again while it is silent, until the time limit that the signal announced.

        Preemption may leave less: then Slurm's SIGKILL ends it. Raises SlurmError without an answer, or at a refusal.
        """
        while True:
            try:
                return ask(job)
            except SlurmError as error:
                if any(word in str(error) for word in REFUSALS) or signals.seconds() + PAUSE >= self.grace:
                    raise
                print(f"{error}; asking again in {PAUSE:g} s", file=sys.stderr, flush=True)
            time.sleep(PAUSE)


@contextlib.contextmanager
def _deliver(number: int) -> Iterator[None]:
    """Receive a signal that is else held back: `process.py` does so until there is a handler, we do at the end."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [number])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_BLOCK, [number])


def _restarts() -> int:
    """How often this job was queued again."""
    return int(os.environ.get("SLURM_RESTART_COUNT", 0))


def _end(file: Path, state: str, **values: Any) -> None:
    records.append(file, {"kind": "ended", "state": state, **values})
