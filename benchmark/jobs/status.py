"""The text of `status`: a suite's state, once or until no job is left."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import textwrap
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import get_args

from benchmark.jobs.plan import to_train
from benchmark.jobs.scored import unscored
from benchmark.jobs.slurm.commands import shortened
from benchmark.jobs.states import FAILED, UNKNOWN, JobState, RunState, StateName
from benchmark.jobs.survey import PAUSE, Survey
from benchmark.jobs.sweep import sweep_line, to_show
from benchmark.settings.suite import Suite
from benchmark.settings.units import UNITS, duration

LONGEST = 300.0  # seconds between two questions to executors where nothing has changed for long
HERE = 5.0  # the same where no executor asks anybody
SHOWN = 20  # jobs in a list
ENDED = 100  # jobs that a command for a shell names at most, so that it fits one


def show(survey: Survey) -> int:
    """Print the table of `status`. Returns 1 if a run, a job or a score has failed, 3 if a state is unknown, else 0."""
    told, code, then = tell(survey)
    print(f"{told}\n{then}", flush=True)
    return code


def watch(survey: Survey, sleep: Callable[[float], None] = time.sleep) -> int:
    """Show the table again and again until nothing of the suite is under way. Returns as `show` does.

    A state that is unknown ends nothing. The pauses grow where nothing changes.
    """
    pause, before = PAUSE, ""
    while True:
        screen = shutil.get_terminal_size() if sys.stdout.isatty() else None
        told, code, then = tell(survey, screen)
        if screen:
            print("\033[H\033[2J", end="")  # to the top left corner of an empty screen
        print(told, flush=True)
        if not survey.under_way():
            print(then, flush=True)
            return code
        pause = min(LONGEST, pause * 1.5) if told == before else PAUSE
        pause = pause if survey.asked else HERE
        before = told
        sleep(pause)


def tell(survey: Survey, screen: os.terminal_size | None = None) -> tuple[str, int, str]:
    """The text of `status`, shortened to a screen if one is given, its exit status, and what to do next."""
    states = survey.states()
    found = {state.state for state in states} | {job.state for job in survey.other_jobs(*get_args(StateName))}
    code = FAILED if "failed" in found or failed_scores(states) else UNKNOWN if "unknown" in found else 0
    told = table(survey.suite, states, notes(survey, states), summary_of_others(survey), screen)
    return told, code, next_step(survey, states)


def next_step(survey: Survey, states: Sequence[RunState]) -> str:
    """The command that goes on from runs in these states."""
    found, lacks_scores = {state.state for state in states}, unscored(states, survey.other_jobs(*get_args(StateName)))
    command = {name: f"python run_all.py {name} {survey.suite.called}" for name in ("run", "status", "report")}
    as_before = " (with --executor as before)" if survey.jobs else ""
    run = f"`{command['run']}`{as_before}"
    if survey.under_way():
        watch = f"`{command['status']} --watch` shows it again and again until nothing is under way"
        submits = any(job.state in ("waiting", "running") for job in survey.jobs.values())  # else all is here
        runs = bool(to_train(states, retry_failed=False))
        left = [what for what, is_left in (("runs", runs), ("scores", lacks_scores)) if is_left and submits]
        rest = f"the {' and '.join(left)} that are left" if left else "the rest" if lacks_report(survey) else ""
        return f"next: {run} submits {rest}; {watch}" if rest else f"next: {watch}"
    if found == {"done"} and survey.other_jobs("failed"):
        return f"next: `{command['run']} --retry-failed`{as_before} tries again what failed"
    if found == {"done"}:
        report = f"`{command['report']}` renders tables and figures"
        return f"next: {run} scores what is missing" if lacks_scores else f"next: {report}"
    failed = ", with --retry-failed also what failed, from its checkpoints" if "failed" in found else ""
    return f"next: {run} trains what is missing{failed}"


def lacks_report(survey: Survey) -> bool:
    """Whether jobs of a cluster are under way and no report is, which is submitted last: something is left.

    One that renders what the suite no longer is does not count.
    """
    known = [job for job in survey.jobs.values() if job.state in ("waiting", "running")]
    stale = {job.id for job in survey.stale_jobs()[0]}
    return bool(known) and not any(job.is_report and job.id not in stale for job in known)


def summary_of_others(survey: Survey) -> str:
    """How many jobs that are no run do not go well, or are under way."""
    counts = Counter(job.state for job in survey.other_jobs(*get_args(StateName)) if job.state != "done")
    return ", ".join(f"{count} {state}" for state, count in counts.items())


def table(
    suite: Suite,
    states: Sequence[RunState],
    lines_below: Sequence[str] = (),
    others: str = "",
    screen: os.terminal_size | None = None,
) -> str:
    """How far the sweep is, and how many `others` are how; a line for each run, and other lines.

    The column `ap` is AP after the last domain that a run has finished. On a screen lines end at its edge, and of more
    runs than it has lines those are shown that say most.
    """
    summary = f"{suite.name}: {suite.title}: {sweep_line(states)}" + (f"; other jobs: {others}" if others else "")
    if not screen:
        return "\n".join([summary, *_lines(states), *lines_below])
    above = textwrap.wrap(summary, screen.columns)
    below = [part for line in lines_below for part in textwrap.wrap(line, screen.columns)]
    kept, more = to_show(states, screen.lines - len(above) - len(below) - 2)  # a line of titles, and the cursor's
    lines = [line if len(line) <= screen.columns else f"{line[: screen.columns - 1]}…" for line in _lines(kept)]
    return "\n".join([*above, *lines, *filter(None, [more]), *below])


def _lines(states: Sequence[RunState]) -> list[str]:
    """A line of titles, and one for each run."""
    rows = [("run", "state", "job", "node", "charged", "ap", "", "log")]
    for one in states:
        detail = one.detail + (f"; started again {one.restarts} times" if one.restarts else "")
        job, node, log = (one.job.id, one.job.history.node, one.job.history.log) if one.job else ("", "", "")
        ap = f"{one.trained.finished[-1].ap:,.1f}" if one.trained.finished else ""
        rows.append((one.config.label, one.state, job, node, duration(one.trained.seconds), ap, detail, log))
    columns = [column for column in zip(*rows, strict=True) if any(column[1:])]
    widths = [max(map(len, column)) for column in columns]
    padded = [[cell.ljust(width) for cell in column] for column, width in zip(columns, widths, strict=True)]
    return ["  ".join(cells).rstrip() for cells in zip(*padded, strict=True)]


def notes(survey: Survey, states: Sequence[RunState]) -> list[str]:
    """What else `status` has to say: jobs that are no run, and hardware that makes wall times incomparable."""
    found = [
        "  ".join(filter(None, (job.name, "running", job.id, job.history.node, job.detail)))
        for job in survey.other_jobs("running")
    ]
    if waiting := survey.other_jobs("waiting"):
        found.append(f"{len(waiting)} other jobs wait")
    for job in survey.other_jobs("failed", "interrupted", "held", "unknown"):
        log = f"; log {job.history.log}" if job.state in ("failed", "interrupted") else ""
        found.append(f"{job.name}  {job.state}  {job.id}  {job.detail}{log}")
    if len(found) > SHOWN:
        found[SHOWN:] = [f"and {len(found) - SHOWN} more"]
    stale, others = survey.stale_jobs()
    if others:
        which = "them" if len({job.history.called for job in others}) == 1 else "the last of them"
        shows = f"`python run_all.py status {others[-1].history.called}` shows {which}"
        found.append(f"{len({job.id for job in others})} jobs are for runs with other settings: {shows}")
    if stale:
        found.append(stale_note(survey.suite, stale))
    timed = [one for one in states if UNITS[one.config.budget.unit].is_wall_time]
    of_time = [*different_hardware(timed), *lacked_cores(timed), *jumped(timed)]
    return [*found, *failed_scores(states), *of_time, *short_of_memory(states)]


def stale_note(suite: Suite, stale: Sequence[JobState]) -> str:
    """How many jobs are for what the suite no longer asks for, and the command that ends those of this user."""
    ids = list(dict.fromkeys(job.id for job in stale))
    mine = list(dict.fromkeys(job.id for job in stale if job.history.whose == "mine"))
    ends = shlex.join(["scancel", *shortened(mine[:ENDED])])
    them = "them" if len(mine) == len(ids) else "yours"
    which = f"{ENDED} of {them}, and `status` then names others" if len(mine) > ENDED else them
    cures = [f"`{ends}` ends {which}, `python run_all.py cancel {suite.called}` all jobs of the suite"] * bool(mine)
    cures += [f"{len(ids) - len(mine)} are another user's, who can end them"] * (len(ids) > len(mine))
    return f"! {len(ids)} jobs are for what the suite no longer asks for: {'; '.join(cures)}"


def failed_scores(states: Sequence[RunState]) -> list[str]:
    """A warning for each model, shared ones once, that lacks scores that failed when they were tried."""
    found = {
        one.model: f"! {state.config.label}: the model of stage {one.model} lacks scores ({one.missing}), as computing "
        f"them failed: {one.failed}; `run --retry-failed` tries again"
        for state in reversed(states)
        for one in state.trained.scored
        if one.failed
    }
    return [*found.values()]


def lacked_cores(states: Sequence[RunState]) -> list[str]:
    """A warning for each run under a budget of wall time that other programs slowed."""
    return [
        f"! {one.config.label}: {stage.domain} had {stage.crowded}: its wall time bought less"
        for one in states
        for stage in one.stages
        if stage.crowded
    ]


def jumped(states: Sequence[RunState]) -> list[str]:
    """A note for each run under a budget of wall time while which a machine slept, or its time of day was set."""
    return [
        f"! {one.config.label}: in {stage.domain} the machine slept, or its time of day was set, by "
        f"{stage.jumped:,.0f} s in all: none is charged, but times in records are by that clock"
        for one in states
        for stage in one.stages
        if stage.jumped
    ]


def short_of_memory(states: Sequence[RunState]) -> list[str]:
    """A note for each stage that memory did not hold as many rows of a forward pass for as were asked for."""
    return [
        f"! {one.config.label}: in {stage.domain} memory held {rows} rows of a forward pass, fewer than were asked "
        f"for: its results are the same up to rounding; training.micro_batch_size = {rows} asks for so many"
        for one in states
        for stage in one.stages
        if (rows := stage.micro_batch_size)
    ]


def different_hardware(states: Sequence[RunState]) -> list[str]:
    """A warning if runs under a budget of wall time did not have the same machines to themselves."""
    rows: dict[str, list[str]] = {}
    for one in states:
        for stage in one.stages:
            rows.setdefault(stage.machine, []).append(one.config.row)
    if len(rows) < 2:
        return []
    parts = [f"{name} ({', '.join(dict.fromkeys(labels))})" for name, labels in rows.items()]
    return [f"! wall times cannot be compared, hardware differs: {'; '.join(parts)}"]
