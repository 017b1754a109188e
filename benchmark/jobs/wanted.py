"""Whether anybody still wants what a job did not do; it may have been done since, or the suite was edited."""

from __future__ import annotations

from collections.abc import Mapping

from benchmark.downstream.tasks import scored_stages
from benchmark.jobs.plan import data_key, plan_keys, score_key
from benchmark.jobs.states import JobState, RunState
from benchmark.settings.suite import Suite
from benchmark.training.method import Build


def is_wanted(job: JobState, suite: Suite, states: Mapping[str, RunState], build: Build) -> bool:
    """Whether a job that ends no run's training is for something that is still to come of these runs, by their ids."""
    kind = job.key.partition("-")[0]
    runs = [states[run] for run in job.serves if run in states]
    if kind == "data":
        return any(data_key(one.config) == job.key for one in states.values() if not one.trained.prepared)
    if kind == "stage":
        return any(one.state != "done" for one in runs)
    if kind == "score":
        return any(_lacks(one, job.key, suite, build) for one in runs)
    if kind == "wait":
        return False  # others wait for its end, however it ends
    return bool(runs) or not job.serves


def _lacks(run: RunState, key: str, suite: Suite, build: Build) -> bool:
    """Whether a run's model of which a job computes the scores lacks some."""
    planned = plan_keys(run.config, build)
    stages = [stage for stage in scored_stages(suite, run.config) if score_key(suite, planned[stage]) == key]
    there = {one.model for one in run.trained.scored if not one.missing}
    return any(stage >= len(run.trained.keys) or run.trained.keys[stage] not in there for stage in stages)
