"""Slurm: a suite's missing training as arrays of jobs, whose tasks wait for the stages that they share.

Jobs are submitted held, noted in the suite's folder, given their dependencies, and let go. Whoever submits may die in
between: the next call finishes what it finds half done, and submits nothing that is done or under way.
`benchmark/jobs/slurm/submission.py` makes arrays of them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from itertools import groupby
from typing import TYPE_CHECKING

from benchmark.files import whole_file
from benchmark.jobs.plan import Plan, PlannedJob
from benchmark.jobs.slurm import commands, job_files
from benchmark.jobs.slurm.bundle import bundled
from benchmark.jobs.slurm.commands import Queued, SlurmError
from benchmark.jobs.slurm.description import job_lines
from benchmark.jobs.slurm.job_files import Job
from benchmark.jobs.slurm.job_states import CONTROLLER, states_of, unanswered, unasked
from benchmark.jobs.slurm.private import private_place
from benchmark.jobs.slurm.requests import Request, exceeded
from benchmark.jobs.slurm.resources import Resources, asked_by
from benchmark.jobs.states import History, JobState
from benchmark.locks import Lease
from benchmark.settings.base import ConfigError
from benchmark.settings.suite import RunConfig, Suite
from benchmark.settings.units import UNITS
from benchmark.store import Store

if TYPE_CHECKING:
    from benchmark.jobs.slurm.submission import Destination, Submission

LEFT = "held, left so by a submission that died"
SHOWN = 20  # ids and jobs in a list
PARTIAL = 3  # exit status


class SlurmExecutor:
    """Submits jobs of one suite and returns; nothing depends on the process that did."""

    def __init__(self, suite: Suite, store: Store) -> None:
        self.suite, self._runs = suite, store.root.absolute()
        self.folder = job_files.folder_of(store.root.absolute(), suite.name)

    def gpus(self, runs: Iterable[RunConfig]) -> float:
        return asked_by(runs, self.suite).of("train").gpus_of_a_run

    def describe(self, plan: Plan) -> list[str]:
        """How many jobs `execute` would submit, what they ask for, and each with what it waits for."""
        self._check(plan)
        known = job_files.read(self.folder)
        queue = self._queue(known) if self.asks else {}
        held = list(dict.fromkeys(job.id for job in known if self._is_begun(job, queue)))
        lost = [] if self._is_submitting() else [job.id for job in self._unnoted(known, queue)]
        jobs = self._jobs(plan, known, queue)
        lines = []
        if held:
            lines.append(f"  {len(held)} held jobs of a submission that died to let go: {', '.join(held[:SHOWN])}")
        if lost:
            count = sum(len(commands.each_task(ids)) for ids in lost)
            lines.append(f"  {count} held jobs that nobody noted, to be ended: {', '.join(lost[:SHOWN])}")
        lines += job_lines(plan, jobs, self._under_way(known, queue))
        return lines + [f"  ! {line}" for line in self._too_many(plan, jobs, queue)]

    def _too_many(self, plan: Plan, jobs: Sequence[PlannedJob], queue: Mapping[str, Queued]) -> list[str]:
        """The limits that these jobs would exceed, where Slurm is there and tells them."""
        requests = [Request((), parameters, "") for _, parameters in Resources(plan).alike(jobs)]
        with contextlib.suppress(SlurmError):
            return exceeded(len(jobs), len(queue), self._settings, self.suite.slurm.account, requests) if jobs else []
        return []

    def execute(self, plan: Plan) -> int:
        """Submit what is missing, and print its ids. When two calls come at once the second finds the first's jobs."""
        self._check(plan)
        self.folder.mkdir(parents=True, exist_ok=True)
        with Lease(self.folder / "lock"):
            vars(self).pop("_cluster", None)  # another cluster may have taken the name meanwhile
            known = job_files.read(self.folder)
            queue = self._queue(known)
            self._finish_what_was_begun(known, queue)
            ids = {job.key: job.id for job in self._under_way(known, queue)}
            jobs = self._jobs(plan, known, queue)
            done = self._submit(jobs, plan, ids) if jobs else None
        return self._told(jobs, done)

    def _under_way(self, known: Sequence[Job], queue: Mapping[str, Queued]) -> list[Job]:
        """The jobs that Slurm can be told to wait for."""
        return [job for job in known if job.id in queue and self._is_here(job) and not job.is_over]

    def _jobs(self, plan: Plan, known: Sequence[Job], queue: Mapping[str, Queued]) -> list[PlannedJob]:
        """The jobs to submit; several runs in one where the suite says so."""
        jobs = plan.jobs(self._states(known, queue))
        first = [job for job in jobs if job.kind == "prepare"]
        bundles = bundled([job for job in jobs if job.kind == "train"], Resources(plan).of)
        return [*first, *bundles, *(job for job in jobs if job.kind not in ("prepare", "train"))]

    def _submit(self, jobs: Sequence[PlannedJob], plan: Plan, ids: Mapping[str, str]) -> Submission:
        """Submit jobs, and let go what was submitted, also where Slurm refuses the rest."""
        from benchmark.jobs.slurm.submission import Submission  # torch, for which who asks for states need not wait

        submission = Submission(self.suite, self._destination(), Resources(plan), ids)
        try:
            for kind, group in groupby(jobs, key=lambda job: job.kind):
                members = list(group)
                if kind == "train":
                    submission.train(members)
                elif kind == "report":
                    submission.after_all(members[0])
                else:
                    submission.follow(members)
            if submission.refusal and not submission.sent:
                raise SlurmError(f"Slurm refused the job:\n{submission.refusal}")
            self._let_go([job for file in submission.noted for job in job_files.read_one(file)])
        except (SlurmError, OSError) as error:
            if not submission.sent:
                raise
            sent = ", ".join(submission.sent)
            raise SlurmError(
                f"submitted, but still held: {sent}; the same command lets them go, or submits them again. {error}"
            ) from None
        return submission

    def _told(self, jobs: Sequence[PlannedJob], done: Submission | None) -> int:
        """Print what was submitted. Returns an exit status: 3 where Slurm took only a part."""
        left = {job.key for job in done.left} & {job.key for job in jobs} if done else set()
        if done:
            print(f"{len(jobs) - len(left)} jobs submitted in {len(done.sent)} calls: {', '.join(done.sent[:SHOWN])}")
            shown = [job for job in jobs if job.key not in left]
            for job in shown[:SHOWN]:
                after = [done.ids[key] for key in (*job.after, *job.needs) if key in done.ids]
                waits = f"  after {', '.join(commands.shortened(after)[:3])}" if after else ""
                print(f"  {done.ids[job.key]}  {job.name}{waits}")
            if len(shown) > SHOWN:
                print(f"  and {len(shown) - SHOWN} more")
        else:
            print("nothing to submit: all runs are done or under way")
        if left and done:
            print(f"! Slurm took no more: {len(left)} jobs are left; `run` again submits them ({done.refusal})")
        print(f"next: `python run_all.py status {self.suite.called}` says how they do")
        return PARTIAL if left else 0

    def jobs(self) -> list[JobState]:
        """The jobs as Slurm and the job files know them; without an answer from Slurm what the files know, and no more.

        What a submission that died before it noted it has left held is among them.
        """
        known = job_files.read(self.folder)
        try:
            return self._states(known, self._queue(known) if self.asks else {})
        except SlurmError as error:
            logging.warning("%s: what follows is from the records alone", error)
            return self._states(known, None)

    @property
    def asks(self) -> bool:
        return self.folder.exists()

    def cancel(self, jobs: Sequence[JobState]) -> None:
        commands.cancel([job.id for job in jobs])

    def _states(self, known: Sequence[Job], queue: Mapping[str, Queued] | None) -> list[JobState]:
        """The state of each job, by Slurm's queue; None where it does not answer."""
        if queue is None:
            return [unanswered(job) for job in known]
        held = set() if self._is_submitting() else {job.id for job in known if self._is_begun(job, queue)}
        states = [
            dataclasses.replace(state, state="held", detail=f"{LEFT}: `run` lets it go") if state.id in held else state
            for state in states_of([job for job in known if self._is_told(job, queue)], queue)
        ]
        states += [unasked(job) for job in known if not self._is_told(job, queue)]
        return states if self._is_submitting() else [*states, *self._unnoted(known, queue)]

    def _unnoted(self, known: Sequence[Job], queue: Mapping[str, Queued]) -> list[JobState]:
        """Held jobs and arrays of this suite that were submitted and never noted, by their batch scripts."""
        noted, logs = {job.id for job in known}, f"{private_place(self.folder)}/"
        ids = [id for id, job in queue.items() if job.waits and job.script.startswith(logs) and id not in noted]
        detail = f"{LEFT} before it noted it: `run` ends it, and submits what is missing"
        name, history = f"{self.suite.name}:?", History("none", 0.0)
        return [JobState(id, f"unnoted-{id}", name, "held", detail, history) for id in commands.shortened(ids)]

    def _is_begun(self, job: Job, queue: Mapping[str, Queued]) -> bool:
        """Whether this user submitted and noted it here, but never let it go."""
        mine = job.is_own and not job.released and self._is_here(job)
        return mine and job.id in queue and queue[job.id].is_held

    def _queue(self, known: Sequence[Job]) -> dict[str, Queued]:
        """What Slurm has of this user's jobs, and of those of others who have submitted some of the suite."""
        return commands.queue(*sorted({job.submitted["user"] or 0 for job in known if not job.end and not job.is_own}))

    @cached_property
    def _settings(self) -> dict[str, str]:
        """The controller's."""
        return commands.configuration()

    @cached_property
    def _cluster(self) -> str:
        """This cluster's name; with what tells it from another of that name, which has submitted here first."""
        name, own = commands.cluster(self._settings), commands.controller(self._settings)
        first = self.folder / name / CONTROLLER
        known = first.read_text(encoding="utf-8") if first.exists() else own
        return name if known == own else f"{name}-{hashlib.sha256(own.encode()).hexdigest()[:6]}"

    def _is_here(self, job: Job) -> bool:
        """Whether it was submitted to this cluster: elsewhere its id is another's."""
        return not job.submitted["cluster"] or job.submitted["cluster"] == self._cluster

    def _is_told(self, job: Job, queue: Mapping[str, Queued]) -> bool:
        """Whether its absence from the queue would say that it has ended."""
        if job.end or not self._is_here(job):
            return bool(job.end)
        hidden = not job.is_own and job.id not in queue and "jobs" in self._settings.get("PrivateData", "")
        return not hidden

    def _destination(self) -> Destination:
        from benchmark.jobs.slurm.submission import Destination

        cluster = self._cluster
        if not (first := self.folder / cluster / CONTROLLER).exists():
            with whole_file(first) as file:
                file.write(commands.controller(self._settings).encode())
        largest, code = commands.largest_array(self._settings), private_place(self._runs / "code")
        return Destination(cluster, largest, self.folder / cluster, private_place(self.folder) / cluster / "logs", code)

    def _is_submitting(self) -> bool:
        """Whether a process submits jobs of this suite at this moment."""
        return self.folder.exists() and Lease(self.folder / "lock").is_taken()

    def _check(self, plan: Plan) -> None:
        """Raises ConfigError for what cannot be submitted."""
        if plan.options.parallel is not None:
            raise ConfigError("--parallel is for one machine; on Slurm set slurm.array_parallelism instead")
        if plan.options.share_machine:
            raise ConfigError("--share-machine is for one machine; on Slurm set slurm.exclusive = false instead")
        wanted = [state.config for state in plan.wanted]
        timed = [unit for unit in {config.budget.unit for config in wanted} if UNITS[unit].is_wall_time]
        for config in wanted:
            train, rows = asked_by([config], self.suite).of("train"), config.training.batch_size
            if train.runs_per_job > 1:
                exclusive = train.takes_whole_nodes(*timed)  # "user" and the like leave others on the node
                if timed and train.processes > 1 and exclusive is not True:
                    raise ConfigError(
                        f"slurm.exclusive = {json.dumps(exclusive)}: under a budget in seconds the {train.processes} "
                        "runs at a time of a job need cores of their own: leave slurm.exclusive out, or set "
                        "slurm.ntasks_per_node = 1"
                    )
            elif rows % train.processes:
                raise ConfigError(
                    f"training.batch_size {rows} cannot be split over {train.processes} "
                    f"processes ({train.nodes} nodes of {train.processes_per_node}): change one of them"
                )

    def _let_go(self, new: Sequence[Job]) -> None:
        """Say what single tasks wait for, and release them."""
        noted = list({job.id: job for job in new}.values())  # those of a bundle wait for the same
        if not noted:
            return
        unwired = [job for job in noted if not job.submitted["wired"]]

        ids = {job.id: job for job in unwired}

        def depth(job: Job) -> int:
            return 1 + max((depth(ids[id]) for id in job.submitted["after"] if id in ids), default=0)

        def waits(job: Job) -> tuple[int, list[str], list[str]]:
            return -depth(job), job.submitted["after"], job.submitted["needs"]

        # Last things first: Slurm 22.05 sees a circle where a task is to wait for one of the same array that has been
        # told to wait before.
        for (_, after, needs), alike in groupby(sorted(unwired, key=waits), key=waits):
            commands.wire([job.id for job in alike], after, needs)
        # not their arrays: these may have tasks that nobody noted and wired
        commands.release([job.id for job in noted])
        job_files.append_each({job.file: [{"kind": "released"}] for job in noted})

    def _finish_what_was_begun(self, known: Sequence[Job], queue: Mapping[str, Queued]) -> None:
        """Let go what a call that died left held, and end what it had not noted: nobody knows what that does."""
        self._let_go([job for job in known if self._is_begun(job, queue)])
        commands.cancel([job.id for job in self._unnoted(known, queue)])


EXECUTOR = SlurmExecutor
