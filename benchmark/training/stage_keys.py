"""What a stage may see, and its key: a hash of everything that its weights depend on.

A stage depends on the text of its domain, on its settings and on the stage before, never on what comes later in the
stream. So a domain more, or later ones in another order, leave the stages before as they are. No torch here: plans are
made of keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from functools import cache
from typing import Any, NoReturn

from benchmark.settings.base import of_a_row
from benchmark.settings.config import ConfigError, RunConfig, Training, digest, per_stage
from benchmark.settings.model_settings import Model
from benchmark.settings.schedules import Schedule
from benchmark.training.method import LifelongMethod, Outlook, Phase, Stage, keeps_optimizer, rows_of_share
from benchmark.training.random_numbers import random_bits
from benchmark.training.step_times import stage_times

FORMAT = 3  # raised when the same settings come to mean another computation
NO_RESULT = {"checkpoint_seconds", "evaluations"}  # settings of the training that change no weight
MADE_OF = {"architecture", "head_size", "dropout"}  # settings of the model, on every rung
EACH_STAGE = {"learning_rate", "warmup"}  # those that may have a value for each stage


def stage_of(config: RunConfig, index: int) -> Stage:
    """The stage `index` of a run as plans see it: a method can say its signature and phases, but train nothing."""
    domains = tuple(domain.name for domain in config.domains)
    amounts = [per_stage(config.budget.amount, i) for i in range(len(domains))]
    ladder = config.model.ladder

    def refuse(*_: object) -> NoReturn:
        raise TypeError("a stage that is only planned has no models and no text: see `trainable_stage`")

    return Stage(
        domains=domains[: index + 1],
        ladder=ladder[: index + 1],
        spent=sum(amounts[:index]),
        budget=amounts[index],
        unit=config.budget.unit,
        learning_rate=per_stage(config.training.learning_rate, index),
        seed=_seed(config.seed, index),
        build=refuse,
        memory_rows=refuse,
        previous=refuse,
        outlook=Outlook(stages=len(domains), size=ladder[-1], budget=sum(amounts)),
    )


@cache
def _seed(run: int, stage: int) -> int:
    return int(random_bits(run, stage, 5000)) >> 1


def check_memory_shares(config: RunConfig, method: LifelongMethod) -> None:
    """Raises ConfigError, before anything is trained, for a share of memory that the run's batches cannot hold.

    So it does for sources that a stage does not have.
    """
    has_memory = config.data.memory_tokens >= config.data.text_length
    for index in range(len(config.domains)):
        stage = stage_of(config, index)
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
    if phase.sources and not has_memory and all(source.from_memory for source in phase.sources):
        raise ConfigError(f"{place}: all sources are memory, and data.memory_tokens holds no row: give more tokens")


def stage_keys(config: RunConfig, method: LifelongMethod, texts: Sequence[str]) -> list[str]:
    """One key a stage; each holds the key of the stage before.

    `texts`: for each domain a hash of its tokens and of the tokenizer that made them (`Corpus.texts`).
    """
    keys: list[str] = []
    training, made_of = _of_training(config.training), _of_model(config.model)
    keeps = False
    draws_memory = config.data.memory_seed == "run"
    for index, text in enumerate(texts):
        stage = stage_of(config, index)
        times = stage_times(config, index)
        signature = method.signature(stage)
        phases = list(method.phases(stage))
        keeps, kept = keeps_optimizer(phases), keeps
        if index and keeps and not kept:
            raise ConfigError(
                f"row {config.row!r}: stage {index} carries the optimizer on, but stage {index - 1} keeps none: let "
                'the first phase of every stage have optimizer="carry"'
            )
        if signature and method.version > 1:
            signature = {**signature, "version": method.version}
        keys.append(
            digest(
                {
                    "format": FORMAT,
                    "previous": keys[-1] if keys else None,
                    "signature": signature,
                    "seed": config.seed,
                    "domain": stage.domains[-1],
                    **({"place": config.places[index]} if config.places else {}),
                    "text": text,
                    "sequence_length": config.data.sequence_length,
                    "memory_tokens": config.data.memory_tokens if method.uses_memory(stage) else None,
                    **({"memory_seed": "run"} if draws_memory and method.uses_memory(stage) else {}),
                    "model": made_of,
                    **({"start": config.start.key} if config.start and not index else {}),
                    "ladder": [str(size) for size in stage.ladder],
                    "training": training,
                    "learning_rate": per_stage(config.training.learning_rate, index),
                    "warmup": per_stage(config.training.warmup, index),
                    "budget": [config.budget.unit, stage.budget, *([asdict(times)] if times else [])],
                    **({"stream": stage.outlook.budget} if _knows_the_stream(phases) else {}),
                    **({"keeps": "optimizer"} if keeps else {}),
                }
            )
        )
    return keys


@of_a_row
def _of_training(training: Training) -> dict[str, Any]:
    """What of it is the same in every stage and makes a difference."""
    return training.model_dump(mode="json", exclude=NO_RESULT | EACH_STAGE)


@of_a_row
def _of_model(model: Model) -> dict[str, Any]:
    return model.model_dump(mode="json", include=MADE_OF)


def _knows_the_stream(phases: Sequence[Phase]) -> bool:
    """Whether a learning rate of a stage is a function of how much of the whole stream is over."""
    schedules = [phase.schedule for phase in phases]
    return any(isinstance(schedule, Schedule) and schedule.over == "stream" for schedule in schedules)
