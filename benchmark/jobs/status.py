"""The text of `status`: a suite's state, once or until no job is left."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Sequence

from benchmark.jobs.states import RunState
from benchmark.jobs.survey import Survey
from benchmark.records import crowded
from benchmark.settings.config import Suite
from benchmark.settings.units import duration

SECONDS = 5.0  # between two questions to executors


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


def table(suite: Suite, states: Sequence[RunState], others: Sequence[str] = ()) -> str:
    """A line for each run, and then other lines."""
    rows = [("run", "state", "job", "node", "charged", "", "log")]
    for one in states:
        detail = one.detail + (f"; started again {one.restarts} times" if one.restarts else "")
        job, node, log = (one.job.id, one.job.history.node, one.job.history.log) if one.job else ("", "", "")
        rows.append((one.config.label, one.state, job, node, duration(one.trained.seconds), detail, log))
    columns = [column for column in zip(*rows, strict=True) if any(column[1:])]
    widths = [max(map(len, column)) for column in columns]
    padded = [[cell.ljust(width) for cell in column] for column, width in zip(columns, widths, strict=True)]
    lines = ["  ".join(cells).rstrip() for cells in zip(*padded, strict=True)]
    counts = Counter(one.state for one in states)
    summary = ", ".join(f"{count} {state}" for state, count in counts.items())
    return "\n".join([f"{suite.name}: {suite.title}: {len(states)} runs, {summary}", *lines, *others])


def notes(survey: Survey, states: Sequence[RunState]) -> list[str]:
    """What else `status` has to say: jobs that are no run, and hardware that makes wall times incomparable."""
    others = [job for job in survey.jobs.values() if not job.run and job.under_way]
    running = [job for job in others if job.state == "running"]
    found = [f"{job.name}  running  {job.id}  {job.history.node}" for job in running]
    if len(running) < len(others):
        found.append(f"{len(others) - len(running)} other jobs wait")
    for job in survey.failed_jobs():
        found.append(f"{job.name}  failed  {job.id}  {job.detail}; log {job.history.log}")
    return [*found, *different_hardware(states), *lacked_cores(states)]


def lacked_cores(states: Sequence[RunState]) -> list[str]:
    """A warning for each run under a budget of wall time that other programs slowed."""
    return [
        f"! {one.config.label}: {stage.begun['domain']} had {share}: its wall time bought less"
        for one in states
        for stage in one.stages
        if stage.done and (share := crowded([stage.done]))
    ]


def different_hardware(states: Sequence[RunState]) -> list[str]:
    """A warning if runs under a budget of wall time did not have the same machines to themselves."""
    rows: dict[str, list[str]] = {}
    for one in states:
        for stage in one.stages:
            machine = stage.begun["provenance"]["hardware"]
            name = f"{machine['count']} x {machine['device']}"
            name += " beside others" if machine.get("exclusive") is False else ""
            if (others := machine.get("side_by_side", 1)) > 1:
                name += f", {len(machine['own_cores'])} of its cores for each of {others} runs"
            rows.setdefault(name, []).append(one.config.row)
    if len(rows) < 2:
        return []
    parts = [f"{name} ({', '.join(dict.fromkeys(labels))})" for name, labels in rows.items()]
    return [f"! wall times cannot be compared, hardware differs: {'; '.join(parts)}"]
