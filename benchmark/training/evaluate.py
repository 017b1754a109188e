"""Perplexity of a model on every domain's validation text, off the clock."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from benchmark.data.tokens import DomainTokens
from benchmark.devices import autocast, evaluating
from benchmark.ledger import records
from benchmark.ledger.records import EvaluationLine, LaterLine, StageLine
from benchmark.models import LanguageModel
from benchmark.training.processes import World
from benchmark.training.stream import Stream, count_predictions

LOGITS_AT_ONCE = 2**25  # numbers, so 128 MiB in fp32


@dataclass(frozen=True)
class TextLoss:
    """The loss of a model on a validation text, per document."""

    tokens: NDArray[np.int64]  # predicted tokens, (documents,)
    nats: NDArray[np.float64]  # their summed cross-entropy, (documents,)

    @property
    def perplexity(self) -> float:
        """Infinite if it exceeds the largest float."""
        mean = float(self.nats.sum() / self.tokens.sum())
        if mean > 700:  # e^700 is about the largest a float holds
            return math.inf
        return math.exp(mean)

    def list_documents(self) -> list[tuple[int, float]]:
        """For the records: predicted tokens and nats of each document."""
        return list(zip(self.tokens.tolist(), self.nats.round(3).tolist(), strict=True))


def evaluate(
    model: LanguageModel, stream: Stream, world: World, precision: str, at_end: bool = False
) -> dict[str, dict[str, Any]]:
    """What an evaluation records of each domain and each probe, by field and text.

    A domain is read with its own prompt, column or adapters. At the end of a stage (`at_end`) the
    losses of each document are included, for the tables.
    """
    texts = stream.evaluated
    losses = {
        text.name: measure_loss(model, stream, index, world, precision)
        for index, text in enumerate(texts)
    }
    perplexities = {name: loss.perplexity for name, loss in losses.items()}
    bits = {text.name: to_bits_per_byte(perplexities[text.name], text) for text in texts}
    measurements: dict[str, dict[str, Any]] = {"perplexity": perplexities, "bits_per_byte": bits}
    if at_end:
        measurements["documents"] = {name: loss.list_documents() for name, loss in losses.items()}
    return measurements


def measure_perplexities(model: LanguageModel, stream: Stream, world: World) -> dict[str, float]:
    return evaluate(model, stream, world, "fp32")["perplexity"]


def to_bits_per_byte(perplexity: float, text: DomainTokens) -> float:
    """The bits that a byte of a domain's validation text costs at this perplexity per token.

    They do not depend on the tokenizer. For a model that predicts every token, they are its
    cross-entropy in bits divided by the bytes of the text. For a masked model the mean is over
    masked positions, so the number compares masked models only with each other.
    """
    return math.log2(perplexity) * len(text.valid) / text.info["valid_bytes"]


@torch.no_grad()
def measure_loss(
    model: LanguageModel, stream: Stream, domain: int, world: World, precision: str = "fp32"
) -> TextLoss:
    """The cross-entropy (natural logarithm) at the predicted positions of a validation text.

    BERT: at masked positions, the same for every model, method and seed. GPT: at every text token.
    """
    documents = stream.number_documents(domain)
    count = int(documents.max()) + 1
    # tokens that another row counts go to an extra document, number `count`, which is dropped below
    documents[documents < 0] = count
    local_documents = documents[world.rank :: world.size]
    predictions = count_predictions(stream.length, stream.masked)
    rows = max(1, LOGITS_AT_ONCE // (predictions * stream.corpus.text_vocabulary))
    tokens = np.zeros(count + 1)
    nats = np.zeros(count + 1)
    rows_read = 0
    with evaluating(model):
        for batch in stream.read_validation(domain, rows, world.rank, world.size):
            # columns of the predicted tokens in the text, which lacks the `<s>` of `batch.tokens`:
            # GPT predicts a token at the position before it, BERT at its own
            columns = batch.positions.numpy() - int(stream.masked)
            row_documents = local_documents[rows_read : rows_read + len(columns)]
            numbers = np.take_along_axis(row_documents, columns, axis=1).ravel()
            rows_read += len(columns)
            batch = batch.to(world.device)
            with autocast(world.device, precision):
                logits = model(batch.tokens, batch.domains, batch.positions)
            losses = F.cross_entropy(
                logits.flatten(0, 1).float(), batch.targets.flatten(), reduction="none"
            )
            tokens += np.bincount(numbers, minlength=count + 1)
            nats += np.bincount(numbers, losses.cpu().numpy(), minlength=count + 1)
    totals = np.array(world.total(*tokens[:count], *nats[:count]))
    return TextLoss(tokens=totals[:count].astype(np.int64), nats=totals[count:])


def evaluate_missing(
    path: Path,
    load_model: Callable[[], LanguageModel],
    stream: Stream,
    world: World,
    precision: str,
) -> None:
    """Append to `path` the perplexity of a model on each text that has no line there yet.

    After a stage that trained nothing, no text is evaluated.
    """
    lines = records.read_stage(path) if world.leads else []
    recorded_texts: set[tuple[str, str]] = set()
    for line in lines:
        if isinstance(line, LaterLine):
            recorded_texts.add((line.domain, line.text))
        elif isinstance(line, StageLine):
            recorded_texts.update(line.texts.items())
    keys = stream.validation_keys
    missing = [
        index
        for index, text in enumerate(stream.evaluated)
        if (text.name, keys[text.name]) not in recorded_texts
    ]
    is_stage = records.find_last(lines, StageLine) is not None
    if is_stage and not records.find_last(lines, EvaluationLine):  # the stage trained nothing
        missing = []
    missing = world.broadcast(missing)  # the other processes have read no lines
    if not missing:
        return
    model = load_model().to(world.device)
    for index in missing:
        text = stream.evaluated[index]
        value = measure_loss(model, stream, index, world, precision).perplexity
        bits = to_bits_per_byte(value, text)
        if world.leads:
            later = LaterLine(
                domain=text.name, text=keys[text.name], perplexity=value, bits_per_byte=bits
            )
            records.append(path, later)
