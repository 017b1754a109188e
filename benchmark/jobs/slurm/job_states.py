"""How the jobs of a suite are: by Slurm's queue, by what they said themselves, and by Slurm's accounts."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import math
import os
import time
from collections.abc import Mapping, Sequence, Set
from pathlib import Path

from benchmark.errors import shown
from benchmark.jobs.slurm import commands, job_files
from benchmark.jobs.slurm.commands import Queued, SlurmError
from benchmark.jobs.slurm.job_files import Ended, Job
from benchmark.jobs.states import JobState, StateName

CONTROLLER = "controller"  # the file that says whose jobs a cluster's folder holds
FAILURES = ("FAILED", "OUT_OF_MEMORY")  # of a job, which are its own fault; all others are the cluster's or a user's
CURES = {"OUT_OF_MEMORY": ": its processes took more memory than it asked for: set a larger mem in [slurm]"}
# what sacct says of a job that has not ended, for a while also of one that has: its accounts come after the queue
GOING = (
    *("PENDING", "CONFIGURING", "RUNNING", "SUSPENDED", "STOPPED", "RESIZING", "SIGNALING", "COMPLETING"),
    *("STAGE_OUT", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT"),
)


def states_of(known: Sequence[Job], queue: Mapping[str, Queued]) -> list[JobState]:
    """The jobs as Slurm and they themselves say; where neither does, as sacct remembers; unknown while it is silent."""
    known = _read_again(known, queue)
    gone = {job.id for job in known if job.id not in queue and not job.end}
    try:
        endings = commands.endings(gone)
    except SlurmError as error:
        logging.warning("%s: how %d jobs ended is not known", error, len(gone))
        why = "ended without a word, and sacct does not answer how"
        found = [unanswered(job, why) for job in known if job.id in gone]
        return [*found, *states_of([job for job in known if job.id not in gone], queue)]
    begun = {job.file for job in known if job.begun} - _silent_since(known, gone, endings or {})
    ends: dict[tuple[Path, str], float] = {}
    for job in known:
        if job.end:  # those of a bundle end one by one
            ends[job.file.parent, job.id] = max(job.end["time"], ends.get((job.file.parent, job.id), 0.0))
    states = [_state_of(job, queue.get(job.id), endings, job.file in begun) for job in known]
    lost = {
        (job.file.parent, job.id)
        for state, job in zip(states, known, strict=True)
        # a bundle that came to the end of a run succeeds, whatever became of that
        if state.state in ("failed", "interrupted") and not job.is_over
    }
    states = [_if_it_can_start(state, job, lost) for state, job in zip(states, known, strict=True)]
    found = [_with_a_start(state, job, ends) for state, job in zip(states, known, strict=True)]
    return [_if_rendered_since(state, job) for state, job in zip(found, known, strict=True)]


def _silent_since(known: Sequence[Job], gone: Set[str], endings: Mapping[str, str]) -> set[Path]:
    """The files of bundles that failed before the first word of their last start: queued again, they had none begun."""
    failed = [job for job in known if job.begun and job.id in gone and endings.get(job.id) in FAILURES]
    began = commands.began(job.id for job in failed) if failed else {}
    return {job.file for job in failed if began.get(job.id, 0.0) > job.starts[-1]["time"]}


def _if_it_can_start(state: JobState, job: Job, lost: Set[tuple[Path, str]]) -> JobState:
    """A job that waits for another's success which is `lost` is over: Slurm cancels it within seconds."""
    if state.state != "waiting" or not any((job.file.parent, id) in lost for id in job.submitted["needs"]):
        return state
    return dataclasses.replace(state, state="interrupted", detail="what it needs has not succeeded: Slurm cancels it")


def _with_a_start(state: JobState, job: Job, ends: Mapping[tuple[Path, str], float]) -> JobState:
    """A job that failed before its first word began when those had ended that it needed; by their folders and ids."""
    needed = [ends[job.file.parent, id] for id in job.submitted["needs"] if (job.file.parent, id) in ends]
    if state.state != "failed" or job.starts or not needed:
        return state
    return dataclasses.replace(state, history=dataclasses.replace(state.history, started=max(needed)))


def _if_rendered_since(state: JobState, job: Job) -> JobState:
    """A report that its job did not render is done where `report` has since, into the same folder."""
    page = job.submitted.get("page")
    if page and state.state in ("failed", "interrupted"):
        with contextlib.suppress(OSError):  # it is not there, or another user's
            written = os.stat(page).st_mtime
            # one that has said nothing may have waited for others that the page does not show
            since = state.history.last_seen if job.starts else commands.began([job.id]).get(job.id, math.inf)
            if written > since:
                return dataclasses.replace(state, state="done", detail="`report` has rendered it since")
    return state


def _read_again(known: Sequence[Job], queue: Mapping[str, Queued]) -> list[Job]:
    """The jobs, read again where they are gone from the queue: they may have ended between the two questions."""
    files = {job.file for job in known if job.id not in queue and not job.end}
    found = {(job.id, job.key): job for file in files for job in job_files.read_one(file)}
    return [found.get((job.id, job.key), job) for job in known]


def _state_of(job: Job, queued: Queued | None, endings: Mapping[str, str] | None, begun: bool) -> JobState:
    """`begun`: whether any job of its bundle was, since its last start."""
    if job.end and (job.is_over or not queued):
        return _ended(job, job.end)
    if queued and queued.is_held:
        return _state(job, "held", f"{queued.reason or queued.state}: `scontrol release {job.id}` lets it go")
    if queued and queued.waits:
        return _state(job, "waiting", queued.reason)
    if queued:
        still = queued.state.lower() if queued.stands_still else ""
        if job.bundled and not job.begun:
            return _state(job, "waiting", f"its job {f'is {still}' if still else 'trains others first'}")
        return _state(job, "running", still)
    # tasks of an array that were cancelled before they began have no accounts
    silent = "nothing" if endings is not None and job.starts else "sacct does not say how"
    ending = (endings or {}).get(job.id, silent)
    if ending in ("nothing", *GOING):
        return unanswered(job, f"gone from the queue, and sacct still says {ending}")
    # what a bundle had in hand is at fault; all of it where it died before the first
    failed = ending in FAILURES and (job.begun or not begun)
    return _state(job, "failed" if failed else "interrupted", f"ended without a word ({ending}){CURES.get(ending, '')}")


def _ended(job: Job, end: Ended) -> JobState:
    """The state of a job that has said how it ended."""
    detail = end.get("error", "").strip().rpartition("\n")[2]
    return _state(job, "interrupted" if end["state"] == "stopped" else end["state"], detail, end["time"])


def unanswered(job: Job, why: str = "Slurm does not answer") -> JobState:
    """The state of a job while nobody answers: what it has said itself, or unknown.

    One that stopped may be in the queue again: Slurm itself queues those of a lost node.
    """
    if job.end and job.end["state"] != "stopped":
        return _ended(job, job.end)
    begun = job.starts[-1] if job.starts else None
    seen = f"started on {begun['node']}" if begun else "submitted"
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(begun["time"] if begun else job.submitted["time"]))
    return _state(job, "unknown", f"{why}; {seen} {when}")


def unasked(job: Job) -> JobState:
    """The state of a job of another cluster, or of a user whose jobs Slurm does not show, before its end."""
    there = job.submitted["cluster"]
    why = f"user {job.submitted['user']} has submitted it; Slurm does not show others' jobs, and `status` by them tells"
    if job.is_own:
        controller = job.file.with_name(CONTROLLER)
        of = f" ({shown(controller.read_text(encoding='utf-8'))})" if controller.exists() else ""
        why = f"on cluster {there}{of}; `status` there tells"
    state = _state(job, "unknown", why)
    return dataclasses.replace(state, history=dataclasses.replace(state.history, whose="elsewhere"))


def _state(job: Job, state: StateName, detail: str, ended: float | None = None) -> JobState:
    serves = tuple(job.submitted["serves"])
    waits_for = (*job.submitted["after"], *job.submitted["needs"])
    return JobState(job.id, job.key, job.name, state, detail, job.history(ended), serves=serves, waits_for=waits_for)
