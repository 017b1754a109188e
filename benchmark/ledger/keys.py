"""The key of a stage: a hash of the description of all that its weights depend on.

A stage depends on the text of its domain, on its settings and on the stage before, never on what
comes later in the stream. So a further domain, or another order of later domains, does not change
earlier stages. No torch here, because plans need keys and must be quick.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmark.settings.base import digest
from benchmark.settings.decides import describe
from benchmark.settings.suite import Data, RunConfig, pick_for_stage

# Increased when the same description means another computation than before: every key then changes,
# and all stages are trained again. (A change of `records.SCHEMA` keeps what was trained.)
FORMAT = 4


@dataclass(frozen=True)
class Declaration:
    """What a run's method declares about one stage, besides the run's settings.

    `content` decides the stage's weights: signature, optimizer, the stream's budget and the like.
    """

    content: Mapping[str, Any]
    uses_memory: bool


@dataclass(frozen=True)
class StageKey:
    """The key of a stage, and the description that it is a hash of."""

    key: str
    description: dict[str, Any]


def make_stage_keys(
    config: RunConfig, declarations: Sequence[Declaration], texts: Sequence[str]
) -> list[StageKey]:
    """One key per stage, whose description contains the key of the stage before.

    `declarations` has one item per stage. `texts` has one item per text of `RunConfig.learned`,
    which are the domains, then the replayed text if there is one: a hash of its tokens and of the
    tokenizer that made them.
    """
    count = len(config.domains)
    keys: list[StageKey] = []
    for index, text in enumerate(texts[:count]):
        declaration = declarations[index]
        settings = select_stage_settings(config, index, declaration.uses_memory)
        description: dict[str, Any] = {
            "format": FORMAT,
            **describe(settings, "weights"),
            "method": {**declaration.content},
            "text": text,
        }
        if settings.replay:
            description["replayed text"] = texts[count]  # it comes after those of the domains
        if keys:
            description["stage before"] = keys[-1].key
        keys.append(StageKey(digest(description), description))
    return keys


def select_stage_settings(config: RunConfig, index: int, uses_memory: bool) -> RunConfig:
    """The settings of a run that a stage depends on.

    A setting with a value per stage has this stage's. The ladder has all sizes so far, because the
    method is given all of them (`Stage.ladder`). Only the first stage has the start model, because
    the key of the stage before covers it in later stages. Without memory, the memory's size and
    seed have their defaults, because they decide nothing.
    """
    training = config.training
    rates = {
        "learning_rate": pick_for_stage(training.learning_rate, index),
        "warmup": pick_for_stage(training.warmup, index),
    }
    amount = {"amount": pick_for_stage(config.budget.amount, index)}
    data = config.data
    if not uses_memory:
        names = ("memory_tokens", "memory_seed")
        defaults = {name: Data.model_fields[name].default for name in names}
        data = data.model_copy(update=defaults)
    return config.model_copy(
        update={
            "domains": config.domains[index : index + 1],
            "places": config.places[index : index + 1],
            "probes": (),
            "model": config.model.model_copy(update={"ladder": config.model.ladder[: index + 1]}),
            "training": training.model_copy(update=rates),
            "budget": config.budget.model_copy(update=amount),
            "data": data,
            "start": None if index else config.start,
            "replay": config.replay if config.replay and config.replay.share else None,
        }
    )
