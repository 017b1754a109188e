"""`run_all.py rekey`: stages that were trained when a key still held the whole corpus, under the keys of today.

A stage is moved where nothing but the key has changed: its text and settings are those of the suite. A moved model has
the prompt rows of the domains that it has met, as one that is trained today; its other weights were drawn beside more
rows than they would be today, so they are another draw of the same distribution.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import cast, get_args

from benchmark import records
from benchmark.data.bpe import content_key
from benchmark.data.tokens import Corpus
from benchmark.downstream.scoring import load_tasks
from benchmark.downstream.tasks import TaskData, score_key
from benchmark.files import remove, sync, whole_file
from benchmark.models.of_stage import load_evaluated
from benchmark.models.prompts import meet
from benchmark.models.weights import weights_hash
from benchmark.record_lines import LineOfStage, RecordedScore
from benchmark.settings.config import RunConfig, Suite, digest, per_stage
from benchmark.settings.task_settings import Prompt, Task
from benchmark.settings.units import UNITS
from benchmark.store import Store, recorded_stages
from benchmark.training import checkpoint
from benchmark.training.method import Build, LifelongMethod
from benchmark.training.processes import World
from benchmark.training.progress import Silent
from benchmark.training.run import Run
from benchmark.training.stage_keys import stage_of
from benchmark.training.step_times import stage_times

OLD_FORMAT = 2
OLD_TRAINING = {"batch_size", "micro_batch_size", "schedule", "betas", "epsilon", "weight_decay", "clip"}
OLD_TRAINING |= {"precision", "compile", "evaluations"}
Tasks = Sequence[tuple[Task, TaskData]]


def rekey(suite: Suite, configs: Sequence[RunConfig], build: Build, store: Store, alone: World) -> Iterator[str]:
    """Move the stages, scores and runs of a suite; a line for each run that says what became of each stage.

    How alike the models are is measured anew by `run`. Raises DataError, ConfigError.
    """
    tasks = load_tasks(suite, store)
    for config in configs:
        if UNITS[config.budget.unit].charges_flops:
            yield f"{config.row}, seed {config.seed}: not moved: a budget in FLOPs includes a stage's start now"
            continue
        run = Run(config, functools.partial(build, config.method, config.options), store, alone, Silent())
        old = old_stage_keys(config, build(config.method, config.options), _old_corpus_key(run.corpus))
        domains = [domain.name for domain in config.domains]
        found: dict[str, list[str]] = {"moved": [], "there already": [], "not to be found": []}
        for index, (before, now) in enumerate(zip(old, run.keys, strict=True)):
            if store.stage_done(now):
                if store.last_of_stage(now)["stage"].get("moved_from") == before and store.stage(before).exists():
                    _remove(store.stage(before))  # what ended the move came between its last two steps
                found["there already"].append(domains[index])
            elif store.stage_done(before):
                _move_scores(run, suite, tasks, index, before)
                _move(run, index, before)
                found["moved"].append(domains[index])
            else:
                found["not to be found"].append(domains[index])
        recorded = zip(recorded_stages(config, store), domains, strict=False)
        others = [f"{key} ({domain})" for key, domain in recorded if key not in {*old, *run.keys}]
        if all(store.stage_done(key) for key in run.keys):
            run.train()  # nothing: it records what the run consists of now
        text = "; ".join(f"{what}: {', '.join(names)}" for what, names in found.items() if names)
        why = f"; of other text or settings than the suite, so not moved: {', '.join(others)}" if others else ""
        yield f"{config.row}, seed {config.seed}, its stages: {text}{why}"


def old_stage_keys(config: RunConfig, method: LifelongMethod, corpus_key: str) -> list[str]:
    """The keys that the stages of a run had; `corpus_key` hashed the tokenizer and all domains of the stream."""
    keys: list[str] = []
    for index in range(len(config.domains)):
        stage, times = stage_of(config, index), stage_times(config, index)
        signature = {name: value for name, value in method.signature(stage).items() if name != "last"}
        if signature and method.version > 1:
            signature["version"] = method.version
        settings = {
            "format": OLD_FORMAT,
            "previous": keys[-1] if keys else None,
            "signature": signature,
            "seed": config.seed,
            "corpus": corpus_key,
            "sequence_length": config.data.sequence_length,
            "memory_tokens": config.data.memory_tokens if index else None,
            "max_valid_tokens": config.data.max_valid_tokens,
            "model": config.model.model_dump(mode="json", include={"architecture", "head_size", "dropout"}),
            "ladder": [str(size) for size in stage.ladder],
            "training": config.training.model_dump(mode="json", include=OLD_TRAINING),
            "learning_rate": per_stage(config.training.learning_rate, index),
            "warmup": per_stage(config.training.warmup, index),
            "budget": [config.budget.unit, stage.budget, *([vars(times)] if times else [])],
        }
        keys.append(digest(settings))
    return keys


def _old_corpus_key(corpus: Corpus) -> str:
    return digest([content_key(corpus.tokenizer), [[domain.name, domain.key] for domain in corpus.domains]])


def _move(run: Run, index: int, before: str) -> None:
    """A stage counts as done when its records are there, so they come last, and only then the old folder goes."""
    old, new = run.store.stage(before), run.store.stage(run.keys[index])
    model = load_evaluated(old)
    meet(model, [domain.name for domain in run.config.domains[: index + 1]], seed=0)
    new.mkdir(parents=True, exist_ok=True)
    model.save(new / "model", run.corpus.tokenizer)
    checkpoint.save(new / "method.pt", checkpoint.load(old / "method.pt"))
    lines = cast(list[LineOfStage], records.read(old / "records.jsonl"))
    for line in lines:
        if line["kind"] == "stage":
            line |= {"key": run.keys[index], "texts": run.stream.validation_keys, "moved_from": before}
        elif line["kind"] == "done" and "weights" in line:
            line["weights"] = weights_hash(model)  # without the rows of prompts that it has not met
    _write(new / "records.jsonl", lines)
    sync(new.parent)
    _remove(old)


def _remove(stage: Path) -> None:
    """Remove a stage's folder, its records first: without these it does not count as done, wherever that ends."""
    (stage / "records.jsonl").unlink(missing_ok=True)
    sync(stage)
    remove(stage)


def _move_scores(run: Run, suite: Suite, tasks: Tasks, index: int, before: str) -> None:
    """Move a model's scores under the suite's tasks and settings, except those of domains that it has not met.

    Such a domain is read with another prompt now.
    """
    now, met = run.keys[index], {domain.name for domain in run.config.domains[: index + 1]}
    old, new = (run.store.root / "scores" / f"{key}.jsonl" for key in (before, now))
    if not old.exists():
        return
    renamed = {
        score_key(before, task, data, suite.finetuning, prompt, seed): score_key(
            now, task, data, suite.finetuning, prompt, seed
        )
        for task, data in tasks
        for prompt in get_args(Prompt)
        for seed in suite.finetuning.seeds_of(task)
    }
    scores = cast(list[RecordedScore], [line for line in records.read(old) if line["kind"] == "score"])
    kept = [line for line in scores if line["prompt"] == "none" or line["domain"] in met]
    lines = [{**line, "key": renamed[line["key"]], "stage_key": now} for line in kept if line["key"] in renamed]
    _write(new, lines)


def _write(path: Path, lines: Sequence[LineOfStage | dict[str, object]]) -> None:
    with whole_file(path) as file:
        file.write("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines).encode())
