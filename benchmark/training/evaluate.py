"""Perplexity of a model on every domain's validation text, off the clock."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from benchmark import records
from benchmark.data.tokens import DomainTokens
from benchmark.models import LanguageModel
from benchmark.models.devices import autocast
from benchmark.records import EvaluationLine, LaterLine, StageLine
from benchmark.training.processes import World
from benchmark.training.stream import Stream, predictions

LOGITS_AT_ONCE = 2**25  # numbers, so 128 MiB in fp32


def perplexities(model: LanguageModel, stream: Stream, world: World, precision: str = "fp32") -> dict[str, float]:
    """The perplexity on each domain, with its own prompt or column, and on each probe."""
    return {
        text.name: perplexity(model, stream, index, world, precision) for index, text in enumerate(stream.evaluated)
    }


def perplexities_without_copies(
    model: LanguageModel, stream: Stream, world: World, precision: str = "fp32"
) -> dict[str, float]:
    """The same less documents that nearly stand in training text, of each text that has such and others."""
    return {
        text.name: perplexity(model, stream, index, world, precision, ~stream.copied[text.name])
        for index, text in enumerate(stream.evaluated)
        if text.name in stream.copied and not stream.copied[text.name].all()
    }


def bits_per_byte(perplexity: float, text: DomainTokens) -> float:
    """What a byte of a domain's validation text costs at this perplexity per token, whatever the tokenizer.

    For a model that predicts every token, its cross-entropy in bits over the bytes of the text. For a masked one the
    same number of its masked positions, which compares masked models with each other alone.
    """
    return math.log2(perplexity) * len(text.valid) / text.info["valid_bytes"]


@torch.no_grad()
def perplexity(
    model: LanguageModel,
    stream: Stream,
    domain: int,
    world: World,
    precision: str = "fp32",
    counted: NDArray[np.bool_] | None = None,
) -> float:
    """The exp of the mean cross-entropy (natural logarithm) at the predicted positions of a domain's validation text.

    BERT: at masked positions, the same for every model, method and seed. GPT: at every text token. Infinite where no
    float holds it. `counted`: (blocks, N), which tokens of the text count, all by default.
    """
    loss = count = 0.0
    mine = iter(counted[world.rank :: world.size] if counted is not None else ())
    rows = max(1, LOGITS_AT_ONCE // (predictions(stream.length, stream.masked) * stream.corpus.text_vocabulary))
    with evaluating(model):
        for batch in stream.validation(domain, rows, world.rank, world.size):
            batch = batch.to(world.device)
            with autocast(world.device, precision):
                logits = model(batch.tokens, batch.domains, batch.positions)
            targets = batch.targets
            if counted is not None:
                here = torch.from_numpy(np.stack(list(islice(mine, len(targets))))).to(world.device)
                chosen = here.gather(1, batch.positions - int(stream.masked))
                logits, targets = logits[chosen][None], targets[chosen]
            loss += F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), reduction="sum").item()
            count += targets.numel()
    loss, count = world.total(loss, count)
    mean = loss / count
    return math.inf if mean > 700 else math.exp(mean)  # e^700 is about the largest a float holds


@contextmanager
def evaluating(model: torch.nn.Module) -> Iterator[None]:
    """No dropout inside the block."""
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)


def evaluate_missing(
    path: Path, load_model: Callable[[], LanguageModel], stream: Stream, world: World, precision: str
) -> None:
    """Append to `path` the perplexity of a model on each text that no line of it tells of.

    The records of a stage that trained nothing lack nothing.
    """
    lines = records.read_stage(path) if world.leads else []
    known = {(line.domain, line.text) for line in lines if isinstance(line, LaterLine)}
    known |= {item for line in lines if isinstance(line, StageLine) for item in line.texts.items()}
    keys = stream.validation_keys
    missing = [index for index, text in enumerate(stream.evaluated) if (text.name, keys[text.name]) not in known]
    if records.last(lines, StageLine) and not records.last(lines, EvaluationLine):
        missing = []
    missing = world.agree(missing)  # the other processes have read no lines
    if not missing:
        return
    model = load_model().to(world.device)
    for index in missing:
        text = stream.evaluated[index]
        value = perplexity(model, stream, index, world, precision)
        bits = bits_per_byte(value, text)
        if world.leads:
            line = LaterLine(domain=text.name, text=keys[text.name], perplexity=value, bits_per_byte=bits)
            records.append(path, line)
