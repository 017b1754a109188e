"""What a stage may see, and its key: a hash of everything that its weights depend on.

A stage depends on the text of its domain, on its settings and on the stage before, never on what comes later in the
stream. So a domain more, or later ones in another order, leave the stages before as they are. No torch here: plans are
made of keys.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import asdict, dataclass, replace
from functools import cache
from typing import Any, NoReturn

from benchmark.settings.base import ConfigError, digest_of_encoded, encoded, of_a_row
from benchmark.settings.schedules import Schedule
from benchmark.settings.suite import Budget, Data, Domain, Model, RunConfig, Start, Training, per_stage
from benchmark.training.method import LifelongMethod, Outlook, Phase, Stage, keeps_optimizer, rows_of_share
from benchmark.training.random_numbers import random_bits
from benchmark.training.step_times import stage_times

FORMAT = 3  # raised when the same settings come to mean another computation
NO_RESULT = {"checkpoint_seconds", "evaluations"}  # settings of the training that change no weight
MADE_OF = {"architecture", "head_size", "dropout"}  # settings of the model, on every rung
EACH_STAGE = {"learning_rate", "warmup"}  # those that may have a value for each stage


def stage_of(config: RunConfig, index: int) -> Stage:
    """The stage `index` of a run as plans see it: a method can say its signature and phases, but train nothing."""
    of_row = _planned_stages(config.domains, config.model, config.training, config.budget)
    return replace(of_row[index], seed=_seed(config.seed, index))


@of_a_row
def _planned_stages(domains: Sequence[Domain], model: Model, training: Training, budget: Budget) -> list[Stage]:
    """The stages of a row's runs, but for their seeds."""
    names = tuple(domain.name for domain in domains)
    amounts = [per_stage(budget.amount, i) for i in range(len(names))]

    def refuse(*_: object) -> NoReturn:
        raise TypeError("a stage that is only planned has no models and no text: see `trainable_stage`")

    return [
        Stage(
            domains=names[: index + 1],
            ladder=model.ladder[: index + 1],
            spent=sum(amounts[:index]),
            budget=amount,
            unit=budget.unit,
            learning_rate=per_stage(training.learning_rate, index),
            seed=0,
            build=refuse,
            memory_rows=refuse,
            previous=refuse,
            outlook=Outlook(stages=len(names), size=model.ladder[-1], budget=sum(amounts)),
        )
        for index, amount in enumerate(amounts)
    ]


@cache
def _seed(run: int, stage: int) -> int:
    return int(random_bits(run, stage, 5000)) >> 1


def check_memory_shares(config: RunConfig, method: LifelongMethod) -> None:
    """Raises ConfigError, before anything is trained, for a share of memory that the run's batches cannot hold.

    So it does for a memory of less than a row, but none, and for sources that a stage does not have.
    """
    tokens, length = config.data.memory_tokens, config.data.text_length
    has_memory = tokens >= length
    for index in range(len(config.domains)):
        stage = stage_of(config, index)
        if 0 < tokens < length and method.uses_memory(stage):
            raise ConfigError(
                f"row {config.row!r}: a memory of {tokens} tokens (0 means none) holds no row of {length}: let "
                "data.memory_tokens hold a row"
            )
        for phase in method.phases(stage):
            _check_sources(phase, stage, has_memory, f"row {config.row!r}, phase {phase.name!r} of stage {index}")
            shares = [("sources", source.share) for source in phase.sources]
            shares += [("memory", phase.memory), ("memory", phase.memory_batch)] if index and has_memory else []
            for what, share in shares:
                try:
                    rows_of_share(share, config.training.batch_size)
                except ConfigError as error:
                    raise ConfigError(f"row {config.row!r}, {what} of phase {phase.name!r}: {error}") from None


def _check_sources(phase: Phase, stage: Stage, has_memory: bool, place: str) -> None:
    earlier = stage.domains[:-1]
    known = ["new", "seen", *(["previous", "memory", *earlier] if earlier else [])]
    for source in phase.sources:
        if source.domain not in known:
            raise ConfigError(f"{place}: no source {source.domain!r} in this stage; there are {', '.join(known)}")
        if source.share <= 0 or source.weight < 0:
            raise ConfigError(f"{place}: source {source.domain!r} needs a share above 0 and a weight of 0 or more")
    shares = [source.from_memory for source in phase.sources] or [phase.memory == 1 and not stage.first]
    if not has_memory and all(shares):
        raise ConfigError(f"{place}: all its rows are memory's, and there is none: let data.memory_tokens hold a row")


@dataclass(frozen=True)
class Asked:
    """What a key is made of that the method of a planned stage says."""

    parts: dict[str, str]  # encoded
    keeps: bool  # goes on with the optimizer of the stage before


Ask = Callable[[RunConfig, LifelongMethod], Sequence[Asked]]


def ask(config: RunConfig, method: LifelongMethod) -> list[Asked]:
    """What the method of a run says of each of its stages."""
    return [_asked(method, stage_of(config, index), config.data) for index in range(len(config.domains))]


def ask_once_a_row() -> Ask:
    """The same for many runs: one answer for all seeds of a row, unless the method looks at a stage's seed.

    The answers live as long as what is returned: methods that train grow large.
    """

    @of_a_row
    def of_all_seeds(method: LifelongMethod, data: Data, *of_row: Any) -> list[Asked]:
        stages = list(map(copy, _planned_stages(*of_row)))
        for stage in stages:
            del vars(stage)["seed"]
        return [_asked(method, stage, data) for stage in stages]

    def of_run(config: RunConfig, method: LifelongMethod) -> list[Asked]:
        try:
            return of_all_seeds(method, config.data, config.domains, config.model, config.training, config.budget)
        except AttributeError:  # there is no seed
            return ask(config, method)

    return of_run


def _asked(method: LifelongMethod, stage: Stage, data: Data) -> Asked:
    signature, phases = method.signature(stage), list(method.phases(stage))
    if signature and method.version > 1:
        signature = {**signature, "version": method.version}
    uses_memory, keeps = method.uses_memory(stage), keeps_optimizer(phases)
    parts = {
        "signature": signature,
        "memory_tokens": data.memory_tokens if uses_memory else None,
        **({"memory_seed": "run"} if data.memory_seed == "run" and uses_memory else {}),
        **({"stream": stage.outlook.budget} if _knows_the_stream(phases) else {}),
        **({"keeps": "optimizer"} if keeps else {}),
    }
    return Asked(encoded(parts), keeps)


def stage_keys(config: RunConfig, method: LifelongMethod, texts: Sequence[str], ask: Ask = ask) -> list[str]:
    """One key a stage; each holds the key of the stage before.

    `texts`: for each domain a hash of its tokens and of the tokenizer that made them (`Corpus.texts`).
    """
    keys: list[str] = []
    of_row = _parts_of_row(
        config.domains,
        config.places,
        config.data,
        config.model,
        config.start,
        config.training,
        config.budget,
        texts,
    )
    seed, kept = encoded({"seed": config.seed}), False
    for index, (parts, asked) in enumerate(zip(of_row, ask(config, method), strict=False)):
        if index and asked.keeps and not kept:
            raise ConfigError(
                f"row {config.row!r}: stage {index} carries the optimizer on, but stage {index - 1} keeps none: let "
                'the first phase of every stage have optimizer="carry"'
            )
        kept, times = asked.keeps, stage_times(config, index)
        spent = [config.budget.unit, per_stage(config.budget.amount, index), asdict(times)] if times else None
        own = {"previous": keys[-1] if keys else None, **({"budget": spent} if spent else {})}
        keys.append(digest_of_encoded({**parts, **asked.parts, **seed, **encoded(own)}))
    return keys


@of_a_row
def _parts_of_row(
    domains: Sequence[Domain],
    places: Sequence[int],
    data: Data,
    model: Model,
    start: Start | None,
    training: Training,
    budget: Budget,
    texts: Sequence[str],
) -> list[dict[str, str]]:
    """What keys of a row's stages are made of that neither its seed nor its method decides, encoded; one a stage."""
    same = {
        "format": FORMAT,
        "sequence_length": data.sequence_length,
        "model": model.model_dump(mode="json", include=MADE_OF | ({"init"} if model.init != "fixed" else set())),
        "training": training.model_dump(mode="json", exclude=NO_RESULT | EACH_STAGE),
    }
    return [
        encoded(
            {
                **same,
                "domain": domains[index].name,
                **({"place": places[index]} if places else {}),
                "text": text,
                **({"start": start.key} if start and not index else {}),
                "ladder": [str(size) for size in model.ladder[: index + 1]],
                "learning_rate": per_stage(training.learning_rate, index),
                "warmup": per_stage(training.warmup, index),
                "budget": [budget.unit, per_stage(budget.amount, index)],
            }
        )
        for index, text in enumerate(texts)
    ]


def _knows_the_stream(phases: Sequence[Phase]) -> bool:
    """Whether a learning rate of a stage is a function of how much of the whole stream is over."""
    schedules = [phase.schedule for phase in phases]
    return any(isinstance(schedule, Schedule) and schedule.over == "stream" for schedule in schedules)
