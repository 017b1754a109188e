"""Slurm: a suite's missing training as one array of jobs, whose tasks wait for the stages that they share.

One array, so that its `array_parallelism` is a cap on all training jobs of the suite. Jobs are submitted held, noted
in the suite's folder, given their names and dependencies, and let go. Whoever submits may die in between: the next
call finishes what it finds half done, and submits nothing that is done or under way.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, Literal

import filelock

from benchmark import records
from benchmark.jobs.plan import Plan, PlannedJob
from benchmark.jobs.slurm import commands, job_files
from benchmark.jobs.slurm.commands import Queued, SlurmError
from benchmark.jobs.slurm.job_files import Job
from benchmark.jobs.states import JobState
from benchmark.settings.config import ConfigError, RunConfig, Suite
from benchmark.store import Store


class SlurmExecutor:
    """Submits jobs of one suite and returns; nothing depends on the process that did."""

    def __init__(self, suite: Suite, store: Store) -> None:
        self.suite, self.code = suite, store.root.absolute() / "code"
        self.folder = job_files.folder_of(store.root.absolute(), suite.name)
        self.gpus = suite.slurm.gpus

    def describe(self, plan: Plan) -> list[str]:
        """The training jobs with what they ask for and wait for, and in a line each kind of those that come later."""
        if not plan.wanted:
            return []
        asked = self._parameters("train", plan)
        hidden = ("srun_args", "additional_parameters")
        shown = (f"{key} {value}" for key, value in asked.items() if value and key not in hidden)
        lines = [f"  jobs: {', '.join(shown)}"]
        jobs = plan.jobs()
        names = {job.key: job.name for job in jobs}
        for job in jobs:
            if job.kind in ("prepare", "train"):
                last = [names[key] for key in job.after if key in names][-1:]
                lines.append(f"    {job.name}" + (f" after {last[0]}" if last else ""))
        scored = "every stage" if self.suite.finetuning.stages == "every" else "the last stage"
        if self.suite.tasks:
            lines.append(f"    {self.suite.name}:score-... of each model after {scored}, if that was trained")
        if plan.tables.measures:
            lines.append(f"    {self.suite.name}:similarity-... of the models of each run, if all were trained")
        return [*lines, f"    {self.suite.name}:report after all of these"]

    def execute(self, plan: Plan) -> int:
        """Submit what is missing, and print its ids. When two calls come at once the second finds the first's jobs."""
        if plan.options.parallel is not None:
            raise ConfigError("--parallel is for one machine; on Slurm set slurm.array_parallelism instead")
        if plan.options.share_machine:
            raise ConfigError("--share-machine is for one machine; on Slurm set slurm.exclusive = false instead")
        self._check([state.config for state in plan.wanted])
        self.folder.mkdir(parents=True, exist_ok=True)
        with filelock.FileLock(self.folder / "lock"):
            queue = commands.queue()
            known = job_files.read(self.folder)
            self._finish_what_was_begun(known, queue)
            ids = {job.key: job.id for job in known if job.id in queue}
            submitted: list[Job] = []
            for kind, jobs in groupby(plan.jobs(states_of(known, queue)), key=lambda job: job.kind):
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
        """The jobs as Slurm and the job files know them; without an answer from Slurm the files alone."""
        known = job_files.read(self.folder)
        try:
            return states_of(known, commands.queue() if known else {})
        except SlurmError as error:
            logging.warning("%s: what follows is from the records alone", error)
            return states_of(known, {})

    def cancel(self) -> int:
        known = job_files.read(self.folder)
        queue = commands.queue() if known else {}
        found = [job.id for job in known if job.id in queue]
        commands.cancel(found)
        return len(found)

    def _parameters(self, kind: str, plan: Plan) -> dict[str, Any]:
        """What a kind of job asks of Slurm."""
        if kind == "train":
            return self.suite.slurm.for_training(*(state.config.budget.unit for state in plan.wanted))
        return self.suite.slurm.for_one_process(gpu=kind in ("score", "measure"))

    def _check(self, runs: Sequence[RunConfig]) -> None:
        processes = self.suite.slurm.processes
        for config in runs:
            if config.training.batch_size % processes:
                raise ConfigError(
                    f"training.batch_size {config.training.batch_size} cannot be split over {processes} processes "
                    f"({self.suite.slurm.nodes} nodes of {self.suite.slurm.processes_per_node}): change one of them"
                )

    def _send(self, jobs: Sequence[PlannedJob], parameters: dict[str, Any], under_way: Mapping[str, str]) -> list[Job]:
        """Submit jobs, as one array if there are several. `under_way`: the ids of those before by their keys."""
        from benchmark.jobs.slurm.submission import submit  # torch, which whoever asks for states need not wait for

        sent = submit(jobs, parameters, self.suite, self.folder, self.code)
        ids = {**under_way, **{job.key: one.id for job, one in zip(jobs, sent, strict=True)}}
        for job, one in zip(jobs, sent, strict=True):
            what = {"id": one.id, "key": job.key, "name": job.name, "run": job.run}
            # what is not under way has ended
            waits = {"after": [ids[key] for key in job.after if key in ids], "needs": [ids[key] for key in job.needs]}
            how = {"log": one.log, "exclusive": parameters.get("exclusive", False)}
            records.append(self._file(one.id), {"kind": "job", **what, **waits, **how})
        new = [job_files.read_one(self._file(one.id)) for one in sent]
        noted = [job for job in new if job]
        self._let_go(noted)
        return noted

    def _let_go(self, new: Sequence[Job]) -> None:
        for job in new:
            commands.wire(job.id, job.name, after=job.submitted["after"], needs=job.submitted["needs"])
        if new:
            commands.release([job.id for job in new])  # not their array: it may have tasks that nobody noted and wired
        for job in new:
            records.append(self._file(job.id), {"kind": "released"})

    def _finish_what_was_begun(self, known: Sequence[Job], queue: Mapping[str, Queued]) -> None:
        """Let go what a call that died left held."""
        self._let_go([job for job in known if not job.released and job.id in queue and queue[job.id].waits])

    def _file(self, job: str) -> Path:
        return self.folder / f"{job}.jsonl"


FAILURES = ("FAILED", "OUT_OF_MEMORY")  # of a job, which are its own fault; all others are the cluster's or a user's


def states_of(known: Sequence[Job], queue: Mapping[str, Queued]) -> list[JobState]:
    """The jobs as Slurm and they themselves say; where neither does, as sacct remembers."""
    endings = commands.endings(job.id for job in known if job.id not in queue and not job.end)
    return [_state_of(job, queue.get(job.id), endings.get(job.id, "sacct does not say how")) for job in known]


def _state_of(job: Job, queued: Queued | None, ending: str) -> JobState:
    state: Literal["waiting", "running", "done", "failed", "interrupted"]
    ended = None
    if queued:
        state, detail = ("waiting", queued.reason) if queued.waits else ("running", "")
    elif job.end:
        state = "interrupted" if job.end["state"] == "stopped" else job.end["state"]
        detail, ended = job.end.get("error", "").strip().rpartition("\n")[2], job.end["time"]
    else:
        state = "failed" if ending in FAILURES else "interrupted"
        detail = f"ended without a word ({ending})"
    history = job.history(ended)
    return JobState(job.id, job.key, job.name, job.run, state, detail, history)


EXECUTOR = SlurmExecutor
