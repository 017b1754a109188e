"""What `cancel` ends: all jobs of a suite that are under way, or those of some of its runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from benchmark.errors import UserError
from benchmark.jobs import executors
from benchmark.jobs.states import JobState
from benchmark.run_description import label_of
from benchmark.settings.config import RunConfig, Suite
from benchmark.store import Store


def cancel(suite: Suite, store: Store, runs: Sequence[RunConfig] | None, dry_run: bool) -> Iterator[str]:
    """End the jobs of these runs, None for all jobs of the suite, or only say which they are; a line for each.

    A job that serves other runs too goes on, and is told where it is a bundle. Raises UserError where nobody knows
    which jobs there are.
    """
    labels = None if runs is None else {run.label for run in runs}
    count = 0
    for executor in executors.of(suite, store):
        known = [job for job in executor.jobs() if job.under_way]
        kept = {job.id for job in known if not _is_of(job, labels)}
        wanted = [job for job in known if _is_of(job, labels)]
        # a bundle has the id of all its jobs
        found = [job for job in wanted if job.id not in kept and not job.history.elsewhere]
        if elsewhere := sum(job.history.elsewhere for job in wanted):
            yield f"{elsewhere} jobs of another cluster or user go on: the same command there ends them"
        if any(job.state == "unknown" for job in found):
            raise UserError(f"nothing is ended: {found[0].detail}; try again once Slurm answers")
        for job in found if dry_run else ():
            yield f"{job.id}  {job.name}  {job.state}"
        if not dry_run:
            executor.cancel(found)
        for id in dict.fromkeys(job.id for job in wanted if job.id in kept):
            yield f"{id} goes on: it trains other runs too"
        count += len({job.id for job in found})
    if not count:
        yield "no jobs to end; what runs here, outside a cluster, ends with Ctrl-C where it was started"
    elif dry_run:
        yield f"{count} jobs would be ended; the same without --dry-run ends them"
    else:
        yield f"ended {count} jobs; `python run_all.py run {suite.called}` goes on from their checkpoints"


def _is_of(job: JobState, labels: set[str] | None) -> bool:
    return labels is None or (bool(job.serves) and all(label_of(run) in labels for run in job.serves))
