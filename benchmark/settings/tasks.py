"""Settings of a suite's downstream tasks, and of fine-tuning on them. No torch here."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Literal

from pydantic import Field, model_validator

from benchmark.settings.base import NAME, Settings
from benchmark.settings.decides import FINE_TUNING, NOTHING, PLACE, ROWS, SCORE, TEXT
from benchmark.settings.texts import HubSource

Prompt = Literal["right", "none", "wrong", "picked"]
Protocol = Literal["finetune", "linear_probe"]
Split = Literal["train", "dev", "test"]
SPLITS: tuple[Split, ...] = ("train", "dev", "test")


class HubTask(HubSource):
    """A labelled Hugging Face dataset (`pip install -e .[hf]`).

    Splits may be slices, e.g. "train[:90%]".
    """

    train: Annotated[str, TEXT] = Field("train", description="the split to train on")
    dev: Annotated[str, TEXT] = Field(
        "validation", description="the split that decides when to stop"
    )
    test: Annotated[str, TEXT] = Field("test", description="the split that is scored")
    text_field: Annotated[str, TEXT] = Field("text", description="the column of the text")
    pair_field: Annotated[str | None, TEXT] = Field(
        None, description="the column of a second text, for pairs"
    )
    label_field: Annotated[str, TEXT] = Field("label", description="the column of the class")


class Docstrings(Settings):
    """A task on documentation that its domain holds out: which part of a package is a passage from?

    See `benchmark.downstream.passages`.
    """

    classes: Annotated[int, TEXT] = Field(
        5, ge=2, description="how many classes: the largest parts of the domain's packages"
    )
    examples: Annotated[int, TEXT] = Field(
        80, ge=10, description="examples per class at most. Half of them train, a fifth are dev"
    )
    characters: Annotated[int, TEXT] = Field(200, ge=50, description="length of a passage")


class Task(Settings):
    """One classification task and its hyper-parameters, by default the paper's (tab:finetune).

    Exactly one of files (`train`, `dev` and `test`), `dataset`, `docstrings` and `which_domain`
    says where the examples come from.
    """

    name: Annotated[str, SCORE] = Field(
        pattern=NAME, max_length=60, description="its name in records and commands"
    )
    title: Annotated[str, NOTHING] = Field("", description="its name in tables (default: `name`)")
    domain: Annotated[str, SCORE] = Field(
        "", description="the domain that it belongs to. A task with which_domain has none"
    )
    train: Annotated[str | None, PLACE] = Field(
        None, description="JSON Lines with text, label and, for pairs, text_pair, also as .gz"
    )
    dev: Annotated[str | None, PLACE] = Field(
        None, description="a file as `train`. The score on it decides when to stop"
    )
    test: Annotated[str | None, PLACE] = Field(
        None, description="a file as `train`. The score on it is reported"
    )
    dataset: HubTask | None = Field(None, description="a dataset of the Hugging Face Hub")
    docstrings: Docstrings | None = Field(
        None, description="passages of the documentation that its domain holds out"
    )
    which_domain: Annotated[bool, TEXT] = Field(
        False,
        description="passages of all validation text, whose class is their domain. Only linear "
        "probes score it",
    )
    metric: Annotated[Literal["accuracy", "micro_f1", "macro_f1"], SCORE] = Field(
        "macro_f1", description="the metric that is reported"
    )
    learning_rate: Annotated[float, FINE_TUNING] = Field(
        2e-5, gt=0, description="the peak of the learning rate"
    )
    batch_size: Annotated[int, FINE_TUNING] = Field(256, gt=0, description="examples per step")
    weight_decay: Annotated[float, FINE_TUNING] = Field(
        0.1, ge=0, description="AdamW's weight decay"
    )
    max_epochs: Annotated[int, FINE_TUNING] = Field(
        10, gt=0, description="passes over train at most"
    )
    schedule: Annotated[Literal["linear", "constant"], FINE_TUNING] = Field(
        "linear", description="how the learning rate falls after warm-up"
    )
    warmup: Annotated[float, FINE_TUNING] = Field(
        0.06, ge=0, lt=1, description="share of all steps in which the rate rises"
    )
    seeds: Annotated[int | None, ROWS] = Field(
        None, gt=0, description="number of fine-tuning seeds (default: finetuning.seeds)"
    )

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

    protocols: Annotated[tuple[Protocol, ...], ROWS] = Field(
        ("finetune",),
        min_length=1,
        description="finetune: train all weights. linear_probe: logistic regression on the "
        "states of the frozen model",
    )
    stages: Annotated[Literal["every", "last"], ROWS] = Field(
        "every", description="score models after every stage, or only after the last"
    )
    seeds: Annotated[int, ROWS] = Field(
        5,
        gt=0,
        description="seeds per task, from 0. They draw the head, the order, dropout and the "
        "wrong prompt",
    )
    prompts: Annotated[tuple[Prompt, ...], ROWS] = Field(
        ("right",),
        min_length=1,
        description="prompts of models with domain prompts. Only final models are scored with "
        "others than right",
    )
    patience: Annotated[int, FINE_TUNING] = Field(
        3, gt=0, description="stop after so many epochs without a better dev score"
    )
    precision: Annotated[Literal["auto", "fp32", "bf16", "fp16"], FINE_TUNING] = Field(
        "auto", description="auto: bf16 where it is faster, else fp16 on GPUs from V100 on"
    )
    forward_tokens: Annotated[int, NOTHING] = Field(
        32_768, gt=0, description="tokens per forward pass. Larger batches accumulate gradients"
    )

    def list_trials(self, task: Task) -> list[tuple[Protocol, int]]:
        """Each protocol that scores the task, with each of its seeds.

        A linear probe has one seed, because it draws nothing but a wrong prompt.
        """
        seeds = {"finetune": range(task.seeds or self.seeds), "linear_probe": range(1)}
        ways: Iterable[Protocol] = (
            ("linear_probe",) if task.which_domain else dict.fromkeys(self.protocols)
        )
        return [(protocol, seed) for protocol in ways for seed in seeds[protocol]]


class Evaluate(Settings):
    """Tasks of lm-evaluation-harness for each causal model after its stage, without fine-tuning.

    They need `pip install -e .[lm-eval]`. Add `zero_shot_by_stage` to `tables` to see the scores.
    """

    tasks: Annotated[tuple[str, ...], ROWS] = Field(
        (), description='tasks or groups of the harness, such as ["hellaswag"]'
    )
    folder: Annotated[str | None, PLACE] = Field(
        None, description="a folder with more tasks: YAML files and what they read"
    )
    num_fewshot: Annotated[int | None, SCORE] = Field(
        None, ge=0, description="examples before a question (default: the task's)"
    )
    limit: Annotated[int | None, SCORE] = Field(
        None, gt=0, description="questions per task at most"
    )
