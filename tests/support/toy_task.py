"""A task that one word decides, and small models to fine-tune on it."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer

from benchmark.data.tokenizer import Vocabulary, train_bpe
from benchmark.downstream.classifier import SavedModel
from benchmark.downstream.finetune import find_missing, score_all
from benchmark.downstream.passages import Example
from benchmark.downstream.tasks import TaskData
from benchmark.models import build
from benchmark.settings.tasks import Finetuning, Task

DOMAINS = ("one", "two", "three")
WORDS = ["and", "bee", "cat", "dog", "elk", "fox", "gnu", "hen"]
LENGTH = 16
SETTINGS = Finetuning(seeds=2, patience=10, precision="fp32")
TASK = Task(
    name="toy", domain="two", docstrings={}, metric="accuracy", batch_size=16, learning_rate=3e-3
)


def tokenizer() -> Tokenizer:
    bpe = train_bpe([" ".join([*WORDS, "left", "right"])] * 50, 320)
    bpe.encode_special_tokens = True
    return bpe


def save(
    folder: Path, architecture: str = "gpt", prompts: bool = True, dropout: float = 0.0
) -> Path:
    torch.manual_seed(0)
    bpe = tokenizer()
    vocabulary = Vocabulary(bpe.get_vocab_size(), DOMAINS)
    model = build(
        architecture, 2, 32, vocabulary, LENGTH, head_size=16, dropout=dropout, prompts=prompts
    )
    model.save(folder, bpe)
    return folder


def examples(count: int, seed: int, coin: bool = False, pair: bool = False) -> tuple[Example, ...]:
    """Texts of a few words, of which one is "left" or "right" and decides the class.

    With `pair` the words are the second text of a pair. With `coin` the class is random.
    """
    draw = random.Random(seed)
    drawn = []
    for index in range(count):
        words = draw.choices(WORDS, k=draw.randint(2, 6))
        words.insert(draw.randrange(len(words)), ("left", "right")[index % 2])
        text = " ".join(words)
        label = draw.randrange(2) if coin else index % 2
        drawn.append(
            Example("and", text, label, "-")
            if pair
            else Example(text, None, label, f"made:{index}")
        )
    return tuple(drawn)


def data_of(
    train: int = 400, test: int = 80, coin: bool = False, pair: bool = False, task: Task = TASK
) -> TaskData:
    splits = [examples(n, seed, coin, pair) for seed, n in enumerate((train, 40, test))]
    return TaskData(task, ("l", "r"), *splits)


def grid(
    folder: Path, path: Path, progress: Callable[[Any, int], None] = lambda scored, left: None
) -> None:
    """Score two tasks with two prompts and two seeds: eight scores.

    The labels are random, so that runs differ in their scores.
    """
    torch.set_num_threads(1)
    checkpoint = SavedModel(folder)
    tasks = [
        data_of(
            32,
            64,
            coin=True,
            task=TASK.model_copy(update={"name": name, "max_epochs": 2, "learning_rate": rate}),
        )
        for name, rate in (("first", 3e-3), ("second", 1e-3))
    ]
    settings = Finetuning(seeds=2, prompts=("right", "none"), precision="fp32")
    score_all("stage", checkpoint, tasks, settings, path, progress=progress)
    assert not find_missing("stage", checkpoint, tasks, settings, path)
