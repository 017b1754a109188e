"""What a dry run says of the jobs that would be submitted: how many, what they ask for, what each waits for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from benchmark.jobs.plan import Plan, PlannedJob
from benchmark.jobs.slurm.job_files import Job
from benchmark.jobs.slurm.resources import Resources
from benchmark.jobs.slurm.waves import divided


def job_lines(plan: Plan, jobs: Sequence[PlannedJob], under_way: Sequence[Job]) -> list[str]:
    """Lines for jobs in the order of their submission; what they wait for may be `under_way` already."""
    if not jobs:
        return []
    kinds = Counter(job.kind for job in jobs)
    counts = ", ".join(f"{count} to {kind}" for kind, count in kinds.items())
    train = plan.suite.slurm.of("train")
    if train.runs_per_job > 1 and "train" in kinds:
        counts += f"; {train.runs_per_job} runs a job, {train.processes} at a time"
    lines = [f"  {len(jobs)} jobs to submit: {counts}", *Resources(plan).told(jobs)]
    waits = _Waits(jobs, under_way)
    if len(waves := _sizes_of_waves(jobs, under_way)) > 1:
        lines.append(
            f"  training goes in {len(waves)} waves, each after all of the one before: {', '.join(waves)} jobs"
        )
    return [*lines, *(f"    {job.name}{waits.told(job)}" for job in jobs)]


def _sizes_of_waves(jobs: Sequence[PlannedJob], under_way: Sequence[Job]) -> list[str]:
    """How many jobs each wave of training has; none without training."""
    train = [job for job in jobs if job.kind == "train"]
    ids = {job.key: "" for job in jobs if job.kind == "prepare"} | {job.key: job.id for job in under_way}
    return [str(len(wave)) for wave in divided(train, ids).waves] if train else []


class _Waits:
    """What jobs wait for, in words."""

    def __init__(self, jobs: Sequence[PlannedJob], under_way: Sequence[Job]) -> None:
        keys = {job.id: job.key for job in under_way}
        self._ids = {job.key: job.id for job in under_way}
        self._names = {job.key: f"{job.name} ({job.id}, under way)" for job in under_way}
        self._names |= {one.key: job.name for job in jobs for one in job.each}
        self._before: dict[str, set[str]] = {}
        for known in under_way:
            ids = (*known.submitted["after"], *known.submitted["needs"])
            self._before[known.key] = {keys[id] for id in ids if id in keys}
        self._before |= {one.key: {*job.after, *job.needs} for job in jobs for one in job.each}
        self._others = len(jobs) > 1

    def told(self, job: PlannedJob) -> str:
        """What a job waits for, without what that waits for itself."""
        keys = [key for key in (*job.after, *job.needs) if key in self._names]
        if job.kind == "report":
            count = len({self._ids[key] for key in keys if key in self._ids})
            going = f"{count} jobs under way" if count else ""
            return " after " + " and ".join(filter(None, ["all of these" if self._others else "", going]))
        earlier = {before for key in keys for before in self._before[key]}
        names = dict.fromkeys(self._names[key] for key in keys if key not in earlier)
        return f" after {', '.join(names)}" if names else ""
