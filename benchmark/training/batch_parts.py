"""How many sequences of each text a step's batches have, from the shares of its phase.

No torch here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchmark.settings.base import ConfigError
from benchmark.settings.suite import RunConfig, Training
from benchmark.training.declaration import plan_stage
from benchmark.training.method import (
    OWN,
    LifelongMethod,
    Phase,
    Stage,
    choose_optimizer,
    list_phases,
)

SOURCE_STRIDE = 10_000  # difference of `Draw.number` between two successive sources of a phase
# `Draw.number` of the second batch of a stage's first phase. It counts up with the phases
MEMORY_BATCH_NUMBER = 1000


@dataclass(frozen=True, kw_only=True)
class Draw:
    """The sequences of a step that form one batch, over all processes.

    Fresh sequences come first, then replayed ones, then memory sequences.
    """

    domain: str  # text of the fresh sequences or of the memory, named as in `Source.domain`
    fresh: int = 0
    replayed: int = 0  # from the suite's `replay`. Methods are not told about it
    memory: int = 0
    # index of the phase + SOURCE_STRIDE * index of the source. The random numbers depend on it, so
    # that each source draws other sequences
    number: int = 0
    weight: float = 1.0  # of its mean loss in the step's loss

    @property
    def sequences(self) -> int:
        return self.fresh + self.replayed + self.memory


def plan_draws(
    phase: Phase, index: int, batch_size: int, replay: float, has_memory: bool
) -> tuple[list[Draw], Draw]:
    """The draws of a phase's step, and the draw of its second batch (`Phase.memory_batch`).

    `index` is the phase's position in its stage, from 0. `replay` is the share of replayed text in
    what the method asks for. Raises ConfigError as `count_sequences_of_share` does.
    """

    def count(share_name: str, share: float, sequences: int) -> int:
        return count_sequences_of_share(share, sequences, f"{share_name} of phase {phase.name!r}")

    def make(
        domain: str,
        sequences: int,
        memory_share: float,
        replay_share: float,
        source_index: int = 0,
        weight: float = 1.0,
    ) -> Draw:
        replayed_sequences = count("replay", replay_share, sequences)
        other_sequences = sequences - replayed_sequences
        memory_sequences = 0
        if has_memory:
            memory_sequences = count("memory", memory_share, other_sequences)
        return Draw(
            domain=domain,
            fresh=other_sequences - memory_sequences,
            replayed=replayed_sequences,
            memory=memory_sequences,
            number=SOURCE_STRIDE * source_index + index,
            weight=weight,
        )

    replay = replay if phase.trains else 0.0
    memory_batch_size = count("memory", phase.memory_batch, batch_size) if has_memory else 0
    draws = []
    if not phase.sources:
        draws.append(make(phase.domain, batch_size, phase.memory, replay))
    for source_index, source in enumerate(phase.sources):
        sequences = 0
        if has_memory or not source.from_memory:
            sequences = count("sources", source.share, batch_size)
        source_replay = 0.0 if source.from_memory or source.domain == OWN else replay
        memory_share = float(source.from_memory)  # all of its sequences or none
        draw = make(
            source.domain, sequences, memory_share, source_replay, source_index, source.weight
        )
        draws.append(draw)
    number = MEMORY_BATCH_NUMBER + index
    return draws, Draw(domain="memory", memory=memory_batch_size, number=number)


def count_sequences_of_share(share: float, batch_size: int, what: str) -> int:
    """A share of a batch, rounded to whole sequences.

    Ties go to the even number. Raises ConfigError if a share between 0 and 1 rounds to none or all
    of the batch, because that would be another method than the one asked for.
    """
    sequences = round(share * batch_size)
    if not 0 < share < 1 or 0 < sequences < batch_size:
        return sequences
    amount = "none" if sequences == 0 else "all"
    raise ConfigError(
        f"{what}: a share of {share:g} of a batch of {batch_size} sequences rounds to {amount} of "
        "them: choose another, or a larger training.batch_size"
    )


def check_split(draws: Sequence[Draw], training: Training, processes: int) -> None:
    """Raise ConfigError if the draws cannot be split over so many processes.

    `training.batch_size` must be a multiple of `processes`, and each process needs sequences of
    every draw that has any. With `training.shard` each needs equally many, because all processes
    must run the model equally often.
    """
    for draw in draws:
        cannot_split = 0 < draw.sequences < processes
        if training.shard:
            cannot_split = draw.sequences % processes != 0
        if cannot_split or training.batch_size % processes:
            raise ConfigError(
                f"{draw.sequences} sequences of {draw.domain!r} in a batch of "
                f"{training.batch_size} cannot be split over {processes} processes: change one of "
                "them"
            )


def check_shares(config: RunConfig, method: LifelongMethod) -> None:
    """Raise ConfigError if the shares of a method's phases do not add up to the run's budget.

    A stage may spend what earlier stages left. Each stage of a method of the group `references` may
    spend the budgets of all stages so far.
    """
    spent = 0.0
    allowance = 0.0
    for index in range(len(config.domains)):
        stage = plan_stage(config, index)
        shares = sum(phase.share for phase in list_phases(method, stage))
        if method.group == "references":
            spent = 0.0
        spent = shares * stage.budget + spent
        allowance += stage.budget
        is_too_much = spent > allowance * (1 + 1e-9)
        is_too_little = stage.last and spent < allowance * (1 - 1e-9)
        if is_too_much or is_too_little:
            raise ConfigError(
                f"row {config.row!r}: the shares of the phases of stage {index} sum to {shares:g}, "
                f"so {spent:g} of a budget of {allowance:g} is spent until then: let them sum to 1"
            )


def _check_is_causal(config: RunConfig) -> None:
    from benchmark.models import architectures  # it imports torch

    if architectures.load(config.model.architecture).masked:
        raise ConfigError(
            f"row {config.row!r} trains causal models only, and {config.model.architecture} "
            "predicts masked tokens: leave the row out, or take another model.architecture"
        )


def check_method(config: RunConfig, method: LifelongMethod, processes: int = 1) -> None:
    """Check, before anything is trained, that a run can give its method what it asks for.

    Raises ConfigError for shares that do not add up to the run's budget, for batches that cannot
    hold a share or be split over the processes, for a memory smaller than one sequence, for sources
    that a stage does not have, for a masked model if the method is `causal_only`, for
    `training.shard` if the method or its optimizer needs whole weights, and for muP with an
    initialization or an optimizer that its rule does not cover.
    """
    check_shares(config, method)
    if method.causal_only:
        _check_is_causal(config)
    optimizer = choose_optimizer(method, config.training)
    if config.training.rate_scaling == "mup":
        if optimizer.name != "adamw":
            raise ConfigError(
                f"row {config.row!r}: training.rate_scaling 'mup' is a rule for adamw, not for "
                f"{optimizer.name}: leave one of them out"
            )
        if config.model.init != "scaled":
            raise ConfigError(
                f"row {config.row!r}: training.rate_scaling 'mup' needs weights that begin with "
                f"model.init 'scaled', not {config.model.init!r}: change one of them"
            )
    if config.training.shard and (method.needs_full_weights or optimizer.needs_full_weights):
        who = "it" if method.needs_full_weights else f"its optimizer {optimizer.name!r}"
        raise ConfigError(
            f"row {config.row!r}: {who} needs whole weights, and training.shard spreads them over "
            "processes: leave one of them out"
        )
    tokens = config.data.memory_tokens
    length = config.data.text_length
    has_memory = tokens >= length
    replay = config.replay.share if config.replay else 0.0
    for index in range(len(config.domains)):
        stage = plan_stage(config, index)
        if 0 < tokens < length and method.uses_memory(stage):
            raise ConfigError(
                f"row {config.row!r}: a memory of {tokens} tokens (0 means none) holds no sequence "
                f"of {length}: let data.memory_tokens hold a sequence"
            )
        for phase in list_phases(method, stage):
            place = f"row {config.row!r}, phase {phase.name!r} of stage {index}"
            _check_sources(phase, stage, has_memory, place)
            remembers = index > 0 and has_memory
            try:
                batch_size = config.training.batch_size
                draws, memory_draw = plan_draws(phase, 0, batch_size, replay, remembers)
                check_split([*draws, memory_draw], config.training, processes)
            except ConfigError as error:
                raise ConfigError(f"row {config.row!r}, {error}") from None


def _check_sources(phase: Phase, stage: Stage, has_memory: bool, place: str) -> None:
    """Raise ConfigError if a phase asks for text that its stage does not have.

    A share outside 0 to 1 is refused too. `has_memory` says whether the run has a memory. `place`
    names the phase in messages.
    """
    earlier = stage.domains[:-1]
    names = ["new", "seen", OWN]
    if earlier:
        names += ["previous", "memory", *earlier]
    for source in phase.sources:
        if source.domain not in names:
            raise ConfigError(
                f"{place}: no source {source.domain!r} in this stage; there are {', '.join(names)}"
            )
    source_shares = [source.share for source in phase.sources]
    for share in (phase.memory, *source_shares):
        if not 0 <= share <= 1:
            raise ConfigError(f"{place}: a share of {share:g} of a batch: give one from 0 to 1")
    texts = ("new", "previous", "seen")
    if phase.domain not in texts:
        raise ConfigError(f"{place}: no domain {phase.domain!r}; there are {', '.join(texts)}")
    from_memory = [source.from_memory for source in phase.sources]
    if not phase.sources:
        # a first stage has no memory in any run, and its phases read `domain` instead
        from_memory = [phase.memory == 1 and not stage.first]
    if not has_memory and all(from_memory):
        raise ConfigError(
            f"{place}: all its sequences are memory's, and there is none: let data.memory_tokens "
            "hold a sequence"
        )
