"""`run_all.py evaluate`: the perplexity of a checkpoint on somebody's text."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

import numpy as np
import tokenizers

from benchmark.data import corpus
from benchmark.data.tokens import Corpus, DomainTokens
from benchmark.downstream import discriminator
from benchmark.models import load
from benchmark.models.devices import own_device
from benchmark.settings.config import ConfigError, Data, Domain
from benchmark.training.evaluate import perplexity
from benchmark.training.processes import World
from benchmark.training.stream import Stream

if TYPE_CHECKING:
    from typing_extensions import NotRequired  # typing has it from Python 3.11 on

AUTO = "auto"  # a domain to be found out


class TextEvaluation(TypedDict):
    """How well a checkpoint predicts a text."""

    perplexity: float
    domain: str  # whose prompt or column read it
    documents: int
    tokens: int
    skipped: dict[str, int]  # documents that are no text, by the reason
    picked_for: NotRequired[float]  # the share of documents for which the discriminator picked that domain


def evaluate_text(checkpoint: Path, text: Path, domain: str | None = None) -> TextEvaluation:
    """Perplexity of a checkpoint on the documents of a file (JSON Lines or text, .gz and .zst too).

    `domain`: whose prompt or column reads it; by default the last domain's. "auto" is the one that the checkpoint's
    discriminator picks for most of the documents.

    Raises ConfigError, DataError.
    """
    model = load(checkpoint)
    names, special = model.vocabulary.domains, model.vocabulary.special
    if domain not in (None, AUTO, *names):
        raise ConfigError(f"--domain {domain!r}: {checkpoint} knows {', '.join(names)}, and {AUTO!r} picks one")
    tokenizer = tokenizers.Tokenizer.from_file(str(checkpoint / "tokenizer.json"))
    tokenizer.encode_special_tokens = True  # "<s>" in a text is text
    skipped: Counter[str] = Counter()
    documents = [one.text for one in corpus.read(Domain(name="text", train=(str(text),)), 0.5, skipped)]
    encoded = tokenizer.encode_batch(documents, add_special_tokens=False)
    ids = np.array([token for one in encoded for token in (*one.ids, special.eos)])
    share = None
    if domain == AUTO:
        index, share = discriminator.vote(checkpoint, [one.ids for one in encoded if one.ids])
    else:
        index = names.index(domain) if domain else len(names) - 1
    one = DomainTokens("text", str(text), "", ids, ids, {})
    stream = Stream(
        Corpus(tokenizer, model.vocabulary.text, (one,) * len(names), special=special),
        Data(sequence_length=model.sequence_length),
        masked=model.masked,
        seed=0,
    )
    alone = World(0, 1, own_device())
    found = TextEvaluation(
        perplexity=perplexity(model.to(alone.device), stream, index, alone),
        domain=names[index],
        documents=len(documents),
        tokens=len(ids),
        skipped=dict(skipped),
    )
    if share is not None:
        found["picked_for"] = share
    return found
