"""Tokens a second of the project's loop beside `transformers.Trainer`'s, on the same model, batches and text, in turns.

    pip install accelerate
    python -m tests.tools.time_trainer --architecture bert --layers 6 --hidden-size 384 --batch 32 --seconds 20

The text is the standard library's docstrings, the demo suite's first domain. The other side is the plain network of the
same configuration, with as many weights; it gets the rows of the same batches, masked already and made before its clock
starts, AdamW with the same settings, and the same autocast. It saves, evaluates and clips nothing. Ours is a stage of
Naive, from what its clock has charged. Each turn is a process of its own; what is said is the ratio of each turn, and
the median.
"""

from __future__ import annotations

import argparse
import math
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM, Trainer, TrainerCallback, TrainingArguments

import methods
from benchmark.data.tokens import corpus_of
from benchmark.models.devices import own_device, synchronize
from benchmark.records import DoneLine, of_kind
from benchmark.settings.load import load_suite
from benchmark.settings.suite import RunConfig
from benchmark.store import Store
from benchmark.training.learner import Batch
from benchmark.training.method import Phase
from benchmark.training.processes import join
from benchmark.training.progress import Silent
from benchmark.training.run import Run, stream_of
from benchmark.training.stage_inputs import trainable_stage

BATCHES = 64  # made for the other side, over and over
WARM_UP = 3  # steps of the other side before its clock starts


def config_of(options: argparse.Namespace, turn: int) -> RunConfig:
    """A run of Naive of one stage; each turn has a seed of its own, so it is trained anew."""
    settings = {
        "methods": ["naive"],
        "seeds": [turn],
        "tasks": [],
        "domains": [{"name": "python", "packages": ["stdlib"]}],
        "tokenizer.vocabulary": options.vocabulary,
        "data.sequence_length": options.length + 2,
        "data.max_valid_tokens": 16 * options.length,
        "model.architecture": options.architecture,
        "model.head_size": math.gcd(64, options.hidden_size),
        "model.ladder": [{"layers": options.layers, "hidden_size": options.hidden_size}],
        "training.batch_size": options.batch,
        "training.precision": options.precision,
        "training.evaluations": 1,
        "budget.amount": options.seconds,
    }
    (config,) = methods.runs(load_suite("demo", settings))
    return config


def ours(config: RunConfig, store: Store) -> float:
    """Train the stage; return the tokens a second that its record says."""
    with join() as world:
        run = Run(config, lambda: methods.build("naive"), store, world, Silent())
        run.train()
    [done] = of_kind(store.stage_lines(run.keys[0]), DoneLine)
    charged = done.charged
    return float(charged["tokens"] / charged["seconds"])


class Rows(torch.utils.data.IterableDataset[dict[str, Tensor]]):
    """The rows of batches, one after the other without end, as transformers' models take them."""

    def __init__(self, batches: list[Batch], masked: bool) -> None:
        self.rows = [
            {"input_ids": tokens, "labels": labels}
            for batch in batches
            for tokens, labels in zip(batch.tokens, labels_of(batch, masked), strict=True)
        ]

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        return cycle(self.rows)


def labels_of(batch: Batch, masked: bool) -> Tensor:
    """Targets (B, 1+N) where one is predicted, elsewhere -100; a causal model itself shifts them by a column."""
    columns = batch.positions if masked else batch.positions + 1
    return torch.full_like(batch.tokens, -100).scatter(1, columns, batch.targets)


class Stopwatch(TrainerCallback):
    """Times steps after the first ones, and ends the training when its seconds are over."""

    def __init__(self, seconds: float, device: torch.device) -> None:
        self.seconds, self.device = seconds, device
        self.steps_per_second = 0.0

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == WARM_UP:
            synchronize(self.device)
            self.began = time.perf_counter()
        elif state.global_step > WARM_UP and time.perf_counter() - self.began >= self.seconds:
            synchronize(self.device)
            self.steps_per_second = (state.global_step - WARM_UP) / (time.perf_counter() - self.began)
            control.should_training_stop = True


def theirs(config: RunConfig, store: Store) -> float:
    """Train as long with `transformers.Trainer`; return its tokens a second."""
    stream, training, device = stream_of(config, corpus_of(config, store)), config.training, own_device()
    stage = trainable_stage(config, 0, stream)
    own = stage.build(stage.ladder[0]).network
    kind: Any = AutoModelForMaskedLM if stream.masked else AutoModelForCausalLM
    network = kind.from_config(own.config, attn_implementation=own.config._attn_implementation)
    assert network.num_parameters() == own.num_parameters(), "not the same network"
    rows = torch.arange(training.batch_size).numpy()
    batches = [stream.batch(0, Phase("adapt"), 0, step, training.batch_size, rows, None) for step in range(BATCHES)]
    watch = Stopwatch(config.budget.amount, device)  # type: ignore[arg-type]
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=training.batch_size,
            max_steps=10**9,
            learning_rate=training.learning_rate,  # type: ignore[arg-type]
            adam_beta1=training.betas[0],
            adam_beta2=training.betas[1],
            adam_epsilon=training.epsilon,
            weight_decay=training.weight_decay,
            max_grad_norm=training.clip or 0.0,
            optim="adamw_torch_fused",
            bf16=training.precision == "bf16",
            use_cpu=device.type == "cpu",
            save_strategy="no",
            logging_strategy="no",
            report_to="none",
            disable_tqdm=True,
        )
        Trainer(model=network, args=arguments, train_dataset=Rows(batches, stream.masked), callbacks=[watch]).train()
    return watch.steps_per_second * training.batch_size * stream.length


SIDES = {"ours": ours, "theirs": theirs}


def turn(side: str, number: int, folder: str) -> float:
    """The tokens a second of one side, in a process of its own."""
    this = [sys.executable, "-m", "tests.tools.time_trainer", *sys.argv[1:], "--turn", side, str(number), folder]
    return float(subprocess.run(this, check=True, stdout=subprocess.PIPE, text=True).stdout.split()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--architecture", default="bert")
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--hidden-size", type=int, default=384)
    parser.add_argument("--vocabulary", type=int, default=8192)
    parser.add_argument("--length", type=int, default=128, help="text tokens of a row")
    parser.add_argument("--batch", type=int, default=32, help="rows")
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="bf16")
    parser.add_argument("--turn", nargs=3, metavar=("SIDE", "NUMBER", "FOLDER"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.turn:
        side, number, folder = options.turn
        print(SIDES[side](config_of(options, int(number)), Store(Path(folder))))
        return
    with tempfile.TemporaryDirectory() as folder:
        corpus_of(config_of(options, 0), Store(Path(folder)))  # text is tokenised once, on no clock
        ratios = []
        for number in range(options.turns):
            found = {side: turn(side, number, folder) for side in SIDES}
            ratios.append(found["ours"] / found["theirs"])
            print(
                f"turn {number + 1}  ours {found['ours']:9,.0f} tokens/s, Trainer {found['theirs']:9,.0f} tokens/s, "
                f"{ratios[-1]:.2f} times as fast",
                flush=True,
            )
        print(f"{statistics.median(ratios):.2f} times as fast, median of {options.turns} turns")


if __name__ == "__main__":
    main()
