"""The interface of a lifelong pre-training method: phases, an objective, changes of gradients.

The loop (`benchmark/training/stage.py`) is the same for all methods. A method says what differs
from continued pre-training. Every second of a stage belongs to one of its phases, so nothing that a
method does escapes the budget.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field

from benchmark.settings.base import ConfigError
from benchmark.settings.optimizers import Optimizer, find_optimizer
from benchmark.settings.schedules import Schedule, ScheduleName
from benchmark.settings.suite import Size, Training

# Ranges of options. A value outside is refused before anything is trained
Share = Annotated[float, Field(ge=0, le=1)]
PartOfStage = Annotated[float, Field(ge=0, lt=1)]  # something is left for the stage's domain
NotNegative = Annotated[float, Field(ge=0, le=1e12)]
Positive = Annotated[float, Field(gt=0, le=1e6)]
Multiple = Annotated[float, Field(ge=0, le=100)]  # of a batch
AtLeastOne = Annotated[int, Field(ge=1, le=1_000_000)]

# controls and references run only if a suite names them. Each stage of a reference may spend the
# budgets of all stages so far
Group = Literal["baselines", "controls", "references"]

OWN = "own"  # the source whose sequences the method makes (`make_sequences`)

if TYPE_CHECKING:
    from torch import Generator, Tensor

    from benchmark.ledger.records import GrowthRecord
    from benchmark.models import LanguageModel
    from benchmark.training.learner import Batch, Learner


@dataclass(frozen=True)
class Source:
    """Sequences of a step that form a separate batch, with a separate loss."""

    # "new", "previous" or "seen" as in Phase, "memory" for the memory of all earlier domains, an
    # earlier domain's name for its memory, or "own" for text that `make_sequences` makes
    domain: str
    share: float = 1.0  # sequences, as a share of training.batch_size
    # factor of these sequences' mean loss. The step's loss sums over the sources
    weight: float = 1.0

    @property
    def from_memory(self) -> bool:
        return self.domain not in ("new", "previous", "seen", OWN)


@dataclass(frozen=True)
class Phase:
    """A part of a stage.

    Each phase that trains starts a fresh optimizer and its own warm-up and decay (the paper).
    `lr_multipliers` maps patterns such as "layers.0.*" to factors. The first that fits a parameter
    decides.
    With `optimizer="carry"` the first training phase of a stage starts from the optimizer state
    that the previous stage ended with. Set it in every stage, also in the first, or in none.
    """

    name: str
    share: float = 1.0  # share of the stage's budget. The shares of a stage sum to 1
    memory: float = 0.0  # share of each batch that is drawn from the memory of all earlier domains
    # text of the rest of the batch. "seen" is all domains so far, also the new one
    domain: Literal["new", "previous", "seen"] = "new"
    trains: bool = True  # False: batches go to on_batch(), no optimizer
    # several batches, in place of the one that `memory` and `domain` describe
    sources: tuple[Source, ...] = ()
    # size of a second batch, as a share of the first. It has only memory sequences, and
    # adjust_gradients receives it
    memory_batch: float = 0.0
    schedule: Schedule | ScheduleName | None = None  # of the learning rate. None is the suite's
    # factors of the learning rate by name (`map_parameter_names`). 0 freezes
    lr_multipliers: Mapping[str, float] = field(default_factory=dict)
    # the phase's end is evaluated and saved, and the next stage starts from the phase's beginning
    discard_after: bool = False
    # "carry": start with the moments of the last phase that trained
    optimizer: Literal["new", "carry"] = "new"


def list_phases(method: LifelongMethod, stage: Stage) -> list[Phase]:
    """The phases of a stage. Raises ConfigError if the method returned anything else."""
    returned = method.phases(stage)
    if isinstance(returned, Iterable):
        phases = list(returned)
        if all(isinstance(phase, Phase) for phase in phases):
            return phases
    raise ConfigError(
        f"{type(method).__name__}.phases returned {returned!r}: let it return a list of Phase"
    )


def keeps_optimizer(phases: Sequence[Phase]) -> bool:
    """Whether a stage starts with the optimizer state of the stage before, and saves its own."""
    return next((phase.optimizer == "carry" for phase in phases if phase.trains), False)


@dataclass(frozen=True)
class StreamInfo:
    """The whole stream, which a lifelong learner cannot know.

    A method that uses it must say so in its signature.
    """

    stages: int
    size: Size  # the last of the ladder
    budget: float  # of all stages


@dataclass(frozen=True, kw_only=True)
class Stage:
    """What a method may know about the stage that begins.

    Only `stream_info` tells about later stages. It is for controls.
    """

    domains: tuple[str, ...]  # all so far, the new one last
    ladder: tuple[Size, ...]  # model sizes so far, one per domain
    spent: float  # sum of the earlier stages' budgets, in the budget's unit
    budget: float  # of this stage
    unit: str  # of the budget: "seconds", "steps", ...
    learning_rate: float  # the peak of this stage
    seed: int  # for random choices of this stage
    build: Callable[[Size], LanguageModel]  # a new model with random weights, on the CPU
    # token ids (sequences, 1+N) from the memory, masked as in training. (0, 1+N) without a memory
    memory_sequences: Callable[[int], Tensor]
    # the previous stage's evaluated model, a copy on the CPU. Not in the first stage
    previous: Callable[[], LanguageModel]
    stream_info: StreamInfo

    @property
    def index(self) -> int:
        """The stage's number in the run, 0 for the first domain."""
        return len(self.domains) - 1

    @property
    def first(self) -> bool:
        """Whether the stream begins here."""
        return self.index == 0

    @property
    def last(self) -> bool:
        """Whether the stream ends here.

        As with `stream_info`, a method that uses this must say so in its signature.
        """
        return self.index == self.stream_info.stages - 1

    @property
    def size(self) -> Size:
        """The size that a growing method reaches in this stage."""
        return self.ladder[self.index]


class LifelongMethod:
    """Naive continued pre-training, and the interface of all methods.

    A subclass is a dataclass in `methods/NAME.py`. Its dataclass fields without `init=False` are
    its options. It overrides what it does differently. In a batch, new sequences come first, then
    memory sequences, each in a fixed number: see `benchmark.training.learner.Batch`.
    """

    title: ClassVar[str] = "Naive"  # label of its row
    # suites train `baselines` by default, `controls` and `references` only if they name them
    group: ClassVar[Group] = "baselines"
    # increase it when the code computes something else, so that stages are trained again
    version: ClassVar[int] = 1
    # whether it does something in the first stage that Naive does not
    acts_first: ClassVar[bool] = False
    # whether it cannot train models that predict masked tokens
    causal_only: ClassVar[bool] = False
    # whether it keeps, adds or looks into weights, so that none can be sharded
    needs_full_weights: ClassVar[bool] = False
    # whether its weights may equal Naive's, which `check` otherwise takes for a mistake
    may_equal_naive: ClassVar[bool] = False
    # values of options that `run_all.py tune` may choose from
    search_space: ClassVar[Mapping[str, Sequence[Any]]] = {}
    # attributes that later steps and stages need: tensors, numbers, lists, dicts
    state: ClassVar[tuple[str, ...]] = ()
    # its own optimizer, a record or a name. None is the suite's
    optimizer: ClassVar[Optimizer | str | None] = None

    growth: GrowthRecord | None = None  # how start_stage grew the model, for the records
    # the model to evaluate and save, if start_stage sets one other than the trained model
    eval_model: LanguageModel | None = None

    def signature(self, stage: Stage) -> dict[str, Any]:
        """The part of the method that determines this stage.

        Stages with equal signatures are trained once and shared. It is empty in the first stage,
        unless the method says that it acts there (`acts_first`). Options with their default are
        left out, so that a new option trains no old stage again.
        """
        if stage.first and not self.acts_first:
            return {}
        name = type(self).__module__.rpartition(".")[2]
        return {"method": name, **self.list_changed_options()}

    def uses_memory(self, stage: Stage) -> bool:
        """Whether the size of the memory matters to a stage.

        By default it does if a phase draws from the memory.
        """
        phases = list_phases(self, stage)
        if stage.first:
            return False
        for phase in phases:
            if phase.memory or phase.memory_batch:
                return True
            if any(source.from_memory for source in phase.sources):
                return True
        return False

    def options(self) -> dict[str, Any]:
        """The value of each option, by name."""
        settings = [field.name for field in fields(self) if field.init]  # type: ignore[arg-type]
        return {name: getattr(self, name) for name in settings}

    def list_changed_options(self) -> dict[str, Any]:
        """The options whose values are not the defaults in the method's file."""
        changed = {}
        kind = type(self)
        for name, value in self.options().items():
            has_default = hasattr(kind, name) and getattr(kind, name) == value
            if not has_default:
                changed[name] = value
        return changed

    def reads_domain(self) -> bool:
        """Whether its model is told a text's domain when it is evaluated.

        Tables say so, and `check` tests it.
        """
        return False

    def start_stage(self, model: LanguageModel, stage: Stage) -> LanguageModel:
        """Return the model that this stage trains: grow, wrap or freeze it, or copy a teacher.

        This is called again when a stage resumes.
        """
        return model

    def phases(self, stage: Stage) -> Sequence[Phase]:
        """The phases of a stage, in order. Their shares sum to 1."""
        return [Phase("adapt")]

    def loss(self, learner: Learner, batch: Batch) -> Tensor:
        """The loss, a scalar: the mean over the sequences of `batch`.

        The loop averages these means over micro-batches and processes.
        """
        return learner.language_model_loss(batch)

    def make_sequences(self, shape: tuple[int, int], generator: Generator) -> Tensor:
        """Token ids for Source("own"), of this shape (sequences, N).

        Leave out `<s>`, and draw random numbers only from `generator`. Each process calls this in
        each step, without gradients, for all sequences, and all must get the same ids.
        """
        raise NotImplementedError(
            f"{type(self).__name__} has a source {OWN!r}, and no make_sequences"
        )

    def adjust_gradients(self, learner: Learner, memory: Sequence[Batch]) -> None:
        """Change `parameter.grad` in place, before the optimizer's step.

        Gradients are those of the whole batch, averaged over processes, before clipping. `memory`
        is the batch that `Phase.memory_batch` asked for, in micro-batches.
        """

    def after_step(self, learner: Learner) -> None:
        """Called after each step of the optimizer, for example to average weights."""

    def on_batch(self, learner: Learner, batches: Sequence[Batch]) -> None:
        """Process one batch of a phase with trains=False, in micro-batches.

        The model is in evaluation mode, without dropout.
        """


def find_own_optimizer(method: LifelongMethod) -> Optimizer | None:
    """The kind of optimizer that a method brings, or None if it uses the suite's.

    Raises ValueError for an unknown name.
    """
    kind = method.optimizer
    if isinstance(kind, str):
        return find_optimizer(kind)
    return kind


def choose_optimizer(method: LifelongMethod, training: Training) -> Optimizer:
    """The kind of optimizer that a method's phases train with, with its options."""
    own = find_own_optimizer(method)
    if own is None:
        return find_optimizer(training.optimizer).replace_options(training.optimizer_options)
    return own


# the type of `methods.build`, because this package must not import `methods`
Build = Callable[[str, Mapping[str, Any]], LifelongMethod]


def get_state(method: LifelongMethod) -> dict[str, Any]:
    """The attributes that a method names in `state`, by name. Raises ConfigError if one lacks."""
    for name in method.state:
        if not hasattr(method, name):
            raise ConfigError(
                f"{type(method).__name__} names {name!r} in `state`, and has no such attribute"
            )
    return {name: getattr(method, name) for name in method.state}


def set_state(method: LifelongMethod, state: Mapping[str, Any]) -> None:
    """Put back what `get_state` returned."""
    for name in method.state:
        setattr(method, name, state[name])
