"""Perplexity of a model on every domain's validation text, off the clock."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F

from benchmark.models import LanguageModel
from benchmark.stream import Stream
from benchmark.world import World

LOGITS_AT_ONCE = 2**25  # numbers, so 128 MiB in fp32


@torch.no_grad()
def perplexities(model: LanguageModel, stream: Stream, world: World, precision: str = "fp32") -> dict[str, float]:
    """exp of the mean cross-entropy at the predicted positions, for each domain with its own prompt or column.

    BERT: at masked positions, the same for every model, method and seed. GPT: at every text token.
    """
    results = {}
    with evaluating(model):
        for index, domain in enumerate(stream.corpus.domains):
            loss = count = 0.0
            predictions = stream.length if not stream.masked else max(1, round(0.15 * stream.length))
            rows = max(1, LOGITS_AT_ONCE // (predictions * stream.corpus.text_vocabulary))
            for batch in stream.validation(index, rows, world.rank, world.size):
                batch = batch.to(world.device)
                with torch.autocast(world.device.type, dtype=torch.bfloat16, enabled=precision == "bf16"):
                    logits = model(batch.tokens, batch.domains, batch.positions)
                loss += F.cross_entropy(logits.flatten(0, 1).float(), batch.targets.flatten(), reduction="sum").item()
                count += batch.targets.numel()
            loss, count = world.total(loss, count)
            results[domain.name] = math.exp(min(loss / count, 700.0))  # e^700 is about the largest a float holds
    return results


@contextmanager
def evaluating(model: torch.nn.Module) -> Iterator[None]:
    """No dropout inside the block."""
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)
