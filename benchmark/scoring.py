"""Downstream scores of a run's models: each is computed once, however many runs and tables want it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmark import records, task_data
from benchmark.config import RunConfig, Suite
from benchmark.finetune import score_all
from benchmark.planning import recorded_stages
from benchmark.run import Store
from benchmark.task_settings import Task
from benchmark.tasks import TaskData, record_references


def score_runs(suite: Suite, configs: Sequence[RunConfig], runs: Path) -> None:
    """Fine-tune and score what is missing of all runs. Raises DataError, ConfigError."""
    store = Store(runs)
    tasks = load_tasks(suite, store)
    for config in configs:
        score_run(suite, config, tasks, store)


def load_tasks(suite: Suite, store: Store) -> list[tuple[Task, TaskData]]:
    """The suite's tasks with their examples; their reference scores are recorded. Raises DataError, ConfigError."""
    tasks = [(task, task_data.load(task, suite.domains, store.data)) for task in suite.tasks]
    record_references(tasks, store.root / "scores" / "references.jsonl")
    return tasks


def score_run(suite: Suite, config: RunConfig, tasks: Sequence[tuple[Task, TaskData]], store: Store) -> None:
    """Fine-tune what is still to be scored of a run's finished stages."""
    for index in scored_stages(suite, config):
        score_stage(suite, config, index, tasks, store)


def scored_stages(suite: Suite, config: RunConfig) -> range:
    """After which stages of a run its model is scored."""
    count = len(config.domains)
    if not suite.tasks:
        return range(0)
    return range(count) if suite.finetuning.stages == "every" else range(count - 1, count)


def score_stage(
    suite: Suite, config: RunConfig, index: int, tasks: Sequence[tuple[Task, TaskData]], store: Store
) -> None:
    """Fine-tune what is still to be scored of the model after a stage, if that is finished."""
    keys = recorded_stages(config, store)
    if not keys or not (store.stage_done(keys[index]) and _trains(store.stage(keys[index]))):
        return

    def say(record: dict[str, Any], left: int) -> None:
        place = f"{suite.name}: {config.row}, seed {config.seed}, after {config.domains[index].name}"
        score = f"{record['task']}, prompt {record['prompt']}, seed {record['seed']}: {record['test']:.1%}"
        print(f"{place}: {score}, {left} to go", file=sys.stderr)

    score_all(
        keys[index],
        store.stage(keys[index]) / "model",
        tasks,
        suite.finetuning,
        store.root / "scores" / f"{keys[index]}.jsonl",
        [domain.name for domain in config.domains[: index + 1]],
        say,
    )


def _trains(stage: Path) -> bool:
    """Whether the stage has a trained model; a method may leave early stages out."""
    return any(line["kind"] == "evaluation" for line in records.read(stage / "records.jsonl"))
