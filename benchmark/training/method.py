"""The interface of a lifelong pre-training method: phases, an objective, changes of gradients.

The loop (`benchmark/training/stage.py`) is ours. A method says what differs from continued
pre-training. Every second of a stage belongs to one of its phases, so nothing that a method does
escapes the budget.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field

from benchmark.settings.optimizers import Optimizer, find_optimizer
from benchmark.settings.schedules import Schedule, ScheduleName
from benchmark.settings.suite import Size, Training

# What an option may be; a value outside is refused before anything is trained
Share = Annotated[float, Field(ge=0, le=1)]
PartOfStage = Annotated[float, Field(ge=0, lt=1)]  # something is left for the stage's domain
NotNegative = Annotated[float, Field(ge=0, le=1e12)]
Positive = Annotated[float, Field(gt=0, le=1e6)]
Multiple = Annotated[float, Field(ge=0, le=100)]  # of a batch
AtLeastOne = Annotated[int, Field(ge=1, le=1_000_000)]

# controls and references run only where a suite names them; of references each stage may cost as
# much as all so far
Group = Literal["baselines", "controls", "references"]

OWN = "own"  # a source: sequences of the method's own

if TYPE_CHECKING:
    from torch import Generator, Tensor

    from benchmark.ledger.records import GrowthRecord
    from benchmark.models import LanguageModel
    from benchmark.training.learner import Batch, Learner


@dataclass(frozen=True)
class Source:
    """Sequences of a step that are a batch of their own, with a loss of their own."""

    # "new", "previous", "seen" as in Phase, "memory": of all earlier domains, the name of one of
    # them, or "own": text that `make_sequences` makes
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
    # whose text the rest is. "seen" is of all domains so far, also the new one
    domain: Literal["new", "previous", "seen"] = "new"
    trains: bool = True  # False: batches go to on_batch(), no optimizer
    # several batches, in place of the one that `memory` and `domain` describe
    sources: tuple[Source, ...] = ()
    # size of a second batch, of memory sequences alone, as a share of the first. adjust_gradients
    # receives it
    memory_batch: float = 0.0
    schedule: Schedule | ScheduleName | None = None  # of the learning rate. None is the suite's
    # factors of the learning rate by name (`part_names`). 0 freezes
    lr_multipliers: Mapping[str, float] = field(default_factory=dict)
    # the phase's end is evaluated and saved, and the next stage starts from the phase's beginning
    discard_after: bool = False
    # "carry": go on with the moments that the last phase to train has left
    optimizer: Literal["new", "carry"] = "new"


def keeps_optimizer(phases: Sequence[Phase]) -> bool:
    """Whether a stage goes on with the optimizer of the stage before, and keeps its own."""
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
    """The stage that begins, as far as a method may know it.

    Of later stages it tells only `stream_info`, which is for controls.
    """

    domains: tuple[str, ...]  # so far, the new one last
    ladder: tuple[Size, ...]  # model sizes so far, one per domain
    spent: float  # what the stages before were given, in the budget's unit
    budget: float  # of this stage
    unit: str  # of the budget: "seconds", "steps", ...
    learning_rate: float  # the peak of this stage
    seed: int  # for random choices of this stage
    build: Callable[[Size], LanguageModel]  # a new model with random weights, on the CPU
    # (sequences, 1+N) ids of earlier domains' text, masked as in training, or (0, 1+N)
    memory_sequences: Callable[[int], Tensor]
    # a copy of what the stage before was evaluated with, on the CPU. Not in the first stage
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

        Like `stream_info` it is a part of the signature of a method that uses it.
        """
        return self.index == self.stream_info.stages - 1

    @property
    def size(self) -> Size:
        """The size that a growing method reaches in this stage."""
        return self.ladder[self.index]


class LifelongMethod:
    """Naive continued pre-training, and the interface of all methods.

    A subclass is a dataclass in `methods/NAME.py`. Its dataclass fields without `init=False` are
    its options. It overrides what it does differently. Sequences of a batch are ordered, new first,
    then memory, in fixed counts: see `benchmark.training.learner.Batch`.
    """

    title: ClassVar[str] = "Naive"  # label of its row
    # `baselines` join suites by group. Suites name `controls` and `references`
    group: ClassVar[Group] = "baselines"
    # raised when the code comes to compute something else, so that stages are trained anew
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
    # the model to evaluate and save, where start_stage sets another
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

        By default it does where a phase draws from the memory.
        """
        phases = self.phases(stage)
        if stage.first:
            return False
        if any(phase.memory or phase.memory_batch for phase in phases):
            return True
        return any(source.from_memory for phase in phases for source in phase.sources)

    def options(self) -> dict[str, Any]:
        """The value of each option, by name."""
        settings = [field.name for field in fields(self) if field.init]  # type: ignore[arg-type]
        return {name: getattr(self, name) for name in settings}

    def list_changed_options(self) -> dict[str, Any]:
        """The options that do not have the default of the method's file."""
        changed = {}
        kind = type(self)
        for name, value in self.options().items():
            has_default = hasattr(kind, name) and getattr(kind, name) == value
            if not has_default:
                changed[name] = value
        return changed

    def reads_domain(self) -> bool:
        """Whether its model is told a text's domain when it is evaluated.

        Tables say so, and `check` tries it.
        """
        return False

    def start_stage(self, model: LanguageModel, stage: Stage) -> LanguageModel:
        """The model that this stage trains: grow, wrap, freeze, copy a teacher.

        It is called again when a stage resumes.
        """
        return model

    def phases(self, stage: Stage) -> Sequence[Phase]:
        """The phases of a stage, in order. Their shares sum to 1."""
        return [Phase("adapt")]

    def loss(self, learner: Learner, batch: Batch) -> Tensor:
        """The mean over the sequences of `batch`, a scalar.

        The loop averages these means over micro-batches and processes.
        """
        return learner.language_model_loss(batch)

    def make_sequences(self, shape: tuple[int, int], generator: Generator) -> Tensor:
        """Token ids (sequences, N) for Source("own"), in this shape.

        Leave out `<s>`, and draw from `generator` alone. Each process calls this in each step,
        without gradients, for all sequences, and must get the same.
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
        """Take in one batch of a phase with trains=False.

        The model is in evaluation mode, without dropout.
        """


def find_own_optimizer(method: LifelongMethod) -> Optimizer | None:
    """The kind of optimizer that a method brings; None where it trains with the suite's.

    Raises ValueError for a name that is none.
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


# methods.build: this room must not import methods
Build = Callable[[str, Mapping[str, Any]], LifelongMethod]


def get_state(method: LifelongMethod) -> dict[str, Any]:
    """The attributes of a method that outlive a step."""
    return {name: getattr(method, name) for name in method.state}


def set_state(method: LifelongMethod, state: Mapping[str, Any]) -> None:
    """Put back what `get_state` returned."""
    for name in method.state:
        setattr(method, name, state[name])
