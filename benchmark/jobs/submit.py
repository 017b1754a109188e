"""A suite's missing training as Slurm jobs: one array, whose tasks wait for the stages that they share.

One array, so that its `array_parallelism` is a cap on all training jobs of the suite. Jobs are submitted held, noted
in the suite's folder, given their names and dependencies, and let go. Whoever submits may die in between: the next
call finishes what it finds half done, and submits nothing that is done or under way.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import filelock
import submitit
from submitit.core.utils import FailedJobError

from benchmark import records
from benchmark.downstream.scoring import load_tasks, score_stage, scored_stages
from benchmark.instruments.run_models import Measure
from benchmark.jobs import job_files, slurm, snapshot
from benchmark.jobs.job_files import Job, Task
from benchmark.jobs.launch import Preparation, SlurmJob, Training, Work
from benchmark.jobs.planning import RunState, data_key, plan_keys, tasks, to_train
from benchmark.settings.config import ConfigError, RunConfig, Suite, digest
from benchmark.settings.slurm_settings import asks_for_gpus
from benchmark.store import Store
from benchmark.training.processes import World
from benchmark.training.run import Build


@dataclass(frozen=True)
class Report:
    """Render tables and figures from the records that there are; `render` is given the rest."""

    render: Callable[[Sequence[tuple[Suite, Sequence[RunConfig]]], Path, Path], None]
    suite: Suite
    configs: tuple[RunConfig, ...]
    runs: Path
    out: Path
    looks_up: ClassVar[bool] = False

    def __call__(self, world: World, asked_to_stop: Callable[[], bool]) -> None:
        self.render([(self.suite, self.configs)], self.runs, self.out)


@dataclass(frozen=True)
class Scoring:
    """Fine-tune and score the model that a run has after a stage."""

    suite: Suite
    config: RunConfig
    stage: int
    runs: Path
    looks_up: ClassVar[bool] = False

    def __call__(self, world: World, asked_to_stop: Callable[[], bool]) -> None:
        store = Store(self.runs)
        score_stage(self.suite, self.config, self.stage, load_tasks(self.suite, store), store)


@dataclass(frozen=True)
class Measuring:
    """Look into the models that a run has."""

    measures: tuple[Measure, ...]
    config: RunConfig
    runs: Path
    looks_up: ClassVar[bool] = False

    def __call__(self, world: World, asked_to_stop: Callable[[], bool]) -> None:
        for measure in self.measures:
            measure(self.config, Store(self.runs))


@dataclass(frozen=True)
class Order:
    """One job to submit: what squeue will call it, what it does, and for which jobs it waits."""

    key: str
    name: str
    work: Work
    run: str | None = None
    after: tuple[str, ...] = ()  # keys of others, of the same call or under way, that must have ended
    needs: tuple[str, ...] = ()  # that must have succeeded


class Submission:
    """Submits jobs of one suite.

    `report` is the work of the job that renders its tables, when all else has ended; `measures` are what these need
    of its models besides training and scores.
    """

    def __init__(
        self, suite: Suite, store: Store, build: Build, report: Work, measures: tuple[Measure, ...] = ()
    ) -> None:
        self.measures = measures
        self.suite, self.store, self.build, self.report = suite, Store(store.root.absolute()), build, report
        self.folder = job_files.folder_of(self.store.root, suite.name)

    def submit(self, states: Sequence[RunState], retry_failed: bool = False) -> list[Job]:
        """Submit what these runs lack: data, training, scores, similarity, and then a report. Returns the new jobs.

        Of two calls at once the second waits, and finds the first one's jobs.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        with filelock.FileLock(self.folder / "lock"):
            self._look()
            return self._submit(states, retry_failed)

    def _look(self) -> None:
        self.queue = slurm.queue()
        self.known = job_files.read(self.folder)
        self.ids = {job.key: job.id for job in self.known if job.id in self.queue}  # of what is under way

    def _submit(self, states: Sequence[RunState], retry_failed: bool) -> list[Job]:
        self._finish_what_was_begun()
        before = len(self.known)
        wanted = to_train(states, retry_failed)
        self._check([state.config for state in wanted])
        small, settings = self.suite.slurm.for_one_process(), self.suite.slurm
        units = [state.config.budget.unit for state in wanted]
        training = tasks(wanted, self.build)
        self._send([self._preparation(config) for config in unprepared(wanted)], small)
        self._send([self._training(task) for task in training], settings.for_training(*units))
        self._send(self._scoring(states, training, retry_failed), settings.for_one_process(gpu=True))
        self._send(self._measuring(states, training, retry_failed), settings.for_one_process(gpu=True))
        if len(self.known) > before:
            self.ids.pop("report", None)  # one under way does not wait for what is new
            after = tuple(key for key in self.ids if not key.startswith("data-"))
            self._send([Order("report", f"{self.suite.name}:report", self.report, after=after)], small)
        return self.known[before:]

    def _preparation(self, config: RunConfig) -> Order:
        return Order(data_key(config), f"{self.suite.name}:prepare", Preparation(config, self.store.root))

    def _training(self, task: Task) -> Order:
        # However those before it end: if they fail, it does their work, from their last checkpoint, and if it fails too
        # it says why in its own records. If it needed their success, it would end and say nothing.
        work = Training(task.config, self.build, self.store.root, task.last_stage)
        after = (data_key(task.config), *([task.after] if task.after else []))
        return Order(task.key, task.name, work, task.config.id if task.last_stage is None else None, after)

    def _scoring(self, states: Sequence[RunState], training: Sequence[Task], retry_failed: bool) -> list[Order]:
        """One for each model that is to be scored and has been or will be trained, shared ones once."""
        settings = digest(self.suite.model_dump(mode="json", include={"tasks", "finetuning"}))
        trained_by = {key: task.key for task in training for key in task.stages}
        orders: dict[str, Order] = {}
        for state in states:
            config = state.config
            keys = plan_keys(config, self.build)
            for stage in scored_stages(self.suite, config):
                key = f"score-{keys[stage]}-{settings}"
                is_trained = state.stages_done > stage
                if not (is_trained or keys[stage] in trained_by):
                    continue
                if is_trained and self._is_over(key, state.keys[stage], retry_failed):
                    continue
                name = f"{self.suite.name}:score-{job_files.label(config)}-{config.domains[stage].name}"
                needs = () if is_trained else (trained_by[keys[stage]],)
                work = Scoring(self.suite, config, stage, self.store.root)
                orders.setdefault(key, Order(key, name, work, needs=needs))
        return list(orders.values())

    def _measuring(self, states: Sequence[RunState], training: Sequence[Task], retry_failed: bool) -> list[Order]:
        """One for each chain of models that has been or will be trained to its end."""
        trained_by = {key: task.key for task in training for key in task.stages}
        settings = digest([measure.__module__ for measure in self.measures])
        orders: dict[str, Order] = {}
        for state in states if self.measures else []:
            config = state.config
            last = plan_keys(config, self.build)[-1]
            key = f"similarity-{last}-{settings}"
            is_trained = state.stages_done == len(config.domains)
            if is_trained and self._is_over(key, state.keys[-1], retry_failed):
                continue
            if is_trained or last in trained_by:
                name = f"{self.suite.name}:similarity-{job_files.label(config)}"
                needs = () if is_trained else (trained_by[last],)
                work = Measuring(self.measures, config, self.store.root)
                orders.setdefault(key, Order(key, name, work, needs=needs))
        return list(orders.values())

    def _is_over(self, key: str, stage: str, retry_failed: bool) -> bool:
        """Whether a job has looked at the model that this stage has now, and is not to be submitted again."""
        since = records.read(self.store.stage(stage) / "records.jsonl")[-1]["time"]
        ends = [job.end for job in self.known if job.key == key and job.end]
        return any(end["time"] > since and (end["state"] == "done" or not retry_failed) for end in ends)

    def _check(self, runs: Sequence[RunConfig]) -> None:
        processes = self.suite.slurm.processes
        for config in runs:
            if config.training.batch_size % processes:
                raise ConfigError(
                    f"training.batch_size {config.training.batch_size} cannot be split over {processes} processes "
                    f"({self.suite.slurm.nodes} nodes of {self.suite.slurm.processes_per_node}): change one of them"
                )

    def _send(self, orders: Sequence[Order], parameters: dict[str, Any]) -> None:
        """Submit what is not under way, as one array if there are several."""
        orders = [order for order in orders if order.key not in self.ids]
        if not orders:
            return
        exclusive = parameters.get("exclusive", False)
        gpus = asks_for_gpus(parameters)
        work = [SlurmJob(order.work, self.folder, gpus, exclusive) for order in orders]
        name = orders[0].name if len(orders) == 1 else self.suite.name
        try:
            submitted = self._executor(name, parameters).submit_array(work)
        except FailedJobError as error:
            raise slurm.SlurmError(f"Slurm refused the job:\n{error}") from None
        self.ids |= {order.key: job.job_id for order, job in zip(orders, submitted, strict=True)}
        new: list[Job] = []
        for order, job in zip(orders, submitted, strict=True):
            what = {"id": job.job_id, "key": order.key, "name": order.name, "run": order.run}
            waits = {"after": self._ids(order.after), "needs": self._ids(order.needs)}
            how = {"log": str(job.paths.stdout), "exclusive": exclusive}
            records.append(self._file(job.job_id), {"kind": "job", **what, **waits, **how})
            new += filter(None, [job_files.read_one(self._file(job.job_id))])
        self.known += new
        self._let_go(new)

    def _ids(self, keys: Sequence[str]) -> list[str]:
        """Jobs that are under way; what is not has ended."""
        return [self.ids[key] for key in keys if key in self.ids]

    def _executor(self, name: str, parameters: dict[str, Any]) -> submitit.SlurmExecutor:
        code = snapshot.take(self.store.root / "code")
        process = code / "benchmark" / "jobs" / "slurm_process.py"
        python = f"{shlex.quote(sys.executable)} -u {shlex.quote(str(process))}"
        try:
            executor = submitit.SlurmExecutor(
                self.folder / "logs", max_num_timeout=self.suite.slurm.max_num_timeout, python=python
            )
        except RuntimeError:
            raise slurm.SlurmError(
                "no srun here: run this on a machine of the cluster, or use --executor local"
            ) from None
        held = {**parameters["additional_parameters"], "hold": True}
        executor.update_parameters(
            job_name=name, stderr_to_stdout=True, **{**parameters, "additional_parameters": held}
        )
        return executor

    def _let_go(self, new: Sequence[Job]) -> None:
        for job in new:
            slurm.wire(job.id, job.name, job.after, job.needs)
        if new:
            slurm.release([job.id for job in new])  # not their array: it may have tasks that nobody noted and wired
        for job in new:
            records.append(self._file(job.id), {"kind": "released"})

    def _finish_what_was_begun(self) -> None:
        """Let go what a call that died left held."""
        waiting = {job for job, queued in self.queue.items() if queued.waits}
        self._let_go([job for job in self.known if not job.released and job.id in waiting])

    def _file(self, job: str) -> Path:
        return self.folder / f"{job}.jsonl"


def unprepared(states: Sequence[RunState]) -> list[RunConfig]:
    """One run for each corpus that is not tokenised."""
    return list({data_key(state.config): state.config for state in states if not state.prepared}.values())


def cancel_jobs(suite: Suite, runs: Path) -> int:
    """End what Slurm has of a suite. Returns the number of jobs."""
    queue = slurm.queue()
    found = [job.id for job in job_files.read(job_files.folder_of(runs, suite.name)) if job.id in queue]
    slurm.cancel(found)
    return len(found)
