"""A job of Slurm from the inside: what submitit runs in each of its processes."""

from __future__ import annotations

import dataclasses
import os
import re
import signal
import sys
import time
from dataclasses import dataclass

import torch
from submitit import JobEnvironment
from submitit.helpers import TorchDistributedEnvironment

from benchmark.errors import UserError
from benchmark.jobs.executors.slurm import commands
from benchmark.jobs.executors.slurm.commands import SlurmError
from benchmark.jobs.pool import Slot, StopSignals, check_slots, equal_slots, physical_cores, work_through
from benchmark.jobs.state import is_timed
from benchmark.jobs.work import Unit, Worker
from benchmark.models.devices import accelerators
from benchmark.training.processes import NODE, Stopped, join, node

TIME_OVER = getattr(signal, f"SIG{JobEnvironment.USR_SIG}")  # comes before a time limit, and before preemption
PAUSE = 5.0  # seconds between two questions to a controller that is silent
REFUSALS = ("no scontrol here", "denied", "disabled")  # in what says that it is no use to ask again


@dataclass(frozen=True)
class Task:
    """One job, or one task of an array: units that its processes do together, or `side_by_side` of them at a time.

    When its time is over, or another job takes its node, it saves and queues itself again.
    """

    units: tuple[Unit, ...]
    gpus: bool  # whether it asked for some
    exclusive: bool | str
    restarts: int  # it is queued again at most so often
    side_by_side: int = 0

    def __call__(self) -> None:
        os.environ[NODE] = os.environ.get("SLURMD_NODENAME", "")
        place = TorchDistributedEnvironment()
        # Slurm says which GPUs are the job's, and `join` chooses among them; submitit would count from 0.
        place.export(set_cuda_visible_devices=False, overwrite=True)
        if cores := os.environ.get("SLURM_CPUS_ON_NODE"):  # the job's, where torch may count those of the whole machine
            torch.set_num_threads(max(1, min(torch.get_num_threads(), int(cores) // place.local_world_size)))
        signals = StopSignals(TIME_OVER, signal.SIGTERM, at_once=not self.units[0].polls)
        try:
            with signals:
                if self.gpus and not accelerators()[1]:
                    raise UserError(
                        f"the job asked for GPUs, but torch finds none on {node()}: look at its driver and at torch"
                    )
                with join() as world:
                    worker = Worker(dataclasses.replace(world, exclusive=self.exclusive), signals)
                    if self.side_by_side:
                        work_through(self.units, self._slots(), signals)
                    else:
                        [unit] = self.units
                        unit(worker)
        except Stopped:
            self._leave(signals, place.rank)

    def _slots(self) -> list[Slot]:
        """Equal shares of the cores and GPUs that Slurm gave this job.

        They are pinned unless the site lets a job's processes run on all cores: then another job may pin to the same.
        A whole node has none. Raises ConfigError where so many cannot be.
        """
        count, cores, (_, gpus) = self.side_by_side, physical_cores(), accelerators()
        timed = any(is_timed(unit.config) for unit in self.units)
        check_slots(count, timed, len(cores), gpus, f"slurm.ntasks_per_node {count}")
        slots, given = equal_slots(count, cores, gpus), int(os.environ.get("SLURM_CPUS_ON_NODE", 0))
        if given and sum(map(len, cores)) > given and self.exclusive is not True:
            slots = [dataclasses.replace(slot, cores=(), threads=max(1, given // count)) for slot in slots]
        return [dataclasses.replace(slot, exclusive=self.exclusive) for slot in slots]

    def _leave(self, signals: StopSignals, rank: int) -> None:
        """Queue the job again where its time is over or another takes its node; where it was cancelled it ends."""
        job = JobEnvironment().job_id
        if rank:
            sys.exit(0)  # the first speaks for all
        if signals.came[:1] != [TIME_OVER] and not _is_preempted(job):
            print("saved, and ended by SIGTERM", file=sys.stderr, flush=True)
            sys.exit(128 + signal.SIGTERM)
        if int(os.environ.get("SLURM_RESTART_COUNT", 0)) >= self.restarts:
            raise UserError(f"queued again {self.restarts} times: raise slurm.max_num_timeout, or give more time")
        _requeue(job)
        print("saved, and queued again", file=sys.stderr, flush=True)
        sys.exit(0)


def _is_preempted(job: str) -> bool:
    """Whether Slurm ends a job for another one; not where it cannot be asked."""
    try:
        return bool(re.search(r"\bPreemptTime=\d", commands.ask("scontrol", "show", "job", job)))
    except SlurmError:
        return False


def _requeue(job: str) -> None:
    """Queue a job again, asking again and again while Slurm is silent, until its time limit ends this process.

    Raises SlurmError at a refusal.
    """
    while True:
        try:
            commands.ask("scontrol", "requeue", job)
            return
        except SlurmError as error:
            if any(word in str(error) for word in REFUSALS):
                raise
            print(f"{error}; asking again in {PAUSE:g} s", file=sys.stderr, flush=True)
        time.sleep(PAUSE)
