"""Where a suite's runs stand, by the store, and by what executors say of jobs under way. It trains
nothing.
"""

from __future__ import annotations

import dataclasses
import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import pairwise, takewhile
from pathlib import Path
from typing import Literal

from benchmark import records
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
from benchmark.locks import Lease
from benchmark.metrics import average_perplexity
from benchmark.settings.base import ConfigError, digest
from benchmark.settings.names import make_row_slug
from benchmark.settings.suite import RunConfig, Suite
from benchmark.store import Store
from benchmark.training.batch_parts import check_method
from benchmark.training.identity import Identities, Identity
from benchmark.training.keys import make_stage_keys
from benchmark.training.method import Build
from benchmark.training.progress import read_heartbeat

# seconds in which a run in progress gives a sign of life, see `benchmark.training.progress`
FRESH = 60.0


@dataclass(frozen=True)
class StageState:
    """The state of a stage by its records; without any it has not begun."""

    done: bool = False
    evaluated: bool = False
    ap: float | None = None  # over the domains so far, of one that is done and evaluated something
    charged: Mapping[str, float] = field(default_factory=dict)  # so far, by unit
    begun: records.StageLine | None = None
    wall: float = 0.0  # seconds so far, of evaluations and checkpoints too, but not of breaks


@dataclass(frozen=True)
class Scored:
    """The scores that a model has and lacks."""

    model: str  # the key of its stage
    stage: int
    missing: int  # scores that are still to come
    there: int = 0
    failed: str = ""  # why the last of those that failed, and are still to come, did


@dataclass(frozen=True)
class RunState:
    """Where a run stands. A run in state `todo` was never started; `interrupted` ones go on with
    the next `run`.
    """

    config: RunConfig
    state: Literal["todo", "waiting", "running", "unknown", "done", "failed", "interrupted"]
    detail: str = ""
    planned: tuple[
        str, ...
    ] = ()  # a key of each stage, known before text is tokenised: of a shared one the same
    keys: tuple[str, ...] = ()  # of its stages, where they are known
    stages: tuple[StageState, ...] = ()
    prepared: bool = False  # whether its text is tokenised
    tokens: tuple[int, ...] = ()  # of each domain, where it is
    valid_tokens: int = 0  # that an evaluation reads, where it is
    fraction: float = 0.0  # of the budget of the stage in progress
    scored: tuple[Scored, ...] = ()  # each of its models that the suite's tasks are for
    job: Job | None = None  # the last one
    other_code: int = 0  # stages that its method trained with other code than now

    @property
    def finished(self) -> tuple[StageState, ...]:
        """The stages that are done."""
        return tuple(takewhile(lambda stage: stage.done, self.stages))


class Survey:
    """The states of a suite's runs; `measures` are what its tables want of models besides the
    records of training.

    Raises ConfigError for a run that cannot have what its method asks for: its share of memory,
    whole weights.
    """

    def __init__(
        self,
        suite: Suite,
        configs: Sequence[RunConfig],
        build: Build,
        store: Store,
        measures: tuple[Measure, ...] = (),
    ) -> None:
        self.suite, self.configs, self.build, self.store, self.measures = (
            suite,
            configs,
            build,
            store,
            measures,
        )
        self.in_progress = Lease(
            store.root / "suites" / f"{suite.name}.lock"
        )  # held by whoever does the missing work
        self.jobs: list[Job] = []
        of_rows = {
            (config.row, str(config.options)): config for config in configs
        }  # seeds are alike
        self._methods = {
            row: build(config.method, config.options) for row, config in of_rows.items()
        }
        for row, config in of_rows.items():
            check_method(config, self._methods[row])

    def read_states(self) -> list[RunState]:
        """The state of each run now."""
        self._read_stage = cache(partial(read_stage, self.store))  # runs that share one ask once
        self._read_scores = cache(
            lambda key, stage, final: read_scores(
                self.store, self.suite, key, stage, final, self.examples
            )
        )
        asked = executors.list_used(self.suite, self.store)
        self.jobs = [
            job for executor in asked for job in executor.list_jobs(self.suite, self.store)
        ]
        self._job_of = {unit: job for job in self.jobs for unit in job.units}
        identities, self.examples = (
            Identities(self.store, self.build),
            find_example_keys(self.suite, self.store),
        )
        return [self._read_state(config, identities.identify(config)) for config in self.configs]

    def plan_keys(self, config: RunConfig) -> list[str]:
        """Stage keys that are known before the text is tokenised; two of them are equal where the
        real ones are.
        """
        made = [
            config.tokenizer.model_dump(mode="json"),
            config.data.model_dump(mode="json", include=MAKES_TOKENS),
        ]
        texts = [digest([domain.model_dump(mode="json"), *made]) for domain in config.learned]
        return make_stage_keys(config, self._methods[config.row, str(config.options)], texts)

    def _read_state(self, config: RunConfig, identity: Identity) -> RunState:
        names = tuple(domain.name for domain in config.domains)
        stages = tuple(
            self._read_stage(key, names[: index + 1]) for index, key in enumerate(identity.keys)
        )
        job, other = (
            self._job_of.get(f"train-{config.id}"),
            sum(identity.had_other_code(each.begun) for each in stages),
        )
        known = (
            tuple(self.plan_keys(config)),
            tuple(identity.keys),
            stages,
            identity.prepared,
            identity.sizes,
        )
        held = identity.valid_tokens
        run = RunState(
            config, "todo", identity.why, *known, valid_tokens=held, job=job, other_code=other
        )
        # a kill may come between the last stage's end and the run's
        is_done = len(run.finished) == len(config.domains) and records.select_kind(
            identity.lines, records.EndedLine
        )
        run = (
            dataclasses.replace(run, state="done")
            if is_done
            else self._read_unfinished(run, identity.lines)
        )
        return dataclasses.replace(run, scored=self._read_scored(run))

    def _read_unfinished(self, run: RunState, lines: Sequence[records.LineOfRun]) -> RunState:
        job, failed = (
            run.job,
            lines[-1] if lines and isinstance(lines[-1], records.FailedLine) else None,
        )
        so_far = f"{len(run.finished)} of {len(run.config.domains)} stages done"
        if failed and not (job and job.submitted > failed.time):
            return dataclasses.replace(
                run, state="failed", detail=" ".join(failed.error.split())[:300]
            )
        stage = run.keys[len(run.finished) : len(run.finished) + 1]
        is_taken = any(Lease(self.store.stage_folder(key) / "lock").is_taken() for key in stage)
        beat = read_heartbeat(self.store.heartbeat_file(run.config)) if lines else None
        # what another clock says is to come was not said by a run in progress
        is_fresh = (
            beat and 0 <= time.time() - beat.time <= FRESH and beat.stage == len(run.finished)
        )
        fraction, said = (beat.fraction, str(beat)) if beat and is_fresh else (0.0, so_far)
        if job and job.state == "running" and not (is_fresh or is_taken) and len(job.units) > 1:
            return dataclasses.replace(
                run, state="waiting", detail=_join("its job has not come to it yet", so_far)
            )
        if lines and is_taken and not (job and job.is_under_way):
            return dataclasses.replace(run, state="running", detail=said, fraction=fraction)
        if job:
            shown = said if job.state == "running" else so_far
            return dataclasses.replace(
                run, state=job.state, detail=_join(job.detail, shown), fraction=fraction
            )
        return dataclasses.replace(run, state="interrupted", detail=so_far) if lines else run

    def _read_scored(self, run: RunState) -> tuple[Scored, ...]:
        """The scores of each model of a run that the suite's tasks are for."""
        last_stage, models = len(run.config.domains) - 1, []
        for stage in list_scored_stages(self.suite, run.config):
            if (
                stage < len(run.finished) and run.stages[stage].evaluated
            ):  # else its method left it out
                models.append(self._read_scores(run.keys[stage], stage, stage == last_stage))
        return tuple(models)


def find_last_model(survey: Survey, name: str) -> Path:
    """The folder of the stage that ends the first run of a row. Raises ConfigError where none has
    ended it.
    """
    rows = {config.row: config for config in reversed(survey.configs)}
    called = [row for row in rows if make_row_slug(row) == make_row_slug(name)]
    called = called or [row for row, config in rows.items() if config.method == name]
    if len(called) != 1:
        choices = ", ".join(called or reversed(rows))
        raise ConfigError(
            f"--row {name}: {len(called)} rows of {survey.suite.name} are called so; choose from "
            f"{choices}"
        )
    [run] = [state for state in survey.read_states() if state.config is rows[called[0]]]
    done = len(run.finished)
    if done < len(run.config.domains):
        raise ConfigError(
            f"{run.config.label}: {done} of {len(run.config.domains)} stages are done: "
            f"`run {survey.suite.called}` trains the rest"
        )
    return survey.store.stage_folder(run.keys[-1])


def read_stage(store: Store, key: str, learned: Sequence[str]) -> StageState:
    """The stage with this key, after which the domains `learned` were met.

    Raises RecordsError for lines that are damaged or of another stage.
    """
    lines = store.read_stage(key)
    evaluation, done = (
        records.find_last(lines, records.EvaluationLine),
        records.find_last(lines, records.DoneLine),
    )
    spent, ap = done or evaluation, None
    if done and evaluation:
        values = [evaluation.perplexity[name] for name in learned]
        perplexity = [math.inf if value is None else value for value in values]
        ap = float(average_perplexity(perplexity, len(perplexity) - 1))
    charged, begun = spent.charged if spent else {}, records.find_last(lines, records.StageLine)
    training = [line for line in lines if not isinstance(line, records.LaterLine)]
    wall = sum(
        line.time - before.time
        for before, line in pairwise(training)
        if not isinstance(line, records.ResumedLine)
    )
    return StageState(done is not None, evaluation is not None, ap, charged, begun, wall)


def read_scores(
    store: Store, suite: Suite, key: str, stage: int, final: bool, examples: Mapping[str, str]
) -> Scored:
    """The scores of one model, a run's `final` one or another. One of other settings of fine-tuning
    is another score.

    `examples`: see `find_example_keys`. Raises RecordsError for a file that is damaged.
    """
    lines = records.read(store.scores_file(key), records.SCORES)
    scored = records.select_kind(
        lines, records.ScoreLine
    )  # an archive has no model, only what it scored
    has_prompts = _has_prompts(store, key) or any(line.prompt == "right" for line in scored)
    wanted: set[tuple[str, str, str, int]] = {
        (task.name, *trial)
        for task in select_tasks(suite, final)
        for trial in list_wanted(task, suite.finetuning, has_prompts, final)
    }
    wanted |= {(task, ZERO_SHOT, "", 0) for task in suite.evaluate.tasks}

    def place(line: records.ScoreLine | records.UnscoredLine) -> tuple[str, str, str, int]:
        return line.task, line.how, line.prompt, line.seed

    there = {place(line) for line in select_scores(suite, key, lines, examples)} & wanted
    there |= {
        (task, ZERO_SHOT, "", 0) for task in select_zero_shot_scores(suite.evaluate, key, lines)
    }
    lost = [
        line
        for line in records.select_kind(lines, records.UnscoredLine)
        if place(line) in wanted - there
    ]
    return Scored(key, stage, len(wanted) - len(there), len(there), lost[-1].error if lost else "")


def _has_prompts(store: Store, key: str) -> bool:
    """Whether a stage ended with a model that has domain prompts."""
    path = store.stage_folder(key) / "model" / "config.json"
    return path.exists() and bool(json.loads(path.read_bytes()).get("prompts"))


MAKES_TOKENS = {
    "valid_share",
    "max_train_tokens",
    "max_valid_bytes",
    "max_valid_tokens",
}  # of the settings of data


def _join(*parts: str) -> str:
    return "; ".join(filter(None, parts))
