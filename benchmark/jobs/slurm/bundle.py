"""Several runs in one job, `slurm.runs_per_job`: which go together, and what such a job does. No torch at the top."""

from __future__ import annotations

import dataclasses
import os
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from benchmark import records
from benchmark.jobs.payloads import TrainRun
from benchmark.jobs.plan import PlannedJob
from benchmark.jobs.slots import Slot, accelerators, check_apart, check_shared, equal_slots, physical_cores
from benchmark.jobs.slurm import job_files
from benchmark.jobs.training_graph import Segment
from benchmark.settings.base import ConfigError
from benchmark.settings.slurm_settings import Slurm
from benchmark.settings.units import UNITS

if TYPE_CHECKING:
    from benchmark.training.processes import World


def bundled(jobs: Sequence[PlannedJob], asked: Callable[[PlannedJob], Slurm]) -> list[PlannedJob]:
    """Training jobs as bundles of at most `runs_per_job` runs that ask for the same and wait for the same others.

    A shared stage goes with the runs that need it if one job takes them all, and else before them.
    """
    asks = {job.key: asked(job) for job in jobs}
    train = {settings: settings.of("train") for settings in asks.values()}
    if all(settings.runs_per_job == 1 for settings in train.values()):
        return list(jobs)
    new = {job.key for job in jobs}
    children: dict[str | None, list[PlannedJob]] = defaultdict(list)
    for job in jobs:
        children[next((key for key in job.after if key in new), None)].append(job)
    # by what they ask and wait for
    alike: dict[tuple[Slurm, tuple[str, ...]], list[list[PlannedJob]]] = defaultdict(list)

    def place(job: PlannedJob) -> None:
        own, members = asks[job.key], _tree(job, children)
        most = train[own].runs_per_job
        together = 1 < most >= _runs(members) and all(asks[member.key] == own for member in members)
        members = members if together else [job]
        bundles = alike[own, _outside(members)]
        if bundles and _runs(bundles[-1]) + _runs(members) <= most:
            bundles[-1] += members
        else:
            bundles.append(members)
        for child in () if together else children[job.key]:
            place(child)

    for job in children[None]:
        place(job)
    found = [(train[own], members) for (own, _), bundles in alike.items() for members in bundles]
    owner = {member.key: members[0].key for _, members in found for member in members}
    return [_together(members, owner, own) for own, members in found]


def _tree(job: PlannedJob, children: dict[str | None, list[PlannedJob]]) -> list[PlannedJob]:
    return [job, *(one for child in children[job.key] for one in _tree(child, children))]


def _runs(members: Sequence[PlannedJob]) -> int:
    """How many runs they end; a shared stage without them counts as one."""
    ends = sum(member.run is not None for member in members)
    inner = {key for member in members for key in member.after}
    return ends + sum(member.run is None and member.key not in inner for member in members)


def _outside(members: Sequence[PlannedJob]) -> tuple[str, ...]:
    inner = {member.key for member in members}
    return tuple(sorted({key for member in members for key in member.after} - inner))


def _together(members: Sequence[PlannedJob], owner: dict[str, str], asked: Slurm) -> PlannedJob:
    after = tuple(dict.fromkeys(owner.get(key, key) for key in _outside(members)))
    if asked.runs_per_job == 1:
        [job] = members
        return dataclasses.replace(job, after=after)
    runs = [member.name for member in members if member.run] or [member.name for member in members]
    name = runs[0] + (f"+{len(runs) - 1}" if len(runs) > 1 else "")
    serves = tuple(dict.fromkeys(run for member in members for run in member.serves))
    payload = TrainBundle(tuple(members), asked.processes)
    return PlannedJob(members[0].key, "train", name, payload, after, serves=serves)


@dataclass(frozen=True)
class TrainBundle:
    """Train several runs in one job, `side_by_side` at a time: each process takes the next that nobody has.

    It notes in the job's file which were begun and how they ended; one that fails ends no other, and the job succeeds.
    Queued again, it goes on with those that had not ended.
    """

    jobs: tuple[PlannedJob, ...]
    side_by_side: int
    file: Path | None = None  # the job's, which knows it when it runs
    polls: ClassVar[bool] = True

    def __call__(self, world: World, asked_to_stop: Callable[[], bool]) -> None:
        from benchmark.jobs.side_by_side import WorkerShare, train_side_by_side  # torch
        from benchmark.training.processes import Stopped

        file, payload = self.file, self.jobs[0].payload
        assert file and isinstance(payload, TrainRun)
        over = {job.key for job in job_files.read_one(file) if job.is_over}
        segments = [_segment(job) for job in self.jobs if job.key not in over]
        timed = any(UNITS[segment.config.budget.unit].is_wall_time for segment in segments)

        def tell(segment: Segment, event: str, why: str) -> None:
            line = {"kind": "begun"} if event == "begun" else {"kind": "ended", "state": event, "error": why}
            records.append(file, {**line, "key": segment.key})

        slots = own_slots(self.side_by_side, timed, world.exclusive is True)
        start: Literal["spawn", "fork"] = "fork" if slots[0].gpu is None else "spawn"
        same = (len(slots), payload.build, payload.runs, payload.scratch, world.exclusive, start)
        shares = [WorkerShare(slot, *same) for slot in slots]
        if train_side_by_side(segments, shares, asked_to_stop, tell):
            raise Stopped


def own_slots(count: int, timed: bool, whole_node: bool) -> list[Slot]:
    """Equal shares of the cores and GPUs that Slurm gave this job.

    They are pinned unless the site lets a job's processes run on all cores: then another job may pin to the same. Under
    a budget of wall time each needs its own, which a whole node has. Raises ConfigError where it cannot have that.
    """
    cores, (kind, gpus), asked = physical_cores(), accelerators(), f"slurm.ntasks_per_node {count}"
    check_shared(count, kind, gpus, asked)
    if timed and count > 1:
        check_apart(count, len(cores), gpus, asked)
    slots, given = equal_slots(count, cores, gpus), int(os.environ.get("SLURM_CPUS_ON_NODE", 0))
    if not given or sum(map(len, cores)) <= given or (timed and whole_node):
        return slots
    if timed and count > 1:
        raise ConfigError(
            f"{asked}: under a budget in seconds each run needs its own cores, and this job has {given} of "
            f"{sum(map(len, cores))} that it may run on: leave slurm.exclusive out, or set slurm.ntasks_per_node = 1"
        )
    return [dataclasses.replace(slot, cores=(), threads=max(1, given // count)) for slot in slots]


def _segment(job: PlannedJob) -> Segment:
    """What a training job trains. It waits for what is trained in the same bundle, and for nothing else."""
    assert isinstance(job.payload, TrainRun)
    after = job.after[-1] if job.after else None
    return Segment(job.key, job.name, job.payload.config, job.payload.last_stage, after)
