"""Showing a suite's state: once, or until no job is left."""

from __future__ import annotations

import sys
import time

from benchmark.jobs.planning import Survey, notes, table

SECONDS = 5.0  # between two questions to Slurm


def show(survey: Survey) -> int:
    """Print the table of `status`. Returns 1 if a run or another job has failed, else 0."""
    states = survey.states()
    print(table(survey.suite, states, notes(survey, states)), flush=True)
    return int(bool(survey.failed_jobs()) or any(state.state == "failed" for state in states))


def watch(survey: Survey) -> int:
    """Show the table again and again until none of the suite's jobs is left. Returns as `show` does."""
    while True:
        if sys.stdout.isatty():
            print("\033[H\033[2J", end="")  # to the top left corner of an empty screen
        failed = show(survey)
        if not survey.under_way():
            return failed
        time.sleep(SECONDS)
