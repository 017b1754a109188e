"""The lines in files of records, one type a kind, with what programs read of them; `benchmark.records` explains them.

A field that is not required came later, or belongs to some lines only.
"""

from __future__ import annotations

import sys
from typing import Literal, TypedDict

if sys.version_info >= (3, 11):
    from typing import NotRequired
else:
    from typing_extensions import NotRequired

from benchmark.run_description import RunLine

Spent = dict[str, float]  # by unit


class Hardware(TypedDict):
    """What a wall time depends on."""

    device: str  # the GPU's name, or "CPU"
    count: int  # of processes
    cpu: str
    instructions: NotRequired[str]  # the vector instructions that torch uses on it, e.g. AVX2: sums round differently
    cores: NotRequired[int | None]  # of the machine
    own_cores: NotRequired[list[int]]  # those that this process may run on
    side_by_side: NotRequired[int]  # runs at a time on the machine
    threads: NotRequired[int]
    node: NotRequired[str]
    exclusive: NotRequired[bool | str | None]


class Provenance(TypedDict):
    """How a stage was trained."""

    code: str  # the commit where there is one, and a hash of the sources that trained
    packages: dict[str, str]  # versions
    hardware: Hardware
    threads: int
    precision: str
    world_size: int


class SourceRecord(TypedDict):
    domain: str


class PhasePlan(TypedDict):
    """A phase as its method asks for it."""

    name: str
    share: float
    memory: float
    trains: bool
    memory_batch: NotRequired[float]
    sources: NotRequired[list[SourceRecord]]


class PhaseSpending(TypedDict):
    """What a finished phase has spent, in further units too."""

    name: str
    seconds: float
    steps: float
    tokens: float


class StageBudget(TypedDict):
    unit: str
    amount: float


class StageLine(TypedDict):
    """How a stage begins."""

    kind: Literal["stage"]
    time: NotRequired[float]
    key: str
    index: int
    domain: str
    parameters: int
    trainable: int
    layers: int
    hidden_size: int
    phases: list[PhasePlan]
    budget: StageBudget
    provenance: Provenance
    data: dict[str, dict[str, object]]  # by domain, what its tokens were made of
    texts: NotRequired[dict[str, str]]
    moved_from: NotRequired[str]  # the key that it had in an older version
    lost: NotRequired[float]  # seconds that are spent again, where it begins anew after a kill


class EvaluationLine(TypedDict):
    """What a stage's model measures at a step; None is a number that overflowed."""

    kind: Literal["evaluation"]
    time: NotRequired[float]
    phase: str
    step: int
    fraction: float
    charged: Spent
    perplexity: dict[str, float | None]
    bits_per_byte: NotRequired[dict[str, float | None]]
    tokens_per_second: NotRequired[float]
    loss: NotRequired[float]  # of the step, in a phase that trains
    learning_rate: NotRequired[float]


class MetricsLine(TypedDict):
    """What a method counts."""

    kind: Literal["metrics"]
    phase: str
    step: int
    values: dict[str, float | None]  # None: not finite


class OptimizerLine(TypedDict):
    """What the optimizer of a phase that carries it on began with."""

    kind: Literal["optimizer"]
    phase: str
    carried: int  # parameters whose moments it goes on with
    new: list[str]  # those that begin anew, because there are no moments of their shape


class ResumedLine(TypedDict):
    """Where training went on from a checkpoint."""

    kind: Literal["resumed"]
    time: NotRequired[float]
    phase: str
    step: int
    charged: NotRequired[Spent]
    lost: NotRequired[float]  # seconds that are spent again
    precision: NotRequired[str]  # that of the run
    auto: NotRequired[str]  # what a run that began on the machine that goes on would have, where that is another


class Measured(TypedDict, total=False):
    """A model on one text; None is a number that overflowed."""

    perplexity: float | None
    bits_per_byte: float | None


class LaterLine(TypedDict):
    """A finished stage's model on a text that came to the stream after it, or a start model on a text."""

    kind: Literal["later"]
    domain: str
    text: str
    perplexity: float | None
    bits_per_byte: float | None


class GrowthRecord(TypedDict):
    """What a growth did."""

    layer_sources: list[int]  # old index of each new layer
    layer_is_copy: list[bool]  # whether a new layer is an inserted copy
    head_sources: list[list[int]]  # for each new layer the old head of each new head
    copied: list[int]  # layers of the grown model that count as copied before; the next growth is given it
    case: Literal["exact", "closest", "approximate"]  # same function up to rounding; as near as can be; the paper's way
    note: str  # why


class CoreShare(TypedDict):
    """What a stage had of its cores while the clock ran."""

    wall: float  # seconds, the longest of its processes
    cpu: float  # seconds, of all its processes
    others: float | None  # cores that other programs or a quota kept, on average, where most; None: cannot be told
    share: float | None  # of the cores that its processes wanted, that others left them, where least
    stood_still: NotRequired[float]  # seconds beside `wall`, and off the clock, in which it was stopped
    jumped: NotRequired[float]  # seconds by which the time of day was set meanwhile, or for which the machine slept


class StageEnd(TypedDict):
    """What a finished stage has spent, and how it grew."""

    charged: Spent
    phases: list[PhaseSpending]
    growth: GrowthRecord | None
    cores: NotRequired[CoreShare]


class DoneLine(StageEnd):
    """How a stage ends."""

    kind: Literal["done"]
    time: NotRequired[float]
    weights: NotRequired[str]  # a hash of its model's
    trained: NotRequired[str | None]  # of that which the next stage goes on from, where it is another
    micro_batch_size: NotRequired[int]  # rows of a forward pass, where memory did not hold as many as were asked for


LineOfStage = StageLine | EvaluationLine | MetricsLine | OptimizerLine | ResumedLine | LaterLine | DoneLine


class RecordedRun(RunLine):
    """A run, as its file has it."""

    kind: Literal["run"]
    time: float


class FailedLine(TypedDict):
    """Why a run ended before its time."""

    kind: Literal["failed"]
    time: NotRequired[float]
    stage: int
    error: str
    micro_batch_size: NotRequired[int]  # with so many rows of a forward pass the next start goes on: memory was short
    key: NotRequired[str]  # likewise, the key of the stage
    seconds: NotRequired[float]  # likewise, that it is charged for attempts which failed


class Baseline(TypedDict):
    """A downstream score that needs no model; scores are from 0 to 1."""

    kind: Literal["baseline", "reference"]  # the latter in an older version
    task: str
    domain: str
    task_key: str  # of its data
    name: str
    metric: str
    test: float
    test_without_leaks: NotRequired[float | None]
    leaks: NotRequired[int]  # examples of test that stand in train


class Score(TypedDict):
    """A fine-tuned model's score, without what names the model; scores are from 0 to 1."""

    kind: Literal["score"]
    task: str
    task_key: str  # of its data
    domain: str
    prompt: Literal["right", "none", "wrong", "picked"]
    seed: int
    metric: str
    dev: float  # of the best epoch
    test: float
    test_without_leaks: NotRequired[float | None]
    leaks: NotRequired[int]  # examples of test that stand in train
    dev_by_epoch: NotRequired[list[float]]
    precision: NotRequired[str]  # of the forward passes
    forward_tokens: NotRequired[int]  # columns of one, where memory did not hold those that were asked for
    seconds: float
    picked_right: NotRequired[float]  # the share of test for which the discriminator picked the task's domain


class RecordedScore(Score):
    """A score, and the model that has it."""

    key: str
    stage_key: str


class Unscored(TypedDict):
    """Why a score could not be computed when it was last tried."""

    kind: Literal["unscored"]
    key: str  # that the score would have
    stage_key: str
    task: str
    prompt: str
    seed: int
    error: str


class Similarity(TypedDict):
    """How like its ancestors a stage's model is."""

    ars: float | None
    divergences: list[float]  # in nats, one an ancestor, oldest first
    positions: int  # of the text that they are means over
    reason: str | None  # why there is none


class SimilarityLine(Similarity):
    """A similarity, and the model and the domain that it was computed for."""

    kind: Literal["similarity"]
    key: str
    stage_key: str
    domain: str


class HeadAttention(TypedDict):
    """What the heads of a stage's model attend to."""

    own: list[float]  # how much as the heads that they came from, one number an ancestor, oldest first
    others: list[float | None]  # and as other heads of that ancestor; None: it has no other
    heads: list[list[int]]  # layer and head of the lineages that the figure shows
    maps: list[list[list[int]]]  # their attention, queries by columns, in thousandths
    reason: str | None  # why there is none


class AttentionLine(HeadAttention):
    """What heads attend to, and the model and the domain that it was read from."""

    kind: Literal["attention"]
    key: str
    stage_key: str
    domain: str


class Submitted(TypedDict):
    """What was submitted: ids of Slurm, except for `key` (what the job does) and those of runs.

    `run` is the run whose training it ends, `serves` are those that it is for (in older files that one).
    """

    id: str
    key: str
    name: str
    run: str | None
    after: list[str]  # jobs that must have ended before
    needs: list[str]  # jobs that must have succeeded before
    log: str
    exclusive: bool | str
    serves: NotRequired[list[str]]
    wired: NotRequired[bool]  # whether the submission itself said what it waits for
    user: NotRequired[int | None]  # who submitted it; None in older files
    cluster: NotRequired[str]  # where; empty in older files
    bundled: NotRequired[bool]  # whether it is in a bundle
    called: NotRequired[str]  # the suite, by the command line that submitted it; empty in older files
    page: NotRequired[str]  # of a report: the file that it writes last; none in older files
    time: float


class Started(TypedDict):
    """Where a job began."""

    node: str
    gpus: NotRequired[str | None]  # CUDA_VISIBLE_DEVICES
    restarts: NotRequired[int]
    time: float


class Ended(TypedDict):
    """Why a job ended, as it said itself."""

    state: Literal["done", "stopped", "failed"]
    error: NotRequired[str]
    traceback: NotRequired[str]
    rank: NotRequired[int]
    restarts: NotRequired[int]  # as in Started; of one that failed
    key: NotRequired[str]
    time: float
