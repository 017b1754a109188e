"""What records say of a run before it starts, in the form in which their lines of kind "run" hold it.

Of settings, which are recorded in full, the types name the ones that tables read.
"""

from __future__ import annotations

import sys
from typing import Any, TypedDict

if sys.version_info >= (3, 11):
    from typing import NotRequired
else:
    from typing_extensions import NotRequired

PerStageRecord = float | list[float]


class Titled(TypedDict):
    """A domain or a probe."""

    name: str
    title: str


class SizeRecord(TypedDict):
    layers: int
    hidden_size: int


class ModelRecord(TypedDict):
    start: NotRequired[str | None]
    architecture: str
    head_size: int
    ladder: list[SizeRecord]


class DataRecord(TypedDict):
    sequence_length: int
    memory_tokens: int


class TrainingRecord(TypedDict):
    learning_rate: PerStageRecord
    warmup: PerStageRecord


class BudgetRecord(TypedDict):
    unit: str
    amount: PerStageRecord


class TunedRecord(TypedDict):
    """How `run_all.py tune` chose the options."""

    configurations: int
    spent: float
    unit: str


class ConfigRecord(TypedDict):
    """The settings of `benchmark.settings.suite.RunConfig`."""

    data: NotRequired[DataRecord]
    model: ModelRecord
    training: TrainingRecord
    budget: BudgetRecord
    tuned: NotRequired[TunedRecord]


class TaskRecord(TypedDict):
    """A downstream task with its hyper-parameters."""

    name: str
    title: str
    domain: str
    metric: str
    learning_rate: float
    batch_size: int
    weight_decay: float
    max_epochs: int
    schedule: str
    warmup: float


class RunDescription(TypedDict):
    """What settings say of a run."""

    id: str
    suite: str
    row: str
    row_index: int
    title: str
    method: str
    options: dict[str, Any]  # of the method, which alone knows their types
    seed: int
    config: ConfigRecord
    tasks: NotRequired[list[TaskRecord]]  # of an earlier version: none, as probes, texts and start
    domains: list[Titled]
    probes: NotRequired[list[Titled]]


class RunLine(RunDescription):
    """The whole line, with what follows from the text."""

    stages: list[str]  # their keys
    unigram: dict[str, float]  # by domain
    texts: NotRequired[dict[str, str]]  # by domain or probe a hash of its validation text
    start: NotRequired[str]  # key of the start model, empty where there is none
