"""The plan of a suite: the units of work that its tables still need, as a list of waves. No torch
here.

prepare -> stages that runs share -> runs -> scores -> measures -> report. A wave begins when the
one before has ended, however that was: whoever needs a missing result makes it. There is no other
order.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

from benchmark.data.tokens import hash_data_settings
from benchmark.downstream.tasks import find_missing_baselines, list_scored_stages
from benchmark.downstream.zero_shot import check_before_training
from benchmark.errors import UserError
from benchmark.jobs import executors
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
    """Units that wait for none of each other."""

    kind: Kind
    units: Sequence[Unit]


@dataclass(frozen=True)
class Plan:
    """The missing work, for executors and for `status`. `states` are those of all runs that the
    tables show.
    """

    survey: Survey
    states: Sequence[RunState]
    render: RenderReport | None = (
        None  # handed in, because jobs must not import the rooms of tables
    )
    out: Path = Path()  # of tables
    retry_failed: bool = False
    parallel: int | None = None  # runs to train side by side on a machine; None: the executor knows
    processes: int | Literal["all"] | None = (
        None  # of a machine, that train a run together; None: the executor knows
    )
    program: tuple[str, ...] = ()  # the command line: Python's file and its words
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
        """The runs to train: not those that are done or under way, and failed ones only when asked."""
        states = ("todo", "interrupted", "failed") if self.retry_failed else ("todo", "interrupted")
        return [state for state in self.states if state.state in states]

    @property
    def left_out(self) -> list[RunState]:
        """The failed runs that are left as they are."""
        return (
            [] if self.retry_failed else [state for state in self.states if state.state == "failed"]
        )

    @property
    def waves(self) -> list[Wave]:
        """All that is missing but the report, in waves; none of them is empty."""
        texts, tasks = Wave("prepare", self._plan_texts()), Wave("prepare", self._plan_tasks())
        scores, measures = (
            Wave("score", self._plan_scores()),
            Wave("measure", self._plan_measures()),
        )
        return [
            wave for wave in (texts, tasks, *self._plan_training(), scores, measures) if wave.units
        ]

    @property
    def report(self) -> Wave:
        assert self.render
        configs = tuple(state.config for state in self.states)
        own = (self.suite, configs, self.render, self.out.absolute())
        return Wave("report", [Report(self.runs, configs[0], "all", *own)])

    def _plan_texts(self) -> list[Unit]:
        """One for each text that is not tokenised."""
        configs: dict[str, RunConfig] = {}
        for state in self.wanted:
            if not state.prepared:
                configs.setdefault(hash_data_settings(state.config), state.config)
        return [Prepare(self.runs, config, key) for key, config in configs.items()]

    def _plan_tasks(self) -> list[Unit]:
        """One for the tasks where baselines are missing; it looks which test examples stand in the
        texts.
        """
        examples, path = self.survey.examples, self.survey.store.scores_file("baselines")
        tasks = [
            task for task in self.suite.tasks if self.wanted or task.name in examples
        ]  # or no text
        if any(find_missing_baselines(task, examples.get(task.name), path) for task in tasks):
            return [
                PrepareTasks(self.runs, self.states[0].config, "tasks", self.suite, label="tasks")
            ]
        return []

    def _plan_training(self) -> list[Wave]:
        """Waves of stages that several runs share, what others go on from first, and then all runs.

        Of stages that the same runs share only the last has a unit, which trains those before it.
        """
        users = Counter(key for state in self.wanted for key in state.planned)
        waves: list[dict[str, Unit]] = []
        for state in self.wanted:
            config, depth = state.config, 0
            counts = [users[key] for key in state.planned] + [1]
            for stage, key in enumerate(state.planned):
                if stage >= len(state.finished) and counts[stage] > counts[stage + 1]:
                    if depth == len(waves):
                        waves.append({})
                    names = "+".join(domain.name for domain in config.domains[: stage + 1])
                    given, label = (
                        (self.runs, config, key, self.survey.build, stage),
                        f"{names}-of-{config.label}",
                    )
                    waves[depth].setdefault(key, TrainShared(*given, label=label))
                    depth += 1
        runs = [
            Train(self.runs, state.config, state.config.id, self.survey.build)
            for state in self.wanted
        ]
        return [*(Wave("stages", list(wave.values())) for wave in waves), Wave("train", runs)]

    def _plan_scores(self) -> list[Score]:
        """One for each model that is to be scored and has been or will be trained, shared ones
        once.
        """
        units: dict[str, Score] = {}
        for state in self.states:
            models = {model.stage: model for model in state.scored}
            for stage in list_scored_stages(self.suite, state.config):
                model = models.get(stage)
                if stage < len(state.finished):
                    is_wanted = model and model.missing and (self.retry_failed or not model.failed)
                else:
                    is_wanted = state not in self.left_out
                if is_wanted:
                    key, label = (
                        state.planned[stage],
                        f"{state.config.label}-{state.config.domains[stage].name}",
                    )
                    units.setdefault(
                        key, Score(self.runs, state.config, key, self.suite, stage, label=label)
                    )
        return list(units.values())

    def _plan_measures(self) -> list[Unit]:
        """One for the models of each run that has been or will be trained."""
        units: dict[str, Unit] = {}
        for state in self.states if self.survey.measures else []:
            trained, store = state.keys[: len(state.finished)][-1:], self.survey.store
            if trained and state.state in ("done", "failed"):
                is_wanted = not all(
                    measure.is_done(store, trained[0]) for measure in self.survey.measures
                )
            else:
                is_wanted = state not in self.left_out
            if is_wanted:
                key = state.planned[-1]
                units.setdefault(
                    key, MeasureModels(self.runs, state.config, key, self.survey.measures)
                )
        return list(units.values())


def make_plan(survey: Survey, render: RenderReport, options: argparse.Namespace) -> Plan:
    """The work of `run` with these options. Raises ConfigError for what could not be done after
    training.
    """
    asked = (
        options.retry_failed,
        options.parallel,
        options.processes,
        options.program,
        options.verbose,
    )
    plan = Plan(survey, survey.read_states(), render, options.out, *asked)
    if plan.suite.evaluate.tasks and plan._plan_scores():
        check_before_training(survey.configs)
    return plan


def execute(survey: Survey, render: RenderReport, options: argparse.Namespace) -> int:
    """Do the missing work, and render, or have it done. Returns an exit status."""
    try:
        survey.store.data.mkdir(
            parents=True, exist_ok=True
        )  # from now on text counts here, and not records alone
        survey.in_progress.path.parent.mkdir(exist_ok=True)
        survey.in_progress.try_acquire()  # for those who watch; several calls may share the work
    except OSError as error:
        said = f"{error}: nothing was begun or submitted; make room there, or repair it, and call `run` again"
        raise UserError(said) from None
    try:
        return executors.find(options.executor).execute(make_plan(survey, render, options))
    finally:
        survey.in_progress.release()


def count_by_kind(units: Iterable[Unit]) -> str:
    """The numbers of units by kind, in words."""
    words = {"stages": "to train what runs share"}
    return ", ".join(
        f"{count} {words.get(kind, f'to {kind}')}"
        for kind, count in Counter(unit.kind for unit in units).items()
    )


def drop_units(waves: Iterable[Wave], ids: Collection[str]) -> list[Wave]:
    """Waves without the units that have these ids, such as those that are under way."""
    left = [Wave(wave.kind, [unit for unit in wave.units if unit.id not in ids]) for wave in waves]
    return [wave for wave in left if wave.units]
