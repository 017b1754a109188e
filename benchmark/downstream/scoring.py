"""Downstream scores of a run's models: each is computed once, however many runs and tables want it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from benchmark.data.tokens import corpus_of
from benchmark.downstream.tasks import TaskData, record_baselines
from benchmark.models import load_verified
from benchmark.records import DoneLine, EvaluationLine, ScoreLine, last
from benchmark.settings.suite import RunConfig, Suite
from benchmark.settings.tasks import Task
from benchmark.store import Store
from benchmark.training.progress import IN_PROGRESS

# a suite without tasks imports nothing of fine-tuning


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
    from benchmark.downstream.finetune import missing, score_all
    from benchmark.training.run import stream_of

    place, final = config.domains[index].name, index == len(config.domains) - 1
    keys = store.recorded_stages(config)
    lines = store.stage_lines(keys[index]) if keys else []
    if not (last(lines, DoneLine) and last(lines, EvaluationLine)):  # a method may leave early stages out
        return f"nothing to score after {place}"
    key = keys[index]
    folder, file = store.stage(key) / "model", store.scores_file(key)
    checkpoint = SavedModel(folder, final)
    if not missing(key, tasks, checkpoint.prompts(suite.finetuning.prompts), suite.finetuning, file):
        return f"nothing to score after {place}"

    def say(found: ScoreLine, left: int) -> None:
        score = f"{found.task}, prompt {found.prompt}, seed {found.seed}: {found.test:.1%}"
        progress(f"scoring after {place}  {score}  {left} scores {IN_PROGRESS}")

    load_verified(folder)  # which holds it against its record
    told = ""
    if checkpoint.config.prompts and final:  # `evaluate --domain auto` wants it too
        stream = stream_of(config, corpus_of(config, store))
        share = discriminator.create(folder, stream, index + 1).accuracy["classifier"]
        told = f"; domains told apart: {share:.1%}"
    score_all(key, folder, tasks, suite.finetuning, file, final, say, asked_to_stop)
    return f"scored after {place}{told}"
