"""Downstream scores of a run's models: each is computed once, however many runs and tables want it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import joblib
import torch

from benchmark import records
from benchmark.data.run_corpus import corpus_of
from benchmark.downstream import discriminator, task_data
from benchmark.downstream.classifier import SavedModel
from benchmark.downstream.finetune import missing, score_all
from benchmark.downstream.tasks import TaskData, record_baselines, scored_stages
from benchmark.orphans import end_with
from benchmark.record_lines import Score
from benchmark.settings.config import RunConfig, Suite
from benchmark.settings.task_settings import Task
from benchmark.store import Store, recorded_stages
from benchmark.training.run import stream_of


def score_runs(suite: Suite, configs: Iterable[RunConfig], runs: Path) -> int:
    """Fine-tune and score what is missing of all runs. Returns how many models diverged. Raises DataError, ConfigError.

    Without a GPU, models are scored side by side, one on each core: theirs are small steps, which two threads do not
    make faster.
    """
    store = Store(runs)
    tasks = load_tasks(suite, store)
    wanted: dict[str, tuple[RunConfig, int]] = {}  # by stage key: a model that runs share is scored once
    for config in configs:
        for index in scored_stages(suite, config):
            key = _to_score(suite, config, index, tasks, store)
            if key:
                wanted.setdefault(key, (config, index))
    if not wanted:
        return 0
    processes = 1 if torch.accelerator.is_available() else min(joblib.cpu_count(), len(wanted))
    diverged = joblib.Parallel(n_jobs=processes)(
        joblib.delayed(_diverges)(os.getpid(), suite, config, index, tasks, store) for config, index in wanted.values()
    )
    return sum(diverged)


def _diverges(
    parent: int, suite: Suite, config: RunConfig, index: int, tasks: Sequence[tuple[Task, TaskData]], store: Store
) -> bool:
    """Score a stage; say so if a fine-tuning diverges. The other models go on."""
    end_with(parent)
    try:
        score_stage(suite, config, index, tasks, store)
    except FloatingPointError as error:
        place = f"{suite.name}: {config.row}, seed {config.seed}, after {config.domains[index].name}"
        print(f"{place}: {error}", file=sys.stderr)
        return True
    return False


def load_tasks(suite: Suite, store: Store) -> list[tuple[Task, TaskData]]:
    """The suite's tasks with their examples; their baselines are recorded. Raises DataError, ConfigError."""
    tasks = [(task, task_data.load(task, suite.domains, store.data)) for task in suite.tasks]
    record_baselines(tasks, store.root / "scores" / "baselines.jsonl")
    return tasks


def score_stage(
    suite: Suite, config: RunConfig, index: int, tasks: Sequence[tuple[Task, TaskData]], store: Store
) -> None:
    """Fine-tune what is still to be scored of the model after a stage, if that is finished."""
    key = _to_score(suite, config, index, tasks, store)
    if not key:
        return
    folder, final = store.stage(key) / "model", index == len(config.domains) - 1

    def say(found: Score, left: int) -> None:
        score = f"{found['task']}, prompt {found['prompt']}, seed {found['seed']}: {found['test']:.1%}"
        print(f"{place}: {score}, {left} to go", file=sys.stderr)

    place = f"{suite.name}: {config.row}, seed {config.seed}, after {config.domains[index].name}"
    checkpoint = SavedModel(folder, final)
    if checkpoint.config.prompts and checkpoint.final:  # `evaluate --domain auto` wants it too
        stream = stream_of(config, corpus_of(config, store))
        accuracy = discriminator.create(folder, stream, index + 1).accuracy
        print(
            f"{place}: domains told apart: " + ", ".join(f"{k} {v:.1%}" for k, v in accuracy.items()), file=sys.stderr
        )
    score_all(key, folder, tasks, suite.finetuning, _scores(store, key), final, say)


def _to_score(
    suite: Suite, config: RunConfig, index: int, tasks: Sequence[tuple[Task, TaskData]], store: Store
) -> str | None:
    """The key of a run's stage if it has a trained model that lacks scores."""
    keys = recorded_stages(config, store)
    if not keys or not (store.stage_done(keys[index]) and _trains(store.stage(keys[index]))):
        return None
    checkpoint = SavedModel(store.stage(keys[index]) / "model", index == len(config.domains) - 1)
    prompts = checkpoint.prompts(suite.finetuning.prompts)
    lacks = missing(keys[index], tasks, prompts, suite.finetuning, _scores(store, keys[index]))
    return keys[index] if lacks else None


def _scores(store: Store, key: str) -> Path:
    return store.root / "scores" / f"{key}.jsonl"


def _trains(stage: Path) -> bool:
    """Whether the stage has a trained model; a method may leave early stages out."""
    return any(line["kind"] == "evaluation" for line in records.read(stage / "records.jsonl"))
