"""`run_all.py evaluate`: the perplexity of a model in its folder on a text."""

from __future__ import annotations

import argparse
import math
from collections import Counter
from pathlib import Path
from typing import TypedDict

import numpy as np

from benchmark.data import corpus
from benchmark.data.tokenizer import TextTokenizer, Vocabulary, ids_of, load_tokenizer
from benchmark.data.tokens import Corpus, DomainInfo, DomainTokens
from benchmark.models import LanguageModel, load
from benchmark.models.devices import own_device
from benchmark.models.transformer import configuration, load_network, read_tokenizer
from benchmark.settings.base import ConfigError
from benchmark.settings.suite import Data
from benchmark.settings.texts import Domain
from benchmark.training.evaluate import bits_per_byte, measure_loss
from benchmark.training.processes import World
from benchmark.training.stream import Stream

NONE = "none"  # the domain of a published model
LONGEST_ROW = 1024  # columns; published models have positions for rows that no machine here holds


def evaluate(options: argparse.Namespace) -> int:
    """Print the perplexity of a checkpoint on a text."""
    result = evaluate_text(options.checkpoint, options.text, options.domain)
    print("\n".join(f"{key}: {value}" for key, value in result.items()))
    return 0


class TextEvaluation(TypedDict):
    """How well a model predicts a text."""

    perplexity: float  # per token
    bits_per_byte: float  # whatever the tokenizer
    domain: str  # whose prompt or column read it, "none" for a published model
    documents: int
    tokens: int
    skipped: dict[str, int]  # documents that are no text, by the reason


def evaluate_text(checkpoint: Path, text: Path, domain: str | None = None) -> TextEvaluation:
    """Perplexity of a model on the documents of a file (JSON Lines or text, .gz and .zst too).

    `domain`: whose prompt or column reads it; by default the last domain's.

    Raises ConfigError, DataError.
    """
    model, tokenizer = open_folder(checkpoint)
    names = model.vocabulary.domains
    if domain not in (None, *names):
        known = ", ".join(names) or "no domain: leave --domain out"
        raise ConfigError(f"--domain {domain!r}: {checkpoint} knows {known}")
    stream, documents, skipped = read_text(model, tokenizer, text)
    index = names.index(domain) if domain else max(0, len(names) - 1)
    alone, measured = World(0, 1, own_device()), stream.evaluated[index]
    value = measure_loss(model.to(alone.device), stream, index, alone).perplexity
    if not math.isfinite(value):
        raise ConfigError(
            f"the model's perplexity on {text} is {value}: its weights or its config.json are damaged; take another"
        )
    return TextEvaluation(
        perplexity=value,
        bits_per_byte=bits_per_byte(value, measured),
        domain=names[index] if names else NONE,
        documents=documents,
        tokens=len(measured.valid),
        skipped=skipped,
    )


def open_folder(folder: Path) -> tuple[LanguageModel, TextTokenizer]:
    """The model in a folder that a run wrote, or in a published one, which has met no domain; and its tokenizer.

    Raises ConfigError, DataError.
    """
    if "text_vocabulary" not in configuration(folder):
        network = load_network(folder)
        tokenizer = load_tokenizer(folder)
        model = LanguageModel(network, Vocabulary(tokenizer.vocabulary, (), tokenizer.special)).eval()
        first = tokenizer.bpe.encode("a")
        begin = [token for token, added in zip(first.tokens, first.special_tokens_mask, strict=True) if added]
        if model.masked:
            begin = begin[:-1]
        if len(begin) > 1:
            raise ConfigError(
                f"{folder}: texts begin with {' '.join(begin)}, a prompt: evaluate the stage that it was exported from"
            )
        return model, tokenizer
    model = load(folder)
    bpe = read_tokenizer(folder, model.vocabulary)
    return model, TextTokenizer(bpe, model.vocabulary.text, model.vocabulary.special, "")


def read_text(model: LanguageModel, tokenizer: TextTokenizer, text: Path) -> tuple[Stream, int, dict[str, int]]:
    """The documents of a file in rows that are as long as the model can read, each document followed by `</s>`.

    The stream has them as validation text, of each domain of the model. Also how many there are, and were skipped.

    Raises ConfigError for a text shorter than a row, DataError.
    """
    bpe, special = tokenizer.bpe, tokenizer.special
    bpe.encode_special_tokens = True  # "<s>" in a text is text
    skipped: Counter[str] = Counter()
    read = corpus.drop_repeats(Domain(name="text", train=(str(text),)), skipped)
    documents = [document.text for document in read]
    ids = np.array([token for document in ids_of(bpe, documents) for token in (*document, special.eos)])
    info: DomainInfo = {"valid_bytes": sum(len(document.encode()) for document in documents)}
    tokens = DomainTokens("text", str(text), "", ids, ids, info)
    stream = Stream(
        Corpus(bpe, model.vocabulary.text, (tokens,) * max(1, len(model.vocabulary.domains)), special=special),
        Data(
            sequence_length=min(model.sequence_length, LONGEST_ROW),
            document_mask=hasattr(model.network.config, "document_mask"),
        ),
        masked=model.masked,
        seed=0,
    )
    return stream, len(documents), dict(skipped)
