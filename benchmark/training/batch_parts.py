"""The parts of a step's batches: how many rows are of which text, by a phase's shares. No torch
here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchmark.settings.base import ConfigError
from benchmark.settings.suite import RunConfig, Training
from benchmark.training.keys import plan_stage
from benchmark.training.method import OWN, LifelongMethod, Phase, Stage, choose_optimizer

SOURCES = 10_000  # what lies between the numbers of two sources of a phase


@dataclass(frozen=True, kw_only=True)
class Draw:
    """Rows of a step that are drawn as one batch, for all processes: fresh, then of the replayed
    text, then memory.
    """

    domain: str  # whose text the fresh ones are, or memory's, as in Source
    fresh: int = 0
    replayed: int = 0  # of the suite's `replay`, which a method knows nothing of
    memory: int = 0
    # of the phase, plus SOURCES times the source's: each draws its rows by other random numbers
    number: int = 0
    weight: float = 1.0  # of its mean loss in the step's

    @property
    def rows(self) -> int:
        return self.fresh + self.replayed + self.memory


def plan_draws(
    phase: Phase, index: int, batch_size: int, replay: float, has_memory: bool
) -> tuple[list[Draw], Draw]:
    """The draws of a step of a phase, the `index`-th of its stage, and of its second batch,
    `Phase.memory_batch`.

    `replay`: the share of replayed text in what the method asks for. Raises ConfigError: see
    `count_rows_of_share`.
    """

    def count(what: str, share: float, rows: int) -> int:
        return count_rows_of_share(share, rows, f"{what} of phase {phase.name!r}")

    def make(
        domain: str, rows: int, memory: float, replay: float, number: int = 0, weight: float = 1.0
    ) -> Draw:
        replayed = count("replay", replay, rows)
        kept = count("memory", memory, rows - replayed) if has_memory else 0
        fresh, number = rows - replayed - kept, SOURCES * number + index
        return Draw(
            domain=domain, fresh=fresh, replayed=replayed, memory=kept, number=number, weight=weight
        )

    replay = replay if phase.trains else 0.0
    second = count("memory", phase.memory_batch, batch_size) if has_memory else 0
    draws = [] if phase.sources else [make(phase.domain, batch_size, phase.memory, replay)]
    for number, source in enumerate(phase.sources):
        rows = (
            count("sources", source.share, batch_size)
            if has_memory or not source.from_memory
            else 0
        )
        of_replay = 0.0 if source.from_memory or source.domain == OWN else replay
        draws.append(
            make(source.domain, rows, float(source.from_memory), of_replay, number, source.weight)
        )
    return draws, Draw(domain="memory", memory=second, number=1000 + index)


def count_rows_of_share(share: float, batch_size: int, what: str) -> int:
    """The whole number of rows nearest to a share of a batch; of two that are equally near the even
    one.

    Raises ConfigError where a share between none and all of the batch rounds to none or all: that
    would be another method than the one that was asked for.
    """
    rows = round(share * batch_size)
    if not 0 < share < 1 or 0 < rows < batch_size:
        return rows
    raise ConfigError(
        f"{what}: a share of {share:g} of a batch of {batch_size} rows rounds to "
        f"{'none' if rows == 0 else 'all'} of "
        "them: choose another, or a larger training.batch_size"
    )


def check_split(draws: Sequence[Draw], training: Training, processes: int) -> None:
    """Raises ConfigError where so many processes cannot each have rows of every draw.

    Where weights are spread over them, all go through the model equally often.
    """
    for draw in draws:
        uneven = draw.rows % processes if training.shard else 0 < draw.rows < processes
        if uneven or training.batch_size % processes:
            raise ConfigError(
                f"{draw.rows} rows of {draw.domain!r} in a batch of {training.batch_size} cannot "
                "be split over "
                f"{processes} processes: change one of them"
            )


def check_shares(config: RunConfig, method: LifelongMethod) -> None:
    """Raises ConfigError where a method's phases do not take the budget of the run.

    A stage may take what those before it left, and that of a reference what all so far were given.
    """
    spent = given = 0.0
    for index in range(len(config.domains)):
        stage = plan_stage(config, index)
        shares = sum(phase.share for phase in method.phases(stage))
        spent = shares * stage.budget + (0.0 if method.group == "references" else spent)
        given += stage.budget
        if spent > given * (1 + 1e-9) or (stage.last and spent < given * (1 - 1e-9)):
            raise ConfigError(
                f"row {config.row!r}: the shares of the phases of stage {index} sum to {shares:g}, "
                f"so {spent:g} of a "
                f"budget of {given:g} is spent until then: let them sum to 1"
            )


def check_method(config: RunConfig, method: LifelongMethod, processes: int = 1) -> None:
    """Check, before anything is trained, that a run can give its method what it asks for.

    Raises ConfigError for phases that do not take the run's budget, for a share of memory that its
    batches cannot hold, for a memory of less than a row, for sources that a stage does not have,
    and for shards where the method or its optimizer needs whole weights.
    """
    check_shares(config, method)
    optimizer = choose_optimizer(method, config.training)
    if config.training.shard and (method.holds_weights or optimizer.holds_weights):
        who = "it" if method.holds_weights else f"its optimizer {optimizer.name!r}"
        raise ConfigError(
            f"row {config.row!r}: {who} needs whole weights, and training.shard spreads them over "
            "processes: leave one "
            "of them out"
        )
    tokens, length = config.data.memory_tokens, config.data.text_length
    has_memory = tokens >= length
    for index in range(len(config.domains)):
        stage = plan_stage(config, index)
        if 0 < tokens < length and method.uses_memory(stage):
            raise ConfigError(
                f"row {config.row!r}: a memory of {tokens} tokens (0 means none) holds no row of "
                f"{length}: let "
                "data.memory_tokens hold a row"
            )
        for phase in method.phases(stage):
            _check_sources(
                phase,
                stage,
                has_memory,
                f"row {config.row!r}, phase {phase.name!r} of stage {index}",
            )
            replay = config.replay.share if config.replay else 0.0
            try:
                draws = plan_draws(
                    phase, 0, config.training.batch_size, replay, index > 0 and has_memory
                )
                check_split([*draws[0], draws[1]], config.training, processes)
            except ConfigError as error:
                raise ConfigError(f"row {config.row!r}, {error}") from None


def _check_sources(phase: Phase, stage: Stage, has_memory: bool, place: str) -> None:
    earlier = stage.domains[:-1]
    known = ["new", "seen", OWN, *(["previous", "memory", *earlier] if earlier else [])]
    for source in phase.sources:
        if source.domain not in known:
            raise ConfigError(
                f"{place}: no source {source.domain!r} in this stage; there are {', '.join(known)}"
            )
    for share in (phase.memory, *(source.share for source in phase.sources)):
        if not 0 <= share <= 1:
            raise ConfigError(f"{place}: a share of {share:g} of a batch: give one from 0 to 1")
    if phase.domain not in (texts := ("new", "previous", "seen")):
        raise ConfigError(f"{place}: no domain {phase.domain!r}; there are {', '.join(texts)}")
    of_memory = [source.from_memory for source in phase.sources] or [
        phase.memory == 1 and not stage.first
    ]
    if not has_memory and all(of_memory):
        raise ConfigError(
            f"{place}: all its rows are memory's, and there is none: let data.memory_tokens hold a "
            "row"
        )
