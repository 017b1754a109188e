"""The plan of a suite: the units of work that its tables still need, as a list of waves.

prepare -> stages that runs share -> runs -> scores and measures -> report. A wave begins when the
wave before has ended, even if units failed, because a unit that lacks a result makes it. There is
no other order. No torch here.
"""

from __future__ import annotations

import argparse
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Literal

from benchmark.data.prepared import hash_texts
from benchmark.downstream.tasks import find_missing_baselines, list_scored_stages
from benchmark.downstream.zero_shot import check_before_training
from benchmark.errors import UserError
from benchmark.jobs import executors
from benchmark.jobs.executors import Job
from benchmark.jobs.state import RunState, Survey
from benchmark.jobs.work import (
    Kind,
    MeasureModels,
    Prepare,
    PrepareTasks,
    RenderReport,
    Report,
    Score,
    Train,
    TrainShared,
    Unit,
)
from benchmark.settings.suite import RunConfig, Suite


@dataclass(frozen=True)
class Wave:
    """Units that do not wait for each other."""

    kind: Kind
    units: Sequence[Unit]


@dataclass(frozen=True)
class Plan:
    """The missing work, for executors and for `status`.

    `states` has the state of each run that the tables show.
    """

    survey: Survey
    states: Sequence[RunState]
    # handed in, because jobs must not import the packages that make tables
    render: RenderReport | None = None
    out: Path = Path()  # the folder of the report
    retry_failed: bool = False
    # if one of these two is None, the executor chooses
    parallel: int | None = None  # runs to train side by side on a machine
    processes: int | Literal["all"] | None = None  # on a machine, to train each run together
    program: tuple[str, ...] = ()  # the command line: Python's file and its arguments
    names_units: bool = False  # whether a dry run names each unit of work

    @property
    def suite(self) -> Suite:
        return self.survey.suite

    @property
    def runs(self) -> Path:
        """The folder of the store."""
        return self.survey.store.root.absolute()

    @cached_property
    def wanted(self) -> list[RunState]:
        """The runs to train: those that are neither done nor under way.

        Failed runs are included only with `retry_failed`.
        """
        words = ("todo", "interrupted", "failed") if self.retry_failed else ("todo", "interrupted")
        return [state for state in self.states if state.state in words]

    @property
    def not_retried(self) -> list[RunState]:
        """The failed runs that are not trained again."""
        if self.retry_failed:
            return []
        return [state for state in self.states if state.state == "failed"]

    @property
    def waves(self) -> list[Wave]:
        """The waves of all missing work except the report, without empty ones."""
        waves = [
            Wave("prepare", self._plan_texts()),
            Wave("prepare", self._plan_tasks()),
            *self._plan_training(),
            Wave("score", [*self._plan_scores(), *self._plan_measures()]),
        ]
        return [wave for wave in waves if wave.units]

    @property
    def report(self) -> Wave:
        """The wave that renders the tables."""
        assert self.render
        configs = tuple(state.config for state in self.states)
        unit = Report(
            runs=self.runs,
            config=configs[0],
            key="all",
            suite=self.suite,
            configs=configs,
            render=self.render,
            out=self.out.absolute(),
        )
        return Wave("report", [unit])

    def _plan_texts(self) -> list[Unit]:
        """One unit for each text that is not tokenised."""
        configs: dict[str, RunConfig] = {}
        for state in self.wanted:
            if not state.is_prepared:
                configs.setdefault(hash_texts(state.config), state.config)
        return [Prepare(self.runs, config, key) for key, config in configs.items()]

    def _plan_tasks(self) -> list[Unit]:
        """One unit for all tasks, if baselines are missing.

        The unit also finds the test examples that have a near copy in the texts.
        """
        examples = self.survey.examples
        path = self.survey.store.scores_file("baselines")
        # The text that a task needs is not prepared here if the task is not in `examples`. Without
        # runs to train, `_plan_texts` does not prepare it, so such tasks are left out.
        tasks = []
        for task in self.suite.tasks:
            if self.wanted or task.name in examples:
                tasks.append(task)
        if any(find_missing_baselines(task, examples.get(task.name), path) for task in tasks):
            config = self.states[0].config
            return [PrepareTasks(self.runs, config, "tasks", self.suite, label="tasks")]
        return []

    def _plan_training(self) -> list[Wave]:
        """Waves of stages that several runs share, in the order of training, and one of all runs.

        If the same runs share several stages, only the last has a unit, which also trains the
        others. Runs with most stages left are last, because executors begin with the last.
        """
        wanted = sorted(self.wanted, key=lambda run: len(run.config.domains) - run.finished)
        run_counts = Counter(key for state in wanted for key in state.planned)
        waves: list[dict[str, Unit]] = []
        for state in wanted:
            config = state.config
            depth = 0  # the number of the wave with this run's next shared stage
            # how many runs share each stage, never more than the stage before. After its last
            # stage, a run is alone
            counts = [run_counts[key] for key in state.planned] + [1]
            for stage in range(state.finished, len(state.planned)):
                is_last_in_common = counts[stage] > counts[stage + 1]
                if not is_last_in_common:
                    continue
                if depth == len(waves):
                    waves.append({})
                key = state.planned[stage]
                names = "+".join(domain.name for domain in config.domains[: stage + 1])
                unit = TrainShared(
                    runs=self.runs,
                    config=config,
                    key=key,
                    build=self.survey.build,
                    last_stage=stage,
                    label=f"{names}-of-{config.label}",
                )
                waves[depth].setdefault(key, unit)
                depth += 1
        shared = [Wave("stages", list(units.values())) for units in waves]
        runs = [
            Train(self.runs, state.config, state.config.id, self.survey.build) for state in wanted
        ]
        return [*shared, Wave("train", runs)]

    def _plan_scores(self) -> list[Score]:
        """One unit for each model that lacks scores and is trained or will be.

        A model that several runs share has one unit.
        """
        units: dict[str, Score] = {}
        for state in self.states:
            config = state.config
            models = {model.stage: model for model in state.scored}
            for stage in list_scored_stages(self.suite, config):
                model = models.get(stage)
                if stage < state.finished:
                    is_wanted = model and model.missing and (self.retry_failed or not model.failed)
                else:
                    is_wanted = state not in self.not_retried
                if is_wanted:
                    key = state.planned[stage]
                    label = f"{config.label}-{config.domains[stage].name}"
                    unit = Score(self.runs, config, key, self.suite, stage, label=label)
                    units.setdefault(key, unit)
        return list(units.values())

    def _plan_measures(self) -> list[Unit]:
        """One unit for the models of each run that lacks measures and is trained or will be."""
        measures = self.survey.measures
        if not measures:
            return []
        store = self.survey.store
        units: dict[str, Unit] = {}
        for state in self.states:
            trained = state.view.keys[: state.finished]
            if trained and state.state in ("done", "failed"):
                last_key = trained[-1]
                is_wanted = not all(
                    measure.is_done(state.config, store, last_key) for measure in measures
                )
            else:
                is_wanted = state not in self.not_retried
            if is_wanted:
                key = state.planned[-1]
                units.setdefault(key, MeasureModels(self.runs, state.config, key, measures))
        return list(units.values())


def make_plan(survey: Survey, render: RenderReport, options: argparse.Namespace) -> Plan:
    """The plan of `run` with these options.

    Raises ConfigError for scores that could not be computed after training, and NotHere for a text
    that a run would be trained with.
    """
    states = survey.read_states()
    for state in states:
        if not state.view.has_begun and state.view.texts.problem:
            raise state.view.texts.problem
    plan = Plan(
        survey=survey,
        states=states,
        render=render,
        out=options.out,
        retry_failed=options.retry_failed,
        parallel=options.parallel,
        processes=options.processes,
        program=options.program,
        names_units=options.verbose,
    )
    if plan.suite.evaluate.tasks and plan._plan_scores():
        check_before_training(survey.configs)
    return plan


def execute(survey: Survey, render: RenderReport, options: argparse.Namespace) -> int:
    """Do the missing work and render the report, or submit both. Returns an exit status."""
    try:
        # made here, so that a disk that cannot be written is found before anything is begun
        survey.store.data.mkdir(parents=True, exist_ok=True)
        survey.in_progress.path.parent.mkdir(exist_ok=True)
        # Only `status` reads this lock, to show that work is under way. Another call may have it:
        # several calls may share the work.
        survey.in_progress.try_acquire()
    except OSError as error:
        raise UserError(
            f"{error}: nothing was begun or submitted; make room there, or repair it, and call "
            "`run` again"
        ) from None
    try:
        executor = executors.find(options.executor)
        return executor.execute(make_plan(survey, render, options))
    finally:
        survey.in_progress.release()


WORDS = {  # by kind: for one unit, and for several
    "prepare": ("preparation", "preparations"),
    "stages": ("shared stage to train", "shared stages to train"),
    "train": ("run to train", "runs to train"),
    "score": ("model to score", "models to score"),
    "measure": ("run to measure", "runs to measure"),
    "report": ("report to render", "reports to render"),
}


def count_by_kind(units: Iterable[Unit]) -> str:
    """The numbers of units by kind, in words."""
    counts = Counter(unit.kind for unit in units)
    parts = []
    for kind, count in counts.items():
        one, several = WORDS[kind]
        parts.append(f"{count} {one if count == 1 else several}")
    return ", ".join(parts)


def drop_under_way(waves: Iterable[Wave], jobs: Iterable[Job]) -> list[Wave]:
    """Waves without the units that jobs are doing or will do."""
    ids = {unit for job in jobs if job.is_under_way for unit in job.units}
    shortened = []
    for wave in waves:
        units = [unit for unit in wave.units if unit.id not in ids]
        if units:
            shortened.append(Wave(wave.kind, units))
    return shortened


def group_by_run(units: Iterable[Unit], size: int) -> list[tuple[Unit, ...]]:
    """The units in groups of `size` runs.

    The last units have most stages left. Their groups come first, so that none of them runs alone
    at the end. Within a group they stay last, because `pool.work_through` begins with the last.
    """
    runs: dict[str, list[Unit]] = defaultdict(list)
    for unit in units:
        runs[unit.config.id].append(unit)
    last_first = list(runs.values())[::-1]
    groups = []
    for start in range(0, len(last_first), size):
        group = last_first[start : start + size][::-1]
        groups.append(tuple(chain(*group)))
    return groups
