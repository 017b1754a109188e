"""Settings of a suite's downstream tasks, and of fine-tuning on them. No torch here."""

from __future__ import annotations

from collections.abc import Iterable
from operator import not_
from typing import Literal

from pydantic import Field, model_validator

from benchmark.settings.base import NAME, Settings

Prompt = Literal["right", "none", "wrong", "picked"]
How = Literal["finetune", "linear_probe"]
Split = Literal["train", "dev", "test"]
SPLITS: tuple[Split, ...] = ("train", "dev", "test")


class HubTask(Settings):
    """A labelled Hugging Face dataset (`pip install -e .[hf]`).

    Splits may be slices, e.g. "train[:90%]".
    """

    path: str = Field(description="its name on the Hub, e.g. 'nyu-mll/glue'")
    name: str | None = Field(None, description="its configuration, e.g. 'mnli'")
    revision: str | None = Field(
        None, exclude_if=not_, description="a commit, so that it stays the same text"
    )
    train: str = Field("train", description="the split to train on")
    dev: str = Field("validation", description="the split that decides when to stop")
    test: str = Field("test", description="the split that is scored")
    text_field: str = Field("text", description="the column of the text")
    pair_field: str | None = Field(None, description="that of a second text, for pairs")
    label_field: str = Field("label", description="that of the class")


class Docstrings(Settings):
    """A task cut from the documentation that its domain holds out: which part of a package is this?

    See `benchmark.downstream.passages`.
    """

    classes: int = Field(5, ge=2, description="the largest parts of the domain's packages")
    examples: int = Field(80, ge=10, description="of a class at most: half train, a fifth dev")
    characters: int = Field(200, ge=50, description="of a passage")


class Task(Settings):
    """One classification task and its hyper-parameters, by default the paper's (tab:finetune).

    Exactly one of files (`train`, `dev` and `test`), `dataset`, `docstrings` and `which_domain`
    says where the examples come from.
    """

    name: str = Field(pattern=NAME, max_length=60, description="in records and commands")
    title: str = Field("", description="in tables; default: the name")
    domain: str = Field("", description="that it belongs to; none with which_domain")
    train: str | None = Field(
        None, description="JSON Lines of text, label, perhaps text_pair; .gz too"
    )
    dev: str | None = Field(None, description="the same; the score there decides when to stop")
    test: str | None = Field(None, description="the same; the score there is reported")
    dataset: HubTask | None = Field(None, description="of the Hugging Face Hub")
    docstrings: Docstrings | None = Field(None, description="cut from what its domain holds out")
    which_domain: bool = Field(
        False, exclude_if=not_, description="cut from all validation text; for linear probes alone"
    )
    metric: Literal["accuracy", "micro_f1", "macro_f1"] = Field(
        "macro_f1", description="what scores are"
    )
    learning_rate: float = Field(2e-5, gt=0, description="the peak")
    batch_size: int = Field(256, gt=0, description="examples of a step")
    weight_decay: float = Field(0.1, ge=0, description="AdamW's")
    max_epochs: int = Field(10, gt=0, description="passes over train at most")
    schedule: Literal["linear", "constant"] = Field(
        "linear", description="of the learning rate after warm-up"
    )
    warmup: float = Field(0.06, ge=0, lt=1, description="share of the steps of all epochs")
    seeds: int | None = Field(None, gt=0, description="how many; default: finetuning's")

    @model_validator(mode="after")
    def _check_one_source(self) -> Task:
        files = [split for split in SPLITS if getattr(self, split) is not None]
        kinds = ("dataset", "docstrings", "which_domain")
        other_sources = [kind for kind in kinds if getattr(self, kind)]
        sources = len(other_sources) + bool(files)
        if sources != 1 or 0 < len(files) < len(SPLITS):
            names = ", ".join([*files, *other_sources]) or "none"
            raise ValueError(
                "give train, dev and test, or dataset, or docstrings, or which_domain (given: "
                f"{names})"
            )
        if bool(self.domain) == bool(self.which_domain):
            raise ValueError(
                "give the domain that it belongs to, or which_domain, which is of none"
            )
        return self

    @property
    def label(self) -> str:
        return self.title or self.name


class Finetuning(Settings):
    """Settings of scores on the downstream tasks of a suite, the same for every method."""

    how: tuple[How, ...] = Field(
        ("finetune",),
        min_length=1,
        description="all weights, or logistic regression on the states of a frozen model",
    )
    stages: Literal["every", "last"] = Field("every", description="after which a model is scored")
    seeds: int = Field(
        5, gt=0, description="0, 1, ... of each task: for head, order, dropout, wrong prompt"
    )
    prompts: tuple[Prompt, ...] = Field(
        ("right",),
        min_length=1,
        description="of models with domain prompts; all but right for final ones alone",
    )
    patience: int = Field(
        3, gt=0, description="stop after so many epochs without a better dev score"
    )
    precision: Literal["auto", "fp32", "bf16", "fp16"] = Field(
        "auto", description="auto: bf16 where the device has it, else fp16 on GPUs from V100 on"
    )
    forward_tokens: int = Field(
        32_768, gt=0, description="columns of a forward pass; larger batches accumulate"
    )

    def list_trials(self, task: Task) -> list[tuple[How, int]]:
        """The ways to score the task, and seeds of each.

        A linear probe has nothing to draw but a wrong prompt.
        """
        seeds = {"finetune": range(task.seeds or self.seeds), "linear_probe": range(1)}
        ways: Iterable[How] = ("linear_probe",) if task.which_domain else dict.fromkeys(self.how)
        return [(how, seed) for how in ways for seed in seeds[how]]


class Evaluate(Settings):
    """Tasks of lm-evaluation-harness for each causal model after its stage, without fine-tuning.

    It takes `pip install -e .[lm-eval]`. Add `zero_shot_by_stage` to `tables` to see the scores.
    """

    tasks: tuple[str, ...] = Field((), description='of the harness, or groups, e.g. ["hellaswag"]')
    folder: str | None = Field(
        None, description="with further tasks: YAML files and what they read"
    )
    few_shot: int | None = Field(
        None, ge=0, description="examples before a question; default: the task's"
    )
    limit: int | None = Field(None, gt=0, description="so many questions of a task")
