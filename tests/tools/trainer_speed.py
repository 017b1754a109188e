"""Tokens per second of transformers.Trainer, used as its users do, on a model and text of this
project.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    DataCollatorForLanguageModeling,
    PreTrainedTokenizerFast,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

from benchmark.devices import choose_precision, is_out_of_memory, synchronize
from benchmark.settings.suite import RunConfig

WARM_UP = 3  # steps


class Rows(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """Rows of `<s>` and `length` tokens, like the project's own rows."""

    def __init__(self, tokens: NDArray[Any], length: int, first: int) -> None:
        self.length, self.first = length, first
        self.tokens = torch.from_numpy(
            tokens[: len(tokens) // length * length].astype("int64")
        ).view(-1, length)

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": torch.cat([torch.tensor([self.first]), self.tokens[index]])}


class Watch(TrainerCallback):  # type: ignore[misc]
    """Takes the time of all steps after the first few, and ends training after some seconds."""

    def __init__(self, device: torch.device, seconds: float) -> None:
        self.device, self.seconds, self.steps, self.took = device, seconds, 0, 0.0

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == WARM_UP:
            synchronize(self.device)
            self.began = time.perf_counter()
        elif state.global_step > WARM_UP and time.perf_counter() - self.began > self.seconds:
            synchronize(self.device)
            self.took, self.steps = time.perf_counter() - self.began, state.global_step - WARM_UP
            control.should_training_stop = True


def measure_trainer_speed(
    folder: Path, tokens: NDArray[Any], config: RunConfig, device: torch.device, seconds: float
) -> float:
    """Return the tokens per second of training on `device` for some seconds. The model is new, like
    the one in `folder`, and is discarded.

    If a batch does not fit in memory, it is split into twice as many forward passes of half as many
    rows.
    """
    masked = config.model.architecture.startswith("bert")
    kind: Any = AutoModelForMaskedLM if masked else AutoModelForCausalLM
    tokenizer = PreTrainedTokenizerFast.from_pretrained(str(folder))
    rows = config.training.batch_size
    precision = choose_precision("auto", device, config.model.ladder[-1].hidden_size)
    length = config.data.text_length
    with tempfile.TemporaryDirectory() as out:
        while True:
            watch = Watch(device, seconds)
            arguments = TrainingArguments(
                output_dir=out,
                per_device_train_batch_size=rows,
                gradient_accumulation_steps=config.training.batch_size // rows,
                max_steps=10**6,
                learning_rate=5e-4,
                logging_steps=10**6,
                save_strategy="no",
                report_to=[],
                use_cpu=device.type == "cpu",
                bf16=precision == "bf16",
                fp16=precision == "fp16",
                optim="adamw_torch_fused",
                disable_tqdm=True,
                remove_unused_columns=False,
            )
            model = kind.from_config(AutoConfig.from_pretrained(folder), attn_implementation="sdpa")
            trainer = Trainer(
                model=model,
                args=arguments,
                train_dataset=Rows(tokens, length, tokenizer.bos_token_id or 0),
                data_collator=DataCollatorForLanguageModeling(
                    tokenizer, mlm=masked, mlm_probability=0.15
                ),
                callbacks=[watch],
            )
            try:
                trainer.train()
                return watch.steps * config.training.batch_size * length / watch.took
            except (RuntimeError, MemoryError) as error:
                if rows == 1 or not is_out_of_memory(error):
                    raise
            rows //= 2
