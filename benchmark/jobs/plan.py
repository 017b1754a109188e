"""The plan of a suite: the jobs that its tables still need, and for which others each of them waits."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

from benchmark import records
from benchmark.downstream.tasks import scored_stages
from benchmark.jobs.payloads import (
    Measure,
    MeasureModels,
    Payload,
    PrepareData,
    RenderReport,
    ScoreModel,
    TrainRun,
    WriteReport,
)
from benchmark.jobs.states import JobState, RunState
from benchmark.jobs.training_graph import Segment, training_graph
from benchmark.settings.base import digest, of_a_row
from benchmark.settings.suite import Data, Domain, RunConfig, Suite, Tokenizer
from benchmark.store import Store
from benchmark.training.keys import stage_keys
from benchmark.training.method import Build, once

MAKES_TOKENS = {"valid_share", "max_train_tokens", "max_valid_tokens"}  # of the settings of data


@dataclass(frozen=True)
class PlannedJob:
    """One job: what it does, and for which others it waits. Jobs of equal keys do the same."""

    key: str
    kind: Literal["prepare", "train", "score", "measure", "report"]
    name: str
    payload: Payload
    after: tuple[str, ...] = ()  # keys of jobs that must have ended, where they are planned or under way
    needs: tuple[str, ...] = ()  # keys of jobs that must have succeeded
    serves: tuple[str, ...] = ()  # ids of the runs that it is for; none where it is for all

    @property
    def members(self) -> tuple[PlannedJob, ...]:
        """The jobs that an executor has made this one of; none where it has not."""
        jobs: tuple[PlannedJob, ...] = getattr(self.payload, "jobs", ())
        return jobs

    @property
    def each(self) -> tuple[PlannedJob, ...]:
        """The jobs that it is made of, or itself."""
        return self.members or (self,)

    @property
    def run(self) -> str | None:
        """The id of the run that it trains to its end, which is its key, if it does."""
        return self.key if self.key in self.serves else None


@dataclass(frozen=True)
class Tables:
    """What a suite's tables want besides training; handed in, because jobs must not import the rooms of tables."""

    measures: tuple[Measure, ...]
    render: RenderReport
    out: Path


@dataclass(frozen=True, kw_only=True)
class LaunchOptions:
    """How a plan is carried out, as the command line says it."""

    retry_failed: bool = False
    parallel: int | None = None  # runs to train side by side on a machine; None: the executor knows
    share_machine: bool = False  # do not wait for other runs under a budget of wall time here


StatesNow = Callable[[], Sequence[RunState]]


@dataclass(frozen=True)
class Now:
    """What can be asked while a plan is carried out.

    These are the states as they are then, for who shows the sweep; and of jobs the ids of those under way that nobody
    wants any more.
    """

    states: StatesNow
    stale: Callable[[Sequence[JobState]], Collection[str]]


@dataclass(frozen=True)
class Plan:
    """What an executor is given. `states` are those of all runs that the tables show."""

    suite: Suite
    states: Sequence[RunState]
    build: Build
    store: Store
    tables: Tables
    options: LaunchOptions = LaunchOptions()
    present: Now | None = None

    @property
    def configs(self) -> tuple[RunConfig, ...]:
        return tuple(state.config for state in self.states)

    @property
    def wanted(self) -> list[RunState]:
        """The runs to train."""
        return to_train(self.states, self.options.retry_failed)

    @property
    def start_folders(self) -> set[str]:
        """Where the published models lie that runs to train are still to begin with."""
        return {one.config.start.folder for one in self.wanted if one.config.start and not one.trained.stages}

    @property
    def left_out(self) -> int:
        """How many failed runs are left as they are."""
        wanted = {state.config.id for state in self.wanted}
        return sum(state.state == "failed" and state.config.id not in wanted for state in self.states)

    @cached_property
    def segments(self) -> list[Segment]:
        """The training that is missing; what runs share once and first."""
        done = {state.config.id: state.trained.stages for state in self.wanted}
        runs = [(state.config, self.keys[state.config.id]) for state in self.wanted]
        return training_graph(runs, lambda config, stage: done[config.id] > stage)

    @cached_property
    def keys(self) -> dict[str, list[str]]:
        """A key of each stage of each run by the run's id; they agree where stages are shared."""
        build = once(self.build)
        return {config.id: plan_keys(config, build) for config in self.configs}

    def _trainers(self, known: Sequence[JobState]) -> dict[str, str]:
        """The key of the job that will train a stage, by the stage's: one of the plan, or one under way."""
        going = _going(known)
        found: dict[str, str] = {}
        for run, keys in self.keys.items():
            ends = run if run in going else None
            for key in reversed(keys):  # of several, the one that ends first
                ends = shared if (shared := f"stage-{key}") in going else ends
                if ends:
                    found.setdefault(key, ends)
        return found | {stage: segment.key for segment in self.segments for stage in segment.stages}

    @cached_property
    def _users(self) -> dict[str, tuple[str, ...]]:
        """The ids of the runs that have a stage, by the stage's key."""
        found: dict[str, list[str]] = {}
        for run, keys in self.keys.items():
            for key in keys:
                found.setdefault(key, []).append(run)
        return {key: tuple(runs) for key, runs in found.items()}

    def jobs(self, known: Sequence[JobState] = ()) -> list[PlannedJob]:
        """All jobs that are neither over nor under way by what is `known`, each after those that it waits for.

        They prepare data, train, score, measure, and then render a report of what there is, which waits for no job that
        nobody wants any more.
        """
        under_way = {job.key: job for job in known if job.under_way}
        stale = self.present.stale(known) if self.present else set[str]()
        first, trainers = [*self._preparing(known), *self._training(known)], self._trainers(known)
        planned = [*first, *self._scoring(known, trainers), *self._measuring(known, trainers)]
        new = [job for job in planned if job.key not in under_way]
        if not new and not self._lacks_report(known, stale):
            return []
        runs = {config.id for config in self.configs} | {job.run for job in known}  # a row may be called `data`
        going = (key for key, job in under_way.items() if job.id not in stale)
        every = (*going, *(job.key for job in new))
        before = (key for key in every if key in runs or key.partition("-")[0] not in AT_THE_ENDS)
        payload = WriteReport(
            self.tables.render, self.suite, self.configs, self.store.root.absolute(), self.tables.out.absolute()
        )
        key, name = report_key(self.suite, self.configs), f"{self.suite.name}:report"
        return [*new, PlannedJob(key, "report", name, payload, after=tuple(before))]

    def _lacks_report(self, known: Sequence[JobState], stale: Collection[str]) -> bool:
        """Whether no job will render what others do that are under way, or it did not, and is to be tried again.

        One that renders what the suite no longer is does not count; another takes its place.
        """
        reports = {job.history.submitted: job.state for job in known if job.is_report and job.id not in stale}
        since, going = max(reports, default=0.0), [job for job in known if job.under_way]
        left = [job for job in going if job.id not in stale]
        if not any(job.is_report for job in left):
            left += [job for job in going if job.is_report]
        if any(job.history.submitted > since for job in left):
            return True
        last = reports.get(since)
        return last == "interrupted" or (last == "failed" and self.options.retry_failed)

    def _preparing(self, known: Sequence[JobState]) -> list[PlannedJob]:
        """One for each corpus that is not tokenised; again after a failure only when asked."""
        states = {job.key: job.state for job in known} if not self.options.retry_failed else {}
        runs = {data_key(state.config): state.config for state in self.wanted if not state.trained.prepared}
        name, folder = f"{self.suite.name}:prepare", self.store.root.absolute()
        wanted = {key: config for key, config in runs.items() if states.get(key) != "failed"}
        return [PlannedJob(key, "prepare", name, PrepareData(config, folder)) for key, config in wanted.items()]

    def _training(self, known: Sequence[JobState]) -> list[PlannedJob]:
        """One for each segment, after what trains the shared stages before it, or does so already.

        However those before it end: if they fail, it does their work, from their last checkpoint, and if it fails too
        it says why in its own records. If it needed their success, it would end and say nothing.
        """
        jobs, going = [], _going(known)
        for segment in self.segments:
            shared = (f"stage-{stage}" for stage in reversed(segment.stages))
            before = segment.after or next((key for key in shared if key in going), None)
            runs, scratch = self.store.root.absolute(), self.suite.slurm.scratch
            payload = TrainRun(segment.config, self.build, runs, segment.last_stage, scratch)
            after = (data_key(segment.config), *([before] if before else []))
            jobs.append(PlannedJob(segment.key, "train", segment.name, payload, after, serves=segment.serves))
        return jobs

    def _scoring(self, known: Sequence[JobState], trainers: Mapping[str, str]) -> list[PlannedJob]:
        """One for each model that is to be scored and has been or will be trained, shared ones once."""
        jobs: dict[str, PlannedJob] = {}
        for state in self.states:
            config = state.config
            for stage in scored_stages(self.suite, config):
                model = self.keys[config.id][stage]
                key = score_key(self.suite, model)
                name = f"{self.suite.name}:score-{config.label}-{config.domains[stage].name}"
                payload = ScoreModel(self.suite, config, stage, self.store.root.absolute())
                if (needs := self._trained_by(model, state, stage, key, known, trainers)) is not None:
                    serves = self._users[model]
                    jobs.setdefault(key, PlannedJob(key, "score", name, payload, needs=needs, serves=serves))
        return list(jobs.values())

    def _measuring(self, known: Sequence[JobState], trainers: Mapping[str, str]) -> list[PlannedJob]:
        """One for the models of each run that has been or will be trained to its end."""
        jobs: dict[str, PlannedJob] = {}
        for state in self.states if self.tables.measures else []:
            config, stage = state.config, len(state.config.domains) - 1
            model = self.keys[config.id][stage]
            key = measure_key(self.tables.measures, model)
            name = f"{self.suite.name}:similarity-{config.label}"
            payload = MeasureModels(self.tables.measures, config, self.store.root.absolute())
            if (needs := self._trained_by(model, state, stage, key, known, trainers)) is not None:
                jobs.setdefault(key, PlannedJob(key, "measure", name, payload, needs=needs, serves=self._users[model]))
        return list(jobs.values())

    def _trained_by(
        self, model: str, state: RunState, stage: int, key: str, known: Sequence[JobState], trainers: Mapping[str, str]
    ) -> tuple[str, ...] | None:
        """The keys of jobs that will train a stage's model for job `key`: none if it is trained.

        None stands for no job: there will be no model, or the job is over.
        """
        if state.trained.stages > stage:
            return None if self._is_over(key, state.trained.keys[stage], known) else ()
        return (trainers[model],) if model in trainers else None

    def _is_over(self, key: str, stage: str, known: Sequence[JobState]) -> bool:
        """Whether a job has worked on the model that this stage has now, and is not to be submitted again.

        What the cluster or a user ended is; what failed by its own fault when asked.
        """
        same = [job for job in known if job.key == key]
        since = records.read(self.store.stage_file(stage), records.STAGE)[-1].time if same else 0.0
        over = ("done",) if self.options.retry_failed else ("done", "failed")
        return any(job.state in over and job.history.last_seen > since for job in same)


def _going(known: Sequence[JobState]) -> set[str]:
    """The keys of jobs under way; one whose state is unknown is nothing that Slurm could be told to wait for."""
    return {job.key for job in known if job.under_way and job.state != "unknown"}


AT_THE_ENDS = ("data", "report", "wait")  # what begins the keys of jobs that a report does not wait for


def to_train(states: Iterable[RunState], retry_failed: bool) -> list[RunState]:
    """The runs that `run` is to train: not those that are done or under way, and failed ones only when asked.

    Processes that torchrun has begun again (--max-restarts) go on with a run for whose rows memory was short.
    """
    wanted = ("todo", "interrupted", "failed") if retry_failed else ("todo", "interrupted")
    again = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0)) > 0
    return [state for state in states if state.state in wanted or (again and state.short_of_memory)]


def plan_keys(config: RunConfig, build: Build) -> list[str]:
    """Stage keys that can be known before the text is tokenised: they agree where the real ones do."""
    texts = _planned_texts(config.domains, config.tokenizer, config.data)
    return stage_keys(config, build(config.method, config.options), texts)


@of_a_row
def _planned_texts(domains: Sequence[Domain], tokenizer: Tokenizer, data: Data) -> list[str]:
    made = {"tokenizer": tokenizer.model_dump(mode="json"), "data": data.model_dump(mode="json", include=MAKES_TOKENS)}
    return [digest([domain.model_dump(mode="json"), made]) for domain in domains]


def score_key(suite: Suite, model: str) -> str:
    """The key of the job that scores a model on the suite's tasks."""
    return f"score-{model}-{_of_tasks(suite)}"


@of_a_row
def _of_tasks(suite: Suite) -> str:
    return digest(suite.model_dump(mode="json", include={"tasks", "finetuning"}))


def measure_key(measures: Iterable[Measure], model: str) -> str:
    """The key of the job that measures the models of a run, by its last."""
    return f"similarity-{model}-{digest([measure.module for measure in measures])}"


def report_key(suite: Suite, configs: Iterable[RunConfig]) -> str:
    """The key of the job that renders these runs: a hash of all that shows in a report besides records."""
    shown = suite.model_dump(mode="json", include={"name", "title", "tables", "paper", "tasks", "finetuning"})
    runs = sorted((config.row_index, config.id) for config in configs)
    of_rows = {id(texts): texts for config in configs for texts in (config.domains, config.probes)}
    labels = sorted({(text.name, text.label) for texts in of_rows.values() for text in texts})
    return f"report-{digest([shown, runs, labels])}"


def data_key(config: RunConfig) -> str:
    """A hash of what a corpus is made from."""
    return _data_key(config.domains, config.tokenizer, config.data, config.probes)


@of_a_row
def _data_key(domains: Sequence[Domain], tokenizer: Tokenizer, data: Data, probes: Sequence[Domain]) -> str:
    both = {"domains": domains, "probes": probes}
    texts = {name: [one.model_dump(mode="json") for one in each] for name, each in both.items()}
    made = {"tokenizer": tokenizer.model_dump(mode="json"), "data": data.model_dump(mode="json")}
    return f"data-{digest({**texts, **made})}"
