"""Carry out what `run` asks for: a plan, told or handed to an executor."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from benchmark.jobs import executors
from benchmark.jobs.dry_run import describe
from benchmark.jobs.plan import LaunchOptions, Now, Plan, Tables
from benchmark.jobs.status import watch
from benchmark.jobs.survey import Survey
from benchmark.settings.base import ConfigError
from benchmark.settings.units import UNITS

LOADED = 2**32  # bytes of weights, which a dry run reads in seconds


def execute(survey: Survey, tables: Tables, options: argparse.Namespace) -> int:
    """Train what is missing, and render; with --dry-run only say what that is. Returns an exit status."""
    if options.dry_run and options.wait:
        raise ConfigError("--wait: with --dry-run nothing begins that could be waited for: leave one of them out")
    timed = any(UNITS[config.budget.unit].is_wall_time for config in survey.configs)
    if options.share_machine and not timed:
        raise ConfigError("--share-machine: runs wait for each other under a budget of wall time alone: leave it out")
    how = LaunchOptions(
        retry_failed=options.retry_failed, parallel=options.parallel, share_machine=options.share_machine
    )
    states = survey.states()
    now = Now(lambda: survey.states(lately=True), survey.stale)
    plan = Plan(survey.suite, states, survey.build, survey.store, tables, how, now)
    executor = executors.find(options.executor)(survey.suite, survey.store)
    if options.dry_run:
        _load_starts(plan)
        print(describe(plan, executor))
        return 0
    if plan.left_out:
        why = f"`python run_all.py status {survey.suite.called}` says why"
        print(
            f"{plan.left_out} runs failed before and are left as they are: {why}; the same command with --retry-failed "
            "tries them again",
            file=sys.stderr,
        )
    code = executor.execute(plan)
    return (watch(survey) or code) if options.wait else code


def _load_starts(plan: Plan) -> None:
    """Raise what a run would over the published models that it would begin with, unless they are large."""
    for folder in sorted(plan.start_folders):
        if sum(path.stat().st_size for path in Path(folder).glob("*.safetensors")) <= LOADED:
            from benchmark.models.transformer import load_network  # torch, which other dry runs need not wait for

            load_network(folder)
