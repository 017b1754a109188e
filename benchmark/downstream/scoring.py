"""Downstream scores of a run's models: each is computed once, however many runs and tables want it."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from benchmark import records
from benchmark.data.tokens import corpus_of
from benchmark.downstream.tasks import TaskData, record_baselines
from benchmark.models import load_verified
from benchmark.records import EvaluationLine, ScoreLine
from benchmark.settings.suite import RunConfig, Suite
from benchmark.settings.tasks import Task
from benchmark.store import Store
from benchmark.training.progress import IN_PROGRESS

if TYPE_CHECKING:
    from benchmark.downstream.classifier import SavedModel

# a suite without tasks imports nothing of fine-tuning


def name_of(suite: Suite, config: RunConfig) -> str:
    """What lines about a run begin with."""
    return f"{suite.name}: {config.row}, seed {config.seed}"


def load_tasks(suite: Suite, store: Store) -> list[tuple[Task, TaskData]]:
    """The suite's tasks with their examples; their baselines are recorded. Raises DataError, ConfigError."""
    from benchmark.downstream import examples

    tasks = [(task, examples.load(task, suite.domains, store.data)) for task in suite.tasks]
    record_baselines(tasks, store.scores_file("baselines"))
    return tasks


def score_stage(
    suite: Suite,
    config: RunConfig,
    index: int,
    tasks: Sequence[tuple[Task, TaskData]],
    store: Store,
    progress: Callable[[str], None],
    asked_to_stop: Callable[[], bool] = lambda: False,
) -> str:
    """Fine-tune what is still to be scored of the model after a stage, if that is finished; say what it came to.

    `progress` gets a text after each score. Raises Stopped in the middle of one when asked to stop.
    """
    from benchmark.downstream import discriminator
    from benchmark.downstream.classifier import SavedModel
    from benchmark.downstream.finetune import score_all
    from benchmark.training.run import stream_of

    place, key = config.domains[index].name, _to_score(suite, config, index, tasks, store)
    if not key:
        return f"nothing to score after {place}"
    folder, final = store.stage(key) / "model", index == len(config.domains) - 1

    def say(found: ScoreLine, left: int) -> None:
        score = f"{found.task}, prompt {found.prompt}, seed {found.seed}: {found.test:.1%}"
        progress(f"scoring after {place}  {score}  {left} scores {IN_PROGRESS}")

    load_verified(store.stage(key) / "model")  # which holds it against its record
    checkpoint, told = SavedModel(folder, final), ""
    if checkpoint.config.prompts and checkpoint.final:  # `evaluate --domain auto` wants it too
        stream = stream_of(config, corpus_of(config, store))
        share = discriminator.create(folder, stream, index + 1).accuracy["classifier"]
        told = f"; domains told apart: {share:.1%}"
    score_all(key, folder, tasks, suite.finetuning, store.scores_file(key), final, say, asked_to_stop)
    return f"scored after {place}: {_means(store, key, tasks, suite, checkpoint)}{told}"


def _means(store: Store, key: str, tasks: Sequence[tuple[Task, TaskData]], suite: Suite, checkpoint: SavedModel) -> str:
    """The mean test score of each task over its seeds, with the prompt that comes first."""
    [prompt, *_] = checkpoint.prompts(suite.finetuning.prompts)
    lines = [
        line
        for line in records.read(store.scores_file(key), records.SCORES)
        if isinstance(line, ScoreLine) and line.prompt == prompt
    ]
    found = {task.name: [line.test for line in lines if line.task == task.name] for task, _ in tasks}
    return ", ".join(f"{task} {statistics.fmean(tests):.1%}" for task, tests in found.items() if tests)


def _to_score(
    suite: Suite, config: RunConfig, index: int, tasks: Sequence[tuple[Task, TaskData]], store: Store
) -> str | None:
    """The key of a run's stage if it has a trained model that lacks scores."""
    from benchmark.downstream.classifier import SavedModel
    from benchmark.downstream.finetune import missing

    keys = store.recorded_stages(config)
    if not keys or not (store.stage_done(keys[index]) and _trains(store.stage(keys[index]))):
        return None
    checkpoint = SavedModel(store.stage(keys[index]) / "model", index == len(config.domains) - 1)
    prompts = checkpoint.prompts(suite.finetuning.prompts)
    lacks = missing(keys[index], tasks, prompts, suite.finetuning, store.scores_file(keys[index]))
    return keys[index] if lacks else None


def _trains(stage: Path) -> bool:
    """Whether the stage has a trained model; a method may leave early stages out."""
    return any(isinstance(line, EvaluationLine) for line in records.read_stage(stage / records.STAGE_FILE))
