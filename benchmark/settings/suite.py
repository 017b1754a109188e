"""Suites: what to compare, on which text, with which models, under which budget.

A suite is a TOML file, which benchmark/settings/load.py reads into the frozen models below. Their
docstrings and fields say what every key means. A `Suite` expands into `RunConfig`s, one for each
row of its tables and each seed. A `RunConfig` contains everything that determines a run.

No torch here: `run_all.py --help`, `--dry-run` and the reports must be quick.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    ConfigDict,
    Field,
    PositiveFloat,
    PrivateAttr,
    ValidationInfo,
    field_validator,
    model_validator,
)

from benchmark.settings.base import DecayRate, Seeds, Settings, ShareOfPhase, digest
from benchmark.settings.decides import (
    NOTHING,
    PLACE,
    ROWS,
    STEPS,
    TEXT,
    WEIGHTS,
    Decides,
    Purpose,
    describe,
)
from benchmark.settings.names import check_architecture, find_equal_labels, make_row_slug
from benchmark.settings.optimizers import OPTIMIZERS, find_optimizer
from benchmark.settings.schedules import ScheduleName
from benchmark.settings.tasks import Evaluate, Finetuning, Task
from benchmark.settings.texts import Domain, Replay
from benchmark.settings.units import UNITS, Work


class Tokenizer(Settings):
    """A byte-level BPE from `folder`, or one that is trained on a sample of `domains`."""

    folder: Annotated[str | None, Decides("place", step_time=True)] = Field(
        None,
        description="a folder with vocab.json and merges.txt. Without it, a tokenizer is trained",
    )
    vocabulary: Annotated[int, Decides("text", step_time=True)] = Field(
        8192, ge=300, description="ids of a trained tokenizer, special ones included"
    )
    domains: Annotated[tuple[str, ...], TEXT] = Field(
        (), description="the domains to train it on (default: all of the stream)"
    )
    sample_bytes: Annotated[int, TEXT] = Field(
        4_000_000, gt=0, description="bytes of each domain's training text it is trained on"
    )


class Data(Settings):
    """How text becomes sequences and memory."""

    sequence_length: Annotated[int, STEPS] = Field(
        512, ge=8, description="tokens of a sequence: `<s>`, a prompt, the text"
    )
    valid_share: Annotated[float, TEXT] = Field(
        0.05,
        gt=0,
        lt=1,
        description="share of the documents for validation, without validation files",
    )
    max_train_tokens: Annotated[int | None, TEXT] = Field(
        None, gt=0, description="how many tokens of each domain are read, from its beginning"
    )
    max_valid_bytes: Annotated[int, TEXT] = Field(
        4_000_000,
        gt=0,
        description="validation text per domain, in whole documents. It is the same for every "
        "tokenizer",
    )
    max_valid_tokens: Annotated[int | None, TEXT] = Field(
        None,
        gt=0,
        description="as max_valid_bytes, in tokens, for older suites. The text then depends on "
        "the tokenizer",
    )
    near_copies: Annotated[Literal["drop", "keep"], ROWS] = Field(
        "drop",
        description="what happens to validation documents and test examples of which most "
        "stands in training text. keep leaves published splits as they are",
    )
    document_mask: Annotated[bool, STEPS] = Field(
        False,
        description="keep the documents of a sequence apart. The paper does not. Without this, a "
        "masked model may have to predict the `</s>` between them",
    )
    memory_tokens: Annotated[int, STEPS] = Field(
        200_000_000,
        ge=0,
        description="size of the memory per earlier domain, a random sample. 0 is no memory",
    )
    memory_seed: Annotated[Literal["fixed", "run"], WEIGHTS] = Field(
        "fixed", description="fixed: the same sample in all runs. run: another sample for each seed"
    )

    @property
    def text_length(self) -> int:
        """N, the number of text tokens of a sequence."""
        return self.sequence_length - 2


class Size(Settings):
    """One size of a ladder. The feed-forward layer is four times as wide."""

    layers: Annotated[int, STEPS] = Field(gt=0, description="Transformer layers")
    hidden_size: Annotated[int, STEPS] = Field(
        gt=0, description="width of the hidden states, a multiple of head_size"
    )

    def __str__(self) -> str:
        return f"L{self.layers}_D{self.hidden_size}"


class Start(Settings):
    """The start model of a run: its folder on this machine, and a hash of its files."""

    folder: Annotated[str, PLACE]
    key: Annotated[str, WEIGHTS]


class Model(Settings):
    """Architecture, and the ladder of sizes: one size per domain.

    Methods that do not grow keep the first size. With `start` the stream begins with that model,
    which has its own architecture, head size, dropout and first size. The ladder gives later sizes.
    """

    architecture: Annotated[Annotated[str, AfterValidator(check_architecture)], STEPS] = Field(
        "bert", description="a file in benchmark/models/architectures/"
    )
    start: Annotated[str | None, Decides("place", step_time=True)] = Field(
        None,
        description="a Hugging Face folder, or a name on the Hub, to begin with",
    )
    revision: Annotated[str | None, Decides("place", step_time=True)] = Field(
        None, description="the branch, tag or commit of `start` on the Hub"
    )
    ladder: tuple[Size, ...] = Field(
        (),
        description="a size per domain, never a smaller one. With `start`, only sizes of later "
        "domains",
    )
    head_size: Annotated[int, STEPS] = Field(
        64, gt=0, description="width of an attention head, the same for every size of the ladder"
    )
    dropout: Annotated[float, STEPS] = Field(
        0.1, ge=0, lt=1, description="dropout of hidden states and attention in training"
    )
    init: Annotated[Literal["fixed", "scaled"], WEIGHTS] = Field(
        "fixed",
        description="standard deviation of new weights. fixed: 0.02 at 768 units. scaled: "
        "1/sqrt(inputs), divided by sqrt(2 layers) where a layer adds to the "
        "residual stream",
    )

    @model_validator(mode="after")
    def _check_sizes(self) -> Model:
        if not self.start and not self.ladder:
            raise ValueError(
                "ladder: missing; give a size for each domain, or a model to start from"
            )
        if not self.start and self.revision:
            raise ValueError(
                "revision goes with start: name a model to start from, or leave it out"
            )
        for smaller, size in pairwise(self.ladder):
            if size.layers < smaller.layers or size.hidden_size < smaller.hidden_size:
                raise ValueError(
                    f"ladder: {size} after {smaller}: a model can grow, not shrink: give sizes "
                    "that never fall"
                )
        for size in self.ladder if not self.start else ():  # a start model has its own heads
            if size.hidden_size % self.head_size:
                raise ValueError(
                    f"hidden_size {size.hidden_size} is not a multiple of head_size "
                    f"{self.head_size}: change one"
                )
        return self


PerStage = tuple[float, ...] | float


class Training(Settings):
    """The optimisation, the same for every method. A list gives one value per stage."""

    batch_size: Annotated[int, STEPS] = Field(
        2048, gt=0, description="sequences per step, over all processes"
    )
    micro_batch_size: Annotated[int | None, STEPS] = Field(
        None, gt=0, description="sequences per forward pass (default: all of a process)"
    )
    learning_rate: Annotated[tuple[PositiveFloat, ...] | PositiveFloat, WEIGHTS] = Field(
        5e-4, description="the peak of the learning rate in each phase"
    )
    rate_scaling: Annotated[Literal["none", "mup"], WEIGHTS] = Field(
        "none",
        description="mup: the learning rate of a matrix is learning_rate times rate_width / "
        "hidden_size (Yang et al. 2022), so that a rate tuned at one width is near the best at "
        "another. It is for adamw and init = scaled",
    )
    rate_width: Annotated[int | None, WEIGHTS] = Field(
        None, gt=0, description="the hidden size for which learning_rate is meant under mup"
    )
    warmup: Annotated[tuple[ShareOfPhase, ...] | ShareOfPhase, WEIGHTS] = Field(
        0.08, description="the share of a phase in which the rate rises"
    )
    schedule: Annotated[ScheduleName, WEIGHTS] = Field(
        "linear", description="how the rate falls after that"
    )
    optimizer: Annotated[str, STEPS] = Field(
        "adamw",
        description=". ".join(f"{kind.name}: {kind.described}" for kind in OPTIMIZERS.values()),
    )
    optimizer_options: Annotated[dict[str, int | float | bool | str], STEPS] = Field(
        {}, description="options of the optimizer"
    )
    betas: Annotated[tuple[DecayRate, DecayRate], WEIGHTS] = Field(
        (0.9, 0.98), description="Adam's decay rates of both moments"
    )
    epsilon: Annotated[float, WEIGHTS] = Field(
        1e-6, gt=0, le=1, description="Adam's epsilon, added to the root of the second moment"
    )
    weight_decay: Annotated[float, WEIGHTS] = Field(
        0.01, ge=0, description="weight decay, decoupled from the gradient except in sgd"
    )
    decay: Annotated[Literal["all", "matrices"], WEIGHTS] = Field(
        "all",
        description="which weights decay. all: all, as in the paper. matrices: no norm, bias, "
        "embedding or prompt. The default is matrices with model.start or muon",
    )
    fused_maps: Annotated[Literal["whole", "apart"], STEPS] = Field(
        "whole",
        description="how muon takes a matrix that holds several maps, such as query, key and "
        "value of GPT-2. whole: as one matrix. apart: each map by itself, the "
        "default with muon",
    )
    max_grad_norm: Annotated[float | None, STEPS] = Field(
        None,
        gt=0,
        description="the largest gradient norm. Without it there is no limit, as in the paper",
    )
    precision: Annotated[Literal["auto", "fp32", "bf16", "fp16"], STEPS] = Field(
        "auto", description="auto: bf16 where it is faster, else fp16 on GPUs from V100 on"
    )
    compile: Annotated[bool | str, STEPS] = Field(
        False, description="use torch.compile. A text names its backend"
    )
    shard: Annotated[bool, STEPS] = Field(
        False,
        description="shard weights, gradients and moments over the processes (FSDP2), and "
        "recompute activations. It is for models that fit no GPU (docs/models.md)",
    )
    checkpoint_seconds: Annotated[float, NOTHING] = Field(
        600, gt=0, description="seconds between checkpoints. A kill loses at most so much training"
    )
    evaluations: Annotated[int, ROWS] = Field(
        5,
        ge=1,
        description="evaluations per stage, evenly over its budget, the last one at its end",
    )
    deterministic: Annotated[bool, STEPS] = Field(
        False,
        description="give the same bits each time on one kind of device with as many threads, or "
        "an error where torch cannot",
    )

    @model_validator(mode="after")
    def _check_optimizer(self) -> Training:
        find_optimizer(self.optimizer).replace_options(self.optimizer_options)
        if (self.rate_scaling == "mup") != (self.rate_width is not None):
            raise ValueError(
                "rate_scaling = 'mup' and rate_width go together: give both or neither"
            )
        if self.shard and (self.compile or self.precision == "fp16"):
            raise ValueError(
                "shard goes neither with compile nor with precision 'fp16': leave one of them out"
            )
        return self


class Budget(Settings):
    """The budget of every method for a stage. A list has one amount per stage."""

    unit: Annotated[str, WEIGHTS] = Field(
        "seconds", description=". ".join(f"{name}: {unit.meaning}" for name, unit in UNITS.items())
    )
    amount: Annotated[tuple[PositiveFloat, ...] | PositiveFloat, WEIGHTS] = Field(
        description="what a stage may spend"
    )
    reference: Annotated[str | None, PLACE] = Field(
        None,
        validate_default=True,
        description="the file of step times for unit reference, from `run_all.py speed`",
    )

    @field_validator("unit")
    @classmethod
    def _check_unit(cls, unit: str) -> str:
        if unit not in UNITS:
            raise ValueError(f"no such unit; there are {', '.join(UNITS)}")
        return unit

    @field_validator("reference")
    @classmethod
    def _check_reference(cls, reference: str | None, info: ValidationInfo) -> str | None:
        """The table of step times, None for a unit that needs none.

        `--set budget.unit=seconds` may have replaced a unit that needs one.
        """
        unit = info.data.get("unit")
        if unit not in UNITS or not UNITS[unit].by_table:
            return None
        if reference is None:
            raise ValueError(
                "unit 'reference' needs a table: reference = 'FILE', made by `run_all.py speed`"
            )
        return reference


class Row(Settings):
    """One row of a suite's tables: a method, its options, and what it overrides of the suite."""

    name: Annotated[str, ROWS] = Field(
        "", description="the row's label (default: the method's title)"
    )
    method: Annotated[str, ROWS] = Field(description="a file in methods/")
    options: Annotated[dict[str, Any], ROWS] = Field(
        {}, description="options of the method, besides the suite's"
    )
    set: Annotated[dict[str, Any], ROWS] = Field(
        {}, description='suite keys that the row overrides, such as {"data.memory_tokens" = 1000}'
    )


class Tuned(Settings):
    """The search that chose options (`run_all.py tune`).

    It is for the records, and no part of a run's identity.
    """

    configurations: Annotated[int, NOTHING] = Field(
        gt=0, description="as many were tried for each row"
    )
    domains: Annotated[int, NOTHING] = Field(2, gt=0, description="the first ones, of the search")
    spent: Annotated[float, NOTHING] = Field(
        gt=0, description="on a row's search, in the unit of its budget"
    )
    unit: Annotated[str, NOTHING] = Field(description="of the search's budget")


class Suite(Settings):
    """A comparison. `methods` are rows with default options. `rows` add variants.

    `methods` takes names of files in `methods/` and of groups. "baselines" is every file that names
    no other group, also a new one. "controls" and "references" are the other groups. A group leaves
    out names that stand beside it. Studies name each method.
    """

    model_config = ConfigDict(extra="allow")  # sections of executors, see load

    name: Annotated[str, NOTHING] = Field(
        pattern=r"^[^\s./\\-][^/\\]*$",
        max_length=100,
        description="name of the folder of its report (default: the file's name)",
    )
    title: Annotated[str, NOTHING] = Field(description="one line that names the comparison")
    seeds: Annotated[Seeds, ROWS] = Field(
        (0,), description="each row is trained once for each seed"
    )
    methods: Annotated[tuple[str, ...], ROWS] = Field(
        ("baselines",), description="rows with default options"
    )
    rows: tuple[Row, ...] = Field((), description="further rows, after those of `methods`")
    options: Annotated[dict[str, dict[str, Any]], ROWS] = Field(
        {}, description="options of a method, in all of its rows"
    )
    tables: Annotated[tuple[str, ...], NOTHING] = Field(
        ("main_pretraining", "trend_main"),
        description="files in paper_tables/ that a report shows",
    )
    paper: Annotated[bool, NOTHING] = Field(
        False, description="whether reports show the paper's claims and numbers beside ours"
    )
    domains: tuple[Domain, ...] = Field(
        min_length=1, description="the stream: one stage per domain, in this order"
    )
    order: Annotated[Literal["given", "permute"], ROWS] = Field(
        "given",
        description="order of the domains. given: as listed. permute: another for each seed",
    )
    tokenizer: Tokenizer = Field(Tokenizer(), description="how text becomes tokens")
    data: Data = Field(Data(), description="how tokens become sequences and memory")
    model: Model = Field(description="architecture and sizes")
    training: Training = Field(Training(), description="how models are optimised")
    budget: Budget = Field(description="what a stage may spend")
    probes: tuple[Domain, ...] = Field(
        (),
        description="texts on which models are evaluated, but not trained. A replayed one is "
        "also trained on",
    )
    replay: Replay | None = Field(None, description="a probe whose training text is in each batch")
    tasks: tuple[Task, ...] = Field((), description="downstream tasks")
    finetuning: Finetuning = Field(Finetuning(), description="how tasks are scored")
    evaluate: Evaluate = Field(Evaluate(), description="tasks that are scored without fine-tuning")
    tuned: Annotated[Tuned | None, NOTHING] = Field(
        None, description="how a search chose the rows' options. `tune` writes it"
    )
    _command_arguments: str = PrivateAttr("")
    _built_in: tuple[str, ...] = PrivateAttr(())

    @property
    def command_arguments(self) -> str:
        """The words that name the suite on a command line, for messages with a next command."""
        return self._command_arguments or self.name

    @property
    def built_in(self) -> tuple[str, ...]:
        """The names of suites of `benchmark/suites/` that it is or extends, the nearest first."""
        return self._built_in

    @property
    def sections(self) -> dict[str, Any]:
        """What jobs ask of executors, by executor, each of which checks its own section."""
        return self.model_extra or {}

    @model_validator(mode="after")
    def _check_consistency(self) -> Suite:
        names = [domain.name for domain in self.domains]
        texts = (*self.domains, *self.probes)
        for place, parts in (("domains and probes", texts), ("tasks", self.tasks)):
            counts = Counter(part.name for part in parts)
            repeated = [name for name, count in counts.items() if count > 1]
            if repeated:
                raise ValueError(f"{place}: two have the name {repeated[0]!r}: give each its own")
            equal_labels = find_equal_labels(part.label for part in parts)
            if equal_labels:
                raise ValueError(
                    f"{place}: {' and '.join(map(repr, equal_labels))} would be one column of a "
                    "table: give each its own title"
                )
        for name in self.tokenizer.domains:
            if name not in names or self.tokenizer.domains.count(name) > 1:
                raise ValueError(
                    f"tokenizer.domains: no domain {name!r}, or twice; there are {', '.join(names)}"
                )
        probes = [probe.name for probe in self.probes]
        if self.replay and self.replay.text not in probes:
            raise ValueError(
                f"replay.text: no probe {self.replay.text!r}; there are "
                f"{', '.join(probes) or 'none'}"
            )
        for task in self.tasks:
            if task.domain and task.domain not in names:
                raise ValueError(
                    f"tasks: {task.name} is of domain {task.domain!r}; there are {', '.join(names)}"
                )
        if self.tasks and "wrong" in self.finetuning.prompts and len(names) < 2:
            raise ValueError(
                "finetuning.prompts: a wrong prompt is another domain's, and there is one domain: "
                'leave "wrong" out'
            )
        per_stage: dict[str, Any] = {
            "training.learning_rate": self.training.learning_rate,
            "training.warmup": self.training.warmup,
            "budget.amount": self.budget.amount,
        }
        if self.model.ladder:
            first_size = ("the start model's",) if self.model.start else ()
            per_stage["model.ladder"] = (*first_size, *self.model.ladder)
        for key, value in per_stage.items():
            if isinstance(value, tuple) and len(value) != len(names):
                raise ValueError(
                    f"{key}: {len(value)} values for {len(names)} domains; give one per domain"
                )
        return self


class RunConfig(Settings):
    """All that determines a run: suite, a row's overrides, its method and options, and the seed."""

    suite: Annotated[str, NOTHING]
    row: Annotated[str, ROWS]
    row_index: Annotated[int, NOTHING]
    method: Annotated[str, ROWS]
    options: Annotated[dict[str, Any], ROWS]
    seed: Annotated[int, WEIGHTS]
    domains: tuple[Domain, ...]
    tokenizer: Tokenizer
    data: Data
    model: Model
    training: Training
    budget: Budget
    probes: tuple[Domain, ...] = Field(())
    replay: Replay | None = Field(None)
    start: Start | None = Field(None)
    tasks: Annotated[tuple[Task, ...], NOTHING] = Field(
        (), description="what its models are scored on; no part of the run's identity"
    )
    tuned: Annotated[Tuned | None, NOTHING] = Field(None)  # None: no search chose its options
    places: Annotated[tuple[int, ...], WEIGHTS] = Field(
        (),
        description="of the domains in the suite's list, where they have another order",
    )
    sections: Annotated[dict[str, Any], NOTHING] = Field(
        {}, description="what it asks of executors, by their names; no part of its identity"
    )

    @property
    def learned(self) -> tuple[Domain, ...]:
        """The texts that weights depend on: the domains, and the replayed text."""
        replayed = self.replay.text if self.replay and self.replay.share else ""
        return (*self.domains, *(probe for probe in self.probes if probe.name == replayed))

    @property
    def label(self) -> str:
        """Row and seed, `elle-s0`."""
        return f"{make_row_slug(self.row)}-s{self.seed}"

    @property
    def tokenizer_note(self) -> str:
        """A warning if the tokenizer is trained on domains after the first one, else ""."""
        names = [domain.name for domain in self.domains]
        first = names[0]
        later = [name for name in self.tokenizer.domains or names if name != first]
        if self.model.start or self.tokenizer.folder or not later:
            return ""
        return (
            f"The tokenizer is trained on later domains too ({len(later)}), which no model has met "
            f'before their stage; on the first alone: tokenizer.domains = ["{first}"].'
        )

    def describe_expected_passes(self, tokens: Sequence[int]) -> str:
        """Passes over the text, as known before training, given the tokens of each domain."""
        tokens_per_step = self.training.batch_size * self.data.text_length
        replayed_share = self.replay.share if self.replay else 0
        labels = [domain.label for domain in self.domains]
        sizes = dict(zip(labels[: len(tokens)], tokens, strict=True))
        cost = UNITS[self.budget.unit].cost
        # 0: a step's cost in this unit is known only once it is trained
        step_cost = cost(Work(steps=1, tokens=tokens_per_step)) if cost else 0
        passes: dict[str, list[float]] = {}
        if step_cost:
            for stage, (label, size) in enumerate(sizes.items()):
                steps = pick_for_stage(self.budget.amount, stage) / step_cost
                tokens_read = steps * (tokens_per_step * (1 - replayed_share))
                passes[label] = [tokens_read / size]
        held = {}
        for label in [*sizes][:-1]:
            share = self.data.memory_tokens / sizes[label]
            held[label] = [min(1, share)]
        return describe_passes(passes, held)

    @property
    def id(self) -> str:
        """Row, seed, and a hash of all else that decides which run a table shows."""
        return f"{self.label}-{digest(describe(self, *DECIDE_A_RUN))}"


DECIDE_A_RUN: tuple[Purpose, ...] = ("weights", "text", "rows")
Suites = Sequence[tuple[Suite, Sequence[RunConfig]]]  # with their runs


def pick_for_stage(value: PerStage, stage: int) -> float:
    """The value in `stage` (counted from 0) of a setting that may be a tuple, in records a list."""
    if isinstance(value, tuple | list):
        return value[stage]
    return value


LISTED = 12  # the most domains that are named one by one


def describe_passes(
    read: Mapping[str, Sequence[float]], held: Mapping[str, Sequence[float]]
) -> str:
    """Two sentences: how often a stage reads its domain, and which share of a domain is memory."""
    passes = memory = ""
    if read:
        passes = (
            "Tokens read in a stage over those of its domain, memory's included: "
            f"{_format_ranges(read, ',.1f')}."
        )
    elif held:
        passes = "How often a stage reads its domain is known once it is trained."
    if any(map(any, held.values())):
        memory = f"The memory's share of a domain: {_format_ranges(held, '.1%')}."
    return f"{passes} {memory}".strip()


def _format_ranges(values: Mapping[str, Sequence[float]], form: str) -> str:
    """The smallest and largest value of each domain, or of all if there are more than LISTED."""
    if len(values) > LISTED:
        all_values = [value for numbers in values.values() for value in numbers]
        values = {f"of {len(values)} domains": all_values}
    ranges = []
    for title, numbers in values.items():
        ends = []
        for end in (min(numbers), max(numbers)):
            would_round_to_0 = end < 0.05 and "%" not in form
            ends.append(format(end, ".1g" if would_round_to_0 else form))
        ranges.append(f"{title} {' to '.join(dict.fromkeys(ends))}")
    return ", ".join(ranges)
