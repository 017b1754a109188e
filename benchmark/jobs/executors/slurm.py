"""Slurm: a suite's missing training as one array of jobs, whose tasks wait for the stages that they share.

One array, so that its `array_parallelism` is a cap on all training jobs of the suite. Jobs are submitted held, noted
in the suite's folder, given their names and dependencies, and let go. Whoever submits may die in between: the next
call finishes what it finds half done, and submits nothing that is done or under way.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import filelock

from benchmark import records
from benchmark.jobs.plan import Plan, PlannedJob
from benchmark.jobs.slurm import commands, job_files
from benchmark.jobs.slurm.commands import Queued, SlurmError
from benchmark.jobs.slurm.job_files import Ended, Job
from benchmark.jobs.states import History, JobState, StateName
from benchmark.settings.config import ConfigError, Suite
from benchmark.store import Store

if TYPE_CHECKING:
    from benchmark.jobs.slurm.submission import Sent

HIDDEN = ("srun_args", "additional_parameters")  # parameters that a dry run does not show
LEFT = "held, left so by a submission that died"
SHOWN = 20  # ids in a line


class SlurmExecutor:
    """Submits jobs of one suite and returns; nothing depends on the process that did."""

    def __init__(self, suite: Suite, store: Store) -> None:
        self.suite, self.code = suite, store.root.absolute() / "code"
        self.folder = job_files.folder_of(store.root.absolute(), suite.name)
        self.gpus = suite.slurm.gpus

    def describe(self, plan: Plan) -> list[str]:
        """How many jobs `execute` would submit, what training asks for, and each job with what it waits for."""
        self._check(plan)
        known = job_files.read(self.folder)
        queue = commands.queue() if any(not job.end for job in known) else {}
        held = [job.id for job in known if self._is_begun(job, queue)]
        jobs = plan.jobs(self._states(known, queue))
        if not jobs and not held:
            return []
        kinds = Counter(job.kind for job in jobs)
        counts = ", ".join(f"{count} to {kind}" for kind, count in kinds.items())
        lines = [f"  {len(jobs)} jobs to submit: {counts}"] if jobs else []
        if held:
            lines.append(f"  {len(held)} held jobs of a submission that died to let go: {', '.join(held[:SHOWN])}")
        if "train" in kinds:
            asked = self._parameters("train", plan)
            shown = (f"{key} {value}" for key, value in asked.items() if value and key not in HIDDEN)
            lines.append(f"  jobs: {', '.join(shown)}")
        names = {job.key: job.name for job in jobs}
        for job in jobs:
            last = [names[key] for key in (*job.after, *job.needs) if key in names][-1:]
            after = " after all of these" if job.kind == "report" else f" after {last[0]}" if last else ""
            lines.append(f"    {job.name}{after}")
        return lines

    def execute(self, plan: Plan) -> int:
        """Submit what is missing, and print its ids. When two calls come at once the second finds the first's jobs."""
        self._check(plan)
        self.folder.mkdir(parents=True, exist_ok=True)
        with filelock.FileLock(self.folder / "lock"):
            queue = commands.queue()
            known = job_files.read(self.folder)
            self._finish_what_was_begun(known, queue)
            ids = {job.key: job.id for job in known if job.id in queue}
            submitted: list[Job] = []
            for kind, jobs in groupby(plan.jobs(self._states(known, queue)), key=lambda job: job.kind):
                new = self._send(list(jobs), self._parameters(kind, plan), ids)
                ids |= {job.key: job.id for job in new}
                submitted += new
        for job in submitted:
            after = job.submitted["after"] + job.submitted["needs"]
            print(f"{job.id}  {job.name}" + (f"  after {', '.join(after)}" if after else ""))
        if not submitted:
            print("nothing to submit: all runs are done or under way")
        print(f"`run_all.py status {self.suite.name}` says how they do")
        return 0

    def jobs(self) -> list[JobState]:
        """The jobs as Slurm and the job files know them; without an answer from Slurm what the files know, and no more.

        What a submission that died before it noted it has left held is among them.
        """
        known = job_files.read(self.folder)
        try:
            return self._states(known, commands.queue() if self.folder.exists() else {})
        except SlurmError as error:
            logging.warning("%s: what follows is from the records alone", error)
            return self._states(known, None)

    def cancel(self, jobs: Sequence[JobState]) -> None:
        commands.cancel([job.id for job in jobs])

    def _states(self, known: Sequence[Job], queue: Mapping[str, Queued] | None) -> list[JobState]:
        """The state of each job, by Slurm's queue; None where it does not answer."""
        if queue is None:
            return [_unanswered(job) for job in known]
        held = set() if self._is_submitting() else {job.id for job in known if self._is_begun(job, queue)}
        states = [
            dataclasses.replace(state, state="held", detail=f"{LEFT}: `run` lets it go") if state.id in held else state
            for state in states_of(known, queue)
        ]
        return states if self._is_submitting() else [*states, *self._unnoted(known, queue)]

    def _unnoted(self, known: Sequence[Job], queue: Mapping[str, Queued]) -> list[JobState]:
        """Held jobs and arrays of this suite that were submitted and never noted, by their batch scripts."""
        noted, logs = {job.array for job in known}, f"{self.folder}/"
        arrays = {
            id.partition("_")[0]: None
            for id, job in queue.items()
            if job.waits and job.script.startswith(logs) and id.partition("_")[0] not in noted
        }
        detail = f"{LEFT} before it noted it: `run_all.py cancel {self.suite.name}` ends it"
        return [
            JobState(id, f"unnoted-{id}", f"{self.suite.name}:?", "held", detail, History("none", 0.0)) for id in arrays
        ]

    def _is_begun(self, job: Job, queue: Mapping[str, Queued]) -> bool:
        """Whether it was submitted and noted, but never let go."""
        return not job.released and job.id in queue and queue[job.id].waits

    def _is_submitting(self) -> bool:
        """Whether a process submits jobs of this suite at this moment."""
        lock = filelock.FileLock(self.folder / "lock")
        try:
            with lock.acquire(timeout=0) if self.folder.exists() else contextlib.nullcontext():
                return False
        except filelock.Timeout:
            return True

    def _parameters(self, kind: str, plan: Plan) -> dict[str, Any]:
        """What a kind of job asks of Slurm."""
        if kind == "train":
            return self.suite.slurm.for_training(*(state.config.budget.unit for state in plan.wanted))
        return self.suite.slurm.for_one_process(gpu=kind in ("score", "measure"))

    def _check(self, plan: Plan) -> None:
        """Raises ConfigError for what cannot be submitted."""
        if plan.options.parallel is not None:
            raise ConfigError("--parallel is for one machine; on Slurm set slurm.array_parallelism instead")
        if plan.options.share_machine:
            raise ConfigError("--share-machine is for one machine; on Slurm set slurm.exclusive = false instead")
        processes = self.suite.slurm.processes
        for config in (state.config for state in plan.wanted):
            if config.training.batch_size % processes:
                raise ConfigError(
                    f"training.batch_size {config.training.batch_size} cannot be split over {processes} processes "
                    f"({self.suite.slurm.nodes} nodes of {self.suite.slurm.processes_per_node}): change one of them"
                )

    def _send(self, jobs: Sequence[PlannedJob], parameters: dict[str, Any], under_way: Mapping[str, str]) -> list[Job]:
        """Submit jobs, as one array if there are several. `under_way`: the ids of those before by their keys."""
        from benchmark.jobs.slurm.submission import submit  # torch, which whoever asks for states need not wait for

        sent = submit(jobs, parameters, self.suite, self.folder, self.code)
        noted = self._note(jobs, sent, parameters, under_way)
        self._let_go(noted)
        return noted

    def _note(
        self, jobs: Sequence[PlannedJob], sent: Sequence[Sent], parameters: dict[str, Any], under_way: Mapping[str, str]
    ) -> list[Job]:
        """Write down what was submitted."""
        ids = {**under_way, **{job.key: one.id for job, one in zip(jobs, sent, strict=True)}}
        for job, one in zip(jobs, sent, strict=True):
            what = {"id": one.id, "key": job.key, "name": job.name, "run": job.run, "serves": job.serves}
            # what is not under way has ended
            waits = {"after": [ids[key] for key in job.after if key in ids], "needs": [ids[key] for key in job.needs]}
            how = {"log": one.log, "exclusive": parameters.get("exclusive", False)}
            records.append(self._file(one.id), {"kind": "job", **what, **waits, **how})
        new = [job_files.read_one(self._file(one.id)) for one in sent]
        return [job for job in new if job]

    def _let_go(self, new: Sequence[Job]) -> None:
        for job in new:
            commands.wire(job.id, job.name, after=job.submitted["after"], needs=job.submitted["needs"])
        if new:
            commands.release([job.id for job in new])  # not their array: it may have tasks that nobody noted and wired
        for job in new:
            records.append(self._file(job.id), {"kind": "released"})

    def _finish_what_was_begun(self, known: Sequence[Job], queue: Mapping[str, Queued]) -> None:
        """Let go what a call that died left held."""
        self._let_go([job for job in known if self._is_begun(job, queue)])

    def _file(self, job: str) -> Path:
        return self.folder / f"{job}.jsonl"


FAILURES = ("FAILED", "OUT_OF_MEMORY")  # of a job, which are its own fault; all others are the cluster's or a user's


def states_of(known: Sequence[Job], queue: Mapping[str, Queued]) -> list[JobState]:
    """The jobs as Slurm and they themselves say; where neither does, as sacct remembers."""
    endings = commands.endings(job.id for job in known if job.id not in queue and not job.end)
    return [_state_of(job, queue.get(job.id), endings.get(job.id, "sacct does not say how")) for job in known]


def _state_of(job: Job, queued: Queued | None, ending: str) -> JobState:
    if queued:
        return _state(job, "waiting" if queued.waits else "running", queued.reason if queued.waits else "")
    if job.end:
        return _ended(job, job.end)
    return _state(job, "failed" if ending in FAILURES else "interrupted", f"ended without a word ({ending})")


def _ended(job: Job, end: Ended) -> JobState:
    """The state of a job that has said how it ended."""
    detail = end.get("error", "").strip().rpartition("\n")[2]
    return _state(job, "interrupted" if end["state"] == "stopped" else end["state"], detail, end["time"])


def _unanswered(job: Job) -> JobState:
    """The state of a job while Slurm does not answer: what it has said itself, or unknown."""
    if job.end:
        return _ended(job, job.end)
    begun = job.starts[-1] if job.starts else None
    seen = f"started on {begun['node']}" if begun else "submitted"
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(begun["time"] if begun else job.submitted["time"]))
    return _state(job, "unknown", f"Slurm does not answer; {seen} {when}")


def _state(job: Job, state: StateName, detail: str, ended: float | None = None) -> JobState:
    serves = tuple(job.submitted["serves"])
    return JobState(job.id, job.key, job.name, state, detail, job.history(ended), serves)


EXECUTOR = SlurmExecutor
