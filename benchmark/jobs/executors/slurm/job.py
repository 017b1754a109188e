"""What submitit runs in each process of a job on Slurm.

submitit's own `checkpoint` is not used: it would be called only in the first process, by a handler
of the signal. Here all processes stop after the same step, and a job is queued again however long
the controller is silent. If another job trains the stages that this job needs, this job queues
itself behind the other, so that it does not hold its GPU while it waits.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import signal
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from submitit import JobEnvironment
from submitit.helpers import TorchDistributedEnvironment

from benchmark import cancel
from benchmark.cancel import Stopped, Taken
from benchmark.devices import find_accelerators
from benchmark.errors import UserError
from benchmark.interpreters import set_up_to_compute
from benchmark.jobs.executors.slurm import commands
from benchmark.jobs.executors.slurm.commands import SlurmError
from benchmark.jobs.executors.slurm.settings import find_section
from benchmark.jobs.pool import StopSignals, share_job, work_through
from benchmark.jobs.work import StartCounter, Unit, Worker
from benchmark.locks import JOB
from benchmark.training.processes import (
    NODE,
    Sources,
    World,
    find_machine_name,
    join,
)

# the signal that comes before a time limit and before preemption
TIME_OVER = getattr(signal, f"SIG{JobEnvironment.USR_SIG}")
# a job ends after so many starts in a row that reached the time limit and added nothing
IN_VAIN = 2
PAUSE = 5.0  # seconds between two questions to a controller that is silent


class Behind(Stopped):
    """What a job has to do next waits for what other jobs train."""

    def __init__(self, owners: Sequence[str]) -> None:
        super().__init__()
        self.owners = owners  # ids of these jobs


@dataclass(frozen=True)
class Task:
    """One job, or one task of an array.

    Its processes do its units one after the other, or `side_by_side` at a time. When its time is
    over, or another job takes its node, it saves and queues itself again. If another job trains
    what it needs next, it queues itself behind that job.
    """

    units: tuple[Unit, ...]
    gpus: bool  # whether it asked for some
    exclusive: bool  # whether no other job is on its nodes
    folder: Path  # in which it was submitted, for relative paths
    sources: Sources  # of the process that submitted it
    side_by_side: int = 0

    def __call__(self) -> None:
        set_up_to_compute()
        self.sources.check()
        job = JobEnvironment()
        # if the folder is not on this node, a later error names what is missing
        with contextlib.suppress(FileNotFoundError):
            os.chdir(self.folder)
        os.environ |= {NODE: os.environ.get("SLURMD_NODENAME", ""), JOB: job.job_id}
        environment = TorchDistributedEnvironment()
        # Slurm says which GPUs are the job's, and `join` chooses among them. submitit would count
        # from 0.
        environment.export(set_cuda_visible_devices=False, overwrite=True)
        # use only the job's cores: torch may count those of the whole machine
        cores = os.environ.get("SLURM_CPUS_ON_NODE")
        if cores:
            share = int(cores) // environment.local_world_size
            torch.set_num_threads(max(1, min(torch.get_num_threads(), share)))
        start_counter = StartCounter(job.paths.folder / f"{job.job_id}_in_vain.json", self.units)
        if environment.rank == 0:
            start_counter.begin()
        signals = StopSignals(TIME_OVER, signal.SIGTERM, at_once=not self.units[0].polls)
        try:
            with signals:
                if self.gpus and not find_accelerators()[1]:
                    raise UserError(
                        f"the job asked for GPUs, but torch finds none on {find_machine_name()}: "
                        "check driver and torch"
                    )
                with join() as world:
                    self._work(Worker(world, waits=False), signals)
        except Behind as behind:
            if environment.rank == 0:
                _queue_again(job.job_id, behind.owners)
        except Stopped:
            if environment.rank == 0:  # it acts for all
                self._leave(signals, job.job_id, start_counter)
        else:
            return
        sys.exit(0)  # if it returned, submitit would note that the work is done

    def _work(self, worker: Worker, signals: StopSignals) -> None:
        """Do the units. If one fails, do the others, and raise its error at the end.

        Raises Behind if the next unit, or all units left with `side_by_side`, must wait for other
        jobs.
        """
        if self.side_by_side:
            leave = partial(_leave_to_owners, world=worker.world)
            # a site may let a job's processes run on all cores of a node, and another job may be
            # pinned to the same ones, unless the job has the whole node
            core_count = int(os.environ.get("SLURM_CPUS_ON_NODE", 0))
            slots = share_job(self.side_by_side, core_count, self.exclusive)
            work_through(self.units, slots, leave)
            return
        errors = []
        for unit in self.units:
            cancel.check()
            signals.at_once = not unit.polls
            try:
                try:
                    unit(worker)
                except Taken:
                    _leave_to_owners([unit], worker.world)
                    unit(dataclasses.replace(worker, waits=True))
            except Stopped:
                raise
            except Exception as error:
                print(f"{unit.name}  failed: {error}", file=sys.stderr)
                errors.append(error)
        if errors:
            raise errors[0]

    def _leave(self, signals: StopSignals, job: str, start_counter: StartCounter) -> None:
        """Queue the job again if its time is over or another job takes its node.

        If it was cancelled, exit. Raises UserError if it reached its time limit in IN_VAIN starts
        in a row and added nothing.
        """
        if not _is_preempted(job):
            first_signal = signals.came[0] if signals.came else None
            if first_signal != TIME_OVER:
                print("saved, and ended by SIGTERM", file=sys.stderr, flush=True)
                sys.exit(128 + signal.SIGTERM)
            if start_counter.count_in_vain() >= IN_VAIN:
                section = find_section(self.units[0].kind)
                raise UserError(
                    f"{IN_VAIN} starts reached the time limit, and added no step, domain or score: "
                    f"raise slurm.{section}.time"
                )
        _queue_again(job)


def _leave_to_owners(units: Iterable[Unit], world: World) -> None:
    """Raise Behind if other jobs train what each of these units needs next."""
    jobs = world.broadcast({unit.find_owning_job() for unit in units})
    owners = jobs - {os.environ[JOB]}
    can_do_one = "" in owners  # no job has what one of the units needs
    if owners and not can_do_one:
        raise Behind(sorted(owners))


def _is_preempted(job: str) -> bool:
    """Whether Slurm ends a job to make room for another, False if Slurm does not answer."""
    answer = ""
    with contextlib.suppress(SlurmError):
        answer = commands.ask("scontrol", "show", "job", job)
    return bool(re.search(r"\bPreemptTime=\d", answer))


def _queue_again(job: str, owners: Sequence[str] = ()) -> None:
    """Queue a job again, behind the jobs `owners` if there are any.

    While Slurm is silent, ask again until the job's time limit. Raises SlurmError if Slurm refuses.
    """
    while True:
        try:
            commands.ask("scontrol", "requeue", job)
            break
        except SlurmError as error:
            if not commands.is_silence(str(error)):
                raise
            print(f"{error}; asking again in {PAUSE:g} s", file=sys.stderr, flush=True)
        time.sleep(PAUSE)
    if owners:
        dependency = f"Dependency=afterany:{':'.join(owners)}"
        # without it, the job looks again as soon as it starts
        with contextlib.suppress(SlurmError):
            commands.ask("scontrol", "update", f"JobId={job}", dependency)
    places = [f"behind job {owner}" for owner in owners]
    print("saved, and queued again", *places, file=sys.stderr, flush=True)
