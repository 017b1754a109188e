"""The stage as a method may see it, and its key: a hash of all that its weights depend on.

A stage depends on the text of its domain, on its settings and on the stage before, never on what
comes later in the stream. So a further domain, or another order of later ones, leaves the stages
before as they are. No torch here: plans are made of keys.
"""

from __future__ import annotations

import ast
import functools
import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import msgspec

from benchmark.data.sampling import draw_bits
from benchmark.settings.base import digest
from benchmark.settings.schedules import Schedule
from benchmark.settings.suite import RunConfig, pick_for_stage
from benchmark.training.method import (
    LifelongMethod,
    Outlook,
    Stage,
    choose_optimizer,
    keeps_optimizer,
)
from benchmark.training.step_times import StageTimes, find_times

FORMAT = 3  # raised when the same settings come to mean another computation
NO_RESULT = {"checkpoint_seconds", "evaluations"}  # settings of the training that change no weight
MADE_OF = {"architecture", "head_size", "dropout"}  # settings of the model, on every rung
EACH_STAGE = {"learning_rate", "warmup"}  # those that may have a value for each stage
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef)  # syntax that may have a docstring


def plan_stage(config: RunConfig, index: int) -> Stage:
    """The stage `index` of a run as plans see it.

    A method can say its signature and phases of it, but train nothing.
    """
    domains = config.domains[: index + 1]
    names = tuple(domain.name for domain in domains)
    budget = config.budget
    amounts = [pick_for_stage(budget.amount, number) for number in range(len(config.domains))]
    outlook = Outlook(stages=len(amounts), size=config.model.ladder[-1], budget=sum(amounts))
    return Stage(
        domains=names,
        ladder=config.model.ladder[: index + 1],
        spent=sum(amounts[:index]),
        budget=amounts[index],
        unit=budget.unit,
        learning_rate=pick_for_stage(config.training.learning_rate, index),
        seed=int(draw_bits(config.seed, index, 5000)) >> 1,
        build=_refuse,
        memory_rows=_refuse,
        previous=_refuse,
        outlook=outlook,
    )


def _refuse(*_: object) -> NoReturn:
    raise TypeError("a stage that is only planned has no models and no text: see `make_stage`")


def make_stage_keys(config: RunConfig, method: LifelongMethod, texts: Sequence[str]) -> list[str]:
    """One key a stage.

    Each holds the key of the stage before. `texts` has for each of `RunConfig.learned` a hash of
    its tokens and of the tokenizer that made them.
    """
    keys: list[str] = []
    times = find_stage_times(config, method)
    for index, parts in enumerate(_describe_settings(config, texts)):
        if config.budget.reference:
            parts["budget"].append(msgspec.to_builtins(times[index]))
        parts |= _describe_method(config, method, plan_stage(config, index))
        parts |= {"seed": config.seed, "previous": keys[-1] if keys else None}
        keys.append(digest(parts))
    return keys


def find_stage_times(config: RunConfig, method: LifelongMethod) -> list[StageTimes]:
    """The times of each stage of a run on the machine that its budget names, see `find_times`.

    Those of a first stage in which a method does what Naive does are Naive's own, so that it is
    trained once for all.
    """
    stages = [plan_stage(config, index) for index in range(len(config.domains))]
    phases = [[phase.name for phase in method.phases(stage)] for stage in stages]
    first, *later = find_times(config, phases)
    stage = stages[0]
    if first.estimated:
        naive = _describe_method(config, LifelongMethod(), stage)
        if _describe_method(config, method, stage) == naive:
            settings = {"method": "naive", "options": {}}
            first = find_times(config.model_copy(update=settings))[0]
    return [first, *later]


def _describe_method(config: RunConfig, method: LifelongMethod, stage: Stage) -> dict[str, Any]:
    """The parts of a key that the method says of a planned stage."""
    phases = list(method.phases(stage))
    signature = method.signature(stage)
    if signature and method.version > 1:
        signature = {**signature, "version": method.version}
    uses_memory = method.uses_memory(stage)
    parts: dict[str, Any] = {
        "signature": signature,
        "memory_tokens": config.data.memory_tokens if uses_memory else None,
    }
    if uses_memory and config.data.memory_seed == "run":
        parts["memory_seed"] = "run"
    schedules = [phase.schedule for phase in phases]
    # then a learning rate is a function of how much of the whole stream is over
    knows_the_stream = any(
        isinstance(schedule, Schedule) and schedule.over == "stream" for schedule in schedules
    )
    if knows_the_stream:
        parts["stream"] = stage.outlook.budget
    if keeps_optimizer(phases):
        parts["keeps"] = "optimizer"
    if method.optimizer:
        optimizer = choose_optimizer(method, config.training)
        parts["optimizer"] = [optimizer.name, optimizer.options]
    return parts


def _describe_settings(config: RunConfig, texts: Sequence[str]) -> list[dict[str, Any]]:
    """The parts of keys that the method does not decide, for each stage."""
    budget = config.budget
    training = config.training
    model = config.model
    model_settings = MADE_OF if model.init == "fixed" else MADE_OF | {"init"}
    common: dict[str, Any] = {
        "format": FORMAT,
        "sequence_length": config.data.sequence_length,
        "model": model.model_dump(mode="json", include=model_settings),
        "training": training.model_dump(mode="json", exclude=NO_RESULT | EACH_STAGE),
    }
    if config.data.document_mask:
        common["document_mask"] = True
    count = len(config.domains)
    if config.replay and config.replay.share:
        common["replay"] = [config.replay.share, *texts[count:]]
    stages = []
    for index, text in enumerate(texts[:count]):
        domain = config.domains[index]
        parts: dict[str, Any] = {
            **common,
            "domain": domain.name,
            "text": text,
            "ladder": [str(size) for size in model.ladder[: index + 1]],
            "learning_rate": pick_for_stage(training.learning_rate, index),
            "warmup": pick_for_stage(training.warmup, index),
            "budget": [budget.unit, pick_for_stage(budget.amount, index)],
        }
        if config.places:
            parts["place"] = config.places[index]
        if domain.sources:
            parts["weights"] = [source.weight for source in domain.sources]
        if config.start and not index:
            parts["start"] = config.start.key
        stages.append(parts)
    return stages


@functools.cache
def hash_code(module: str) -> str:
    """A hash of a method's module and of what it takes from its package.

    Comments and docstrings do not count.
    """
    package = module.rpartition(".")[0]
    sources: dict[str, str] = {}
    queue = [module]
    while queue:
        name = queue.pop()
        file = getattr(importlib.import_module(name), "__file__", None)
        if name in sources or file is None:
            continue
        tree = ast.parse(Path(file).read_bytes())
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and f"{node.module}.".startswith(f"{package}."):
                names = [f"{package}.{alias.name}" for alias in node.names]
                queue += names if node.module == package else [str(node.module)]
            elif isinstance(node, DOCUMENTED) and ast.get_docstring(node) is not None:
                node.body = node.body[1:] or [ast.Pass()]
        sources[name] = ast.unparse(tree)
    return digest(sorted(sources.items()))
