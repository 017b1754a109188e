"""What `cancel` ends: all jobs of a suite that are under way, or those of some of its runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from benchmark.errors import UserError
from benchmark.jobs import executors
from benchmark.jobs.states import JobState
from benchmark.settings.names import label_of
from benchmark.settings.suite import RunConfig, Suite
from benchmark.store import Store


def cancel(
    suite: Suite, store: Store, chosen: Sequence[RunConfig] | None, as_they_are: bool, dry_run: bool
) -> list[str]:
    """End the jobs of the chosen runs, None for all jobs of the suite, or only say which they are.

    Chosen are these runs `as_they_are`, or all of their labels, whatever their settings. A job that serves other runs
    too goes on, and is told where it is a bundle. Returns what to say, how many they are first. Raises UserError where
    nobody knows which jobs there are.
    """
    runs = None if chosen is None else {run.id if as_they_are else run.label for run in chosen}
    own = executors.of(suite, store)
    ends, told = list[tuple[executors.Executor, list[JobState]]](), list[str]()
    for executor in own:
        known = [job for job in executor.jobs() if job.under_way]
        kept = {job.id for job in known if not _is_of(job, runs)}
        wanted = [job for job in known if _is_of(job, runs)]
        # a bundle has the id of all its jobs
        theirs = [job.history.whose != "mine" for job in wanted]
        found = [job for job, not_mine in zip(wanted, theirs, strict=True) if job.id not in kept and not not_mine]
        if any(theirs):
            told.append(f"{sum(theirs)} jobs of another cluster or user go on: the same command there ends them")
        if any(job.state == "unknown" for job in found):
            raise UserError(f"nothing is ended: {found[0].detail}; try again once Slurm answers")
        told += [f"{job.id}  {job.name}  {job.state}" for job in found] if dry_run else []
        ids = dict.fromkeys(job.id for job in wanted if job.id in kept)
        told += [f"{id} goes on: it trains other runs too" for id in ids]
        ends.append((executor, found))
    for executor, found in ends if not dry_run else []:  # not before all have said what they know
        executor.cancel(found)
    count = _count(job for _, found in ends for job in found)
    if not count:
        return ["no jobs to end; what runs here, outside a cluster, ends with Ctrl-C where it was started", *told]
    if dry_run:
        return [f"{count} jobs would be ended; the same without --dry-run ends them", *told]
    return [f"ended {count} jobs; `python run_all.py run {suite.called}` goes on from their checkpoints", *told]


def _count(jobs: Iterable[JobState]) -> int:
    """How many jobs they are to Slurm, a bundle one."""
    return len({job.id for job in jobs})


def _is_of(job: JobState, runs: set[str] | None) -> bool:
    return runs is None or (bool(job.serves) and all(run in runs or label_of(run) in runs for run in job.serves))
