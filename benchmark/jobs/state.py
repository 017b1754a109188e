"""The state of each run of a suite, from the store and from what executors say of their jobs.

This module trains nothing.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Literal

from benchmark.data.prepared import plan_text_keys
from benchmark.downstream.tasks import (
    find_example_keys,
    list_scored_stages,
    list_wanted,
    select_scores,
    select_tasks,
)
from benchmark.downstream.zero_shot import ZERO_SHOT, select_zero_shot_scores
from benchmark.jobs import executors
from benchmark.jobs.executors import Job
from benchmark.jobs.work import Measure
from benchmark.ledger import records
from benchmark.ledger.runs import RunRecords, check_other_files
from benchmark.ledger.store import Store
from benchmark.locks import Lease
from benchmark.settings.base import ConfigError
from benchmark.settings.names import make_row_slug
from benchmark.settings.suite import RunConfig, Suite
from benchmark.training.batch_parts import check_method
from benchmark.training.declaration import make_stage_keys, open_ledger
from benchmark.training.method import Build, LifelongMethod
from benchmark.training.progress import Heartbeat, read_heartbeat

# seconds after which a heartbeat is too old, see `benchmark.training.progress`
FRESH = 60.0

ScorePlace = tuple[str, str, str, int]  # task, protocol, prompt and seed


@dataclass(frozen=True)
class Scored:
    """The scores that a model has and lacks."""

    model: str  # the key of its stage
    stage: int
    missing: int  # the number of scores still to compute
    score_count: int = 0
    failed: str = ""  # the error of the last missing score that failed, if any


@dataclass(frozen=True)
class RunState:
    """The state of a run, from its records and from work under way for it.

    A run in state `todo` was never started. The next `run` continues an `interrupted` one.
    """

    config: RunConfig
    view: RunRecords
    state: Literal["todo", "waiting", "running", "unknown", "done", "failed", "interrupted"]
    detail: str = ""
    # a key of each stage, known before text is tokenised. Runs that share a stage have the same key
    planned: tuple[str, ...] = ()
    fraction: float = 0.0  # of the budget of the stage in progress
    scored: tuple[Scored, ...] = ()  # its trained models that the suite's tasks score
    job: Job | None = None  # the last job that trains it

    @property
    def finished(self) -> int:
        """The number of its stages that are done."""
        return self.view.finished

    @property
    def is_prepared(self) -> bool:
        """Whether its text is tokenised."""
        return bool(self.view.texts.keys)


def check_fine_tuning(suite: Suite, config: RunConfig, method: LifelongMethod) -> None:
    """Check, before anything is trained, that a method's own class of model can be fine-tuned.

    Looks at the classes that the method's file names. Raises ConfigError if the suite fine-tunes
    and such a class defines neither `to_plain` nor `make_encoder`.
    """
    trials = []
    for task in suite.tasks:
        trials.extend(suite.finetuning.list_trials(task))
    if all(protocol != "finetune" for protocol, _ in trials):
        return
    # if this module, which imports torch, is not loaded, the method's file has no such class
    extended = sys.modules.get("benchmark.models.kinds.extended")
    if not extended:
        return
    base = extended.ExtendedModel
    modules = [sys.modules[kind.__module__] for kind in type(method).__mro__]
    for value in chain.from_iterable(vars(module).values() for module in modules):
        extends_base = base in getattr(value, "__mro__", ()) and value is not base
        if not extends_base or value.__subclasses__():  # a base of others is no model's own class
            continue
        if value.to_plain is base.to_plain and value.make_encoder is base.make_encoder:
            raise ConfigError(
                f"row {config.row!r}: its model {value.__name__} cannot be fine-tuned on the "
                f"suite's tasks: define {value.__name__}.to_plain or make_encoder in the file of "
                f'method {config.method!r}; or set finetuning.protocols = ["linear_probe"], or '
                "leave the row out"
            )


class Survey:
    """The states of a suite's runs.

    `measures` compute what the suite's tables need of models besides the records of training.
    Raises ConfigError if a run cannot give its method what it asks for, such as its share of memory
    or whole weights, or if its model cannot be fine-tuned on the suite's tasks. Raises RecordsError
    for records that no report accepts, see `check_other_files`.
    """

    def __init__(
        self,
        suite: Suite,
        configs: Sequence[RunConfig],
        build: Build,
        store: Store,
        measures: tuple[Measure, ...] = (),
    ) -> None:
        self.suite = suite
        self.configs = configs
        self.build = build
        self.store = store
        self.ledger = open_ledger(store, build)
        check_other_files(store, suite.name, {config.id for config in configs})
        self.measures = measures
        # held by whoever does the missing work
        self.in_progress = Lease(store.root / "suites" / f"{suite.name}.lock")
        self.jobs: list[Job] = []
        self._job_of: dict[str, Job] = {}  # by the id of a unit
        # one run per row, because the checks do not depend on the seed
        row_configs = {(config.row, str(config.options)): config for config in configs}
        self._methods = {
            row: build(config.method, config.options) for row, config in row_configs.items()
        }
        for row, config in row_configs.items():
            check_method(config, self._methods[row])
            check_fine_tuning(suite, config, self._methods[row])

    def read_states(self) -> list[RunState]:
        """The state of each run now."""
        # a model that several runs share is read once
        self._read_scores = cache(
            lambda key, stage, final: read_scores(
                self.store, self.suite, key, stage, final, self.examples
            )
        )
        self.jobs = []
        for executor in executors.list_used(self.suite, self.store):
            self.jobs += executor.list_jobs(self.suite, self.store)
        self._job_of = {}
        for job in self.jobs:
            self._job_of |= dict.fromkeys(job.units, job)
        self.ledger = open_ledger(self.store, self.build)  # looks at texts again
        self.examples = find_example_keys(self.suite, self.configs, self.store)
        views = self.ledger.view_all(self.configs)
        return [
            self._read_state(config, view) for config, view in zip(self.configs, views, strict=True)
        ]

    def plan_keys(self, config: RunConfig) -> list[str]:
        """Stand-ins for stage keys, known before the text is tokenised.

        Stages with equal stand-ins will have equal keys.
        """
        method = self._methods[config.row, str(config.options)]
        stage_keys = make_stage_keys(config, method, plan_text_keys(config))
        return [stage.key for stage in stage_keys]

    def _read_state(self, config: RunConfig, view: RunRecords) -> RunState:
        """The state of a run with these records."""
        run = RunState(
            config=config,
            view=view,
            state="todo",
            detail=view.why,
            planned=tuple(self.plan_keys(config)),
            job=self._job_of.get(f"train-{config.id}"),
        )
        is_trained = run.finished == len(config.domains)
        is_under_way = run.job and run.job.is_under_way
        is_trained_by_others = is_trained and not view.lines and not is_under_way
        has_ended = isinstance(view.lines[-1], records.RunDone) if view.lines else False
        if is_trained and has_ended:
            run = dataclasses.replace(run, state="done")
        elif is_trained_by_others:
            detail = "another run trained its stages; `run` takes them over"
            run = dataclasses.replace(run, detail=detail)
        else:
            run = self._read_unfinished(run)
        return dataclasses.replace(run, scored=self._read_scored(run))

    def _read_unfinished(self, run: RunState) -> RunState:
        """The state of a run that is not done, from its records, locks, heartbeat and job."""
        job = run.job
        has_records = bool(run.view.lines)
        failure = run.view.failure
        if failure:
            is_retried = job and job.submitted > failure.time
            if not is_retried:
                reason = " ".join(failure.error.split())[:300]
                # `status` shows a failed job with its node, but a job of several runs succeeds even
                # if one of them fails
                detail = f"on {failure.node}: {reason}" if failure.node else reason
                return dataclasses.replace(run, state="failed", detail=detail)
        # a run keeps its last stage locked until it has measured texts that were added later
        stage = min(run.finished, len(run.config.domains) - 1)
        keys = run.view.keys[stage : stage + 1]  # empty if the stage's key is not known yet
        locks = [self.store.stage_folder(key) / "lock" for key in keys]
        is_taken = any(Lease(lock).is_taken() for lock in locks)
        stages_done = f"{run.finished} of {len(run.config.domains)} stages done"
        progress = stages_done
        fraction = 0.0
        beat = self._read_fresh_beat(run) if has_records else None
        if beat:
            progress = str(beat)
            fraction = beat.fraction
        is_alive = beat or is_taken
        if job and job.state == "running" and len(job.units) > 1 and not is_alive:
            detail = _join("its job has not come to it yet", stages_done)
            return dataclasses.replace(run, state="waiting", detail=detail)
        if has_records and is_taken and not (job and job.is_under_way):
            return dataclasses.replace(run, state="running", detail=progress, fraction=fraction)
        if job:
            detail = _join(job.detail, progress if job.state == "running" else stages_done)
            return dataclasses.replace(run, state=job.state, detail=detail, fraction=fraction)
        if has_records:
            return dataclasses.replace(run, state="interrupted", detail=stages_done)
        return run

    def _read_fresh_beat(self, run: RunState) -> Heartbeat | None:
        """The heartbeat of a run in progress, None if the last one is old or of another stage."""
        beat = read_heartbeat(self.store.heartbeat_file(run.config))
        if not beat or beat.stage != run.finished:
            return None
        # a time in the future comes from another clock, and is no sign of a run in progress
        age = time.time() - beat.time
        if 0 <= age <= FRESH:
            return beat
        return None

    def _read_scored(self, run: RunState) -> tuple[Scored, ...]:
        """The scores of each trained model of a run that the suite's tasks score."""
        last_stage = len(run.config.domains) - 1
        models = []
        for stage in list_scored_stages(self.suite, run.config):
            # else its method left the stage out
            if stage < run.finished and run.view.matrix[stage]:
                key = run.view.keys[stage]
                models.append(self._read_scores(key, stage, stage == last_stage))
        return tuple(models)


def find_last_model(survey: Survey, name: str) -> Path:
    """The folder of the last stage of a row's first run.

    `name` is a row or a method. Raises ConfigError unless it names one row, whose first run has
    ended.
    """
    suite = survey.suite
    # reversed, so that each row keeps its first run
    first_runs = {config.row: config for config in reversed(survey.configs)}
    slug = make_row_slug(name)
    rows = [row for row in first_runs if make_row_slug(row) == slug]
    if not rows:
        rows = [row for row, config in first_runs.items() if config.method == name]
    if len(rows) != 1:
        choices = ", ".join(rows or reversed(first_runs))
        raise ConfigError(
            f"--row {name}: {len(rows)} rows of {suite.name} are called so; choose from {choices}"
        )
    config = first_runs[rows[0]]
    [run] = [state for state in survey.read_states() if state.config is config]
    total = len(config.domains)
    if run.finished < total:
        raise ConfigError(
            f"{config.label}: {run.finished} of {total} stages are done: "
            f"`run {suite.command_arguments}` trains the rest"
        )
    return survey.store.stage_folder(run.view.keys[-1])


def read_scores(
    store: Store, suite: Suite, key: str, stage: int, final: bool, examples: Mapping[str, str]
) -> Scored:
    """The scores that a model has and lacks.

    `final` says whether it is the last model of a run. Scores with other settings of fine-tuning do
    not count. `examples`: see `find_example_keys`. Raises RecordsError for a file that is damaged.
    """
    lines = records.read(store.scores_file(key), records.SCORES)
    # an archive has no models, only their scores
    score_lines = records.select_kind(lines, records.ScoreLine)
    has_right_prompts = any(line.prompt == "right" for line in score_lines)
    has_prompts = _has_prompts(store, key) or has_right_prompts
    planned: set[ScorePlace] = set()
    for task in select_tasks(suite, final):
        for trial in list_wanted(task, suite.finetuning, has_prompts, final):
            planned.add((task.name, *trial))
    for name in suite.evaluate.tasks:
        planned.add((name, ZERO_SHOT, "", 0))
    scored: set[ScorePlace] = set()
    for line in select_scores(suite, key, lines, examples):
        scored.add(_find_place(line))
    scored &= planned
    for name in select_zero_shot_scores(suite.evaluate, key, lines):
        scored.add((name, ZERO_SHOT, "", 0))
    missing = planned - scored
    reason = ""
    for failure in records.select_kind(lines, records.UnscoredLine):
        if _find_place(failure) in missing:
            reason = failure.error
    return Scored(
        model=key,
        stage=stage,
        missing=len(planned) - len(scored),
        score_count=len(scored),
        failed=reason,
    )


def _find_place(line: records.ScoreLine | records.UnscoredLine) -> ScorePlace:
    """What identifies a score: scores with equal places are the same score."""
    return line.task, line.protocol, line.prompt, line.seed


def _has_prompts(store: Store, key: str) -> bool:
    """Whether a stage ended with a model that has domain prompts."""
    path = store.stage_folder(key) / "model" / "config.json"
    return path.exists() and bool(json.loads(path.read_bytes()).get("prompts"))


def _join(*parts: str) -> str:
    """The parts that are not empty, in one text."""
    return "; ".join(filter(None, parts))
