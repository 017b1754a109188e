"""Perplexity of a model on every domain's validation text, off the clock."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
import torch
import torch.nn.functional as F

from benchmark import corpus
from benchmark.config import ConfigError, Data, Domain
from benchmark.models import LanguageModel, load
from benchmark.stream import Stream, predictions
from benchmark.tokens import Corpus, DomainTokens
from benchmark.vocabulary import EOS
from benchmark.world import World

AUTO = "auto"  # a domain to be found out
LOGITS_AT_ONCE = 2**25  # numbers, so 128 MiB in fp32


def perplexities(model: LanguageModel, stream: Stream, world: World, precision: str = "fp32") -> dict[str, float]:
    """The perplexity on each domain, with its own prompt or column."""
    return {
        domain.name: perplexity(model, stream, index, world, precision)
        for index, domain in enumerate(stream.corpus.domains)
    }


@torch.no_grad()
def perplexity(model: LanguageModel, stream: Stream, domain: int, world: World, precision: str = "fp32") -> float:
    """exp of the mean cross-entropy (natural logarithm) at the predicted positions of a domain's validation text.

    BERT: at masked positions, the same for every model, method and seed. GPT: at every text token.
    """
    loss = count = 0.0
    rows = max(1, LOGITS_AT_ONCE // (predictions(stream.length, stream.masked) * stream.corpus.text_vocabulary))
    with evaluating(model):
        for batch in stream.validation(domain, rows, world.rank, world.size):
            batch = batch.to(world.device)
            with torch.autocast(world.device.type, dtype=torch.bfloat16, enabled=precision == "bf16"):
                logits = model(batch.tokens, batch.domains, batch.positions)
            loss += F.cross_entropy(logits.flatten(0, 1).float(), batch.targets.flatten(), reduction="sum").item()
            count += batch.targets.numel()
    loss, count = world.total(loss, count)
    return math.exp(min(loss / count, 700.0))  # e^700 is about the largest a float holds


def evaluate_text(checkpoint: Path, text: Path, domain: str | None = None) -> dict[str, Any]:
    """Perplexity of a checkpoint on the documents of a file (JSON Lines or text, .gz and .zst too).

    `domain`: whose prompt or column reads it; by default the last domain's. "auto" is the one that the checkpoint's
    discriminator picks for most of the documents; "picked_for" then says for which share of them.

    Raises ConfigError, DataError.
    """
    from benchmark import discriminator  # it uses this module

    model = load(checkpoint)
    names = model.vocabulary.domains
    if domain not in (None, AUTO, *names):
        raise ConfigError(f"--domain {domain!r}: {checkpoint} knows {', '.join(names)}, and {AUTO!r} picks one")
    tokenizer = tokenizers.Tokenizer.from_file(str(checkpoint / "tokenizer.json"))
    tokenizer.encode_special_tokens = True  # "<s>" in a text is text
    skipped: Counter[str] = Counter()
    documents = [one.text for one in corpus.read(Domain(name="text", train=(str(text),)), 0.5, skipped)]
    encoded = tokenizer.encode_batch(documents, add_special_tokens=False)
    ids = np.array([token for one in encoded for token in (*one.ids, EOS)])
    picked = {}
    if domain == AUTO:
        index, share = discriminator.vote(checkpoint, [one.ids for one in encoded if one.ids])
        picked = {"picked_for": share}
    else:
        index = names.index(domain) if domain else len(names) - 1
    one = DomainTokens("text", str(text), "", ids, ids, {})
    stream = Stream(
        Corpus(tokenizer, model.vocabulary.text, (one,) * len(names), ""),
        Data(sequence_length=model.sequence_length),
        masked=model.masked,
        seed=0,
    )
    alone = World(0, 1, torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    return {
        "perplexity": perplexity(model.to(alone.device), stream, index, alone),
        "domain": names[index],
        **picked,
        "documents": len(documents),
        "tokens": len(ids),
        "skipped": dict(skipped),
    }


@contextmanager
def evaluating(model: torch.nn.Module) -> Iterator[None]:
    """No dropout inside the block."""
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)
