"""`run_all.py evaluate`: the perplexity of a model in a folder on somebody's text."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

import numpy as np

from benchmark.data import corpus
from benchmark.data.bpe import TextTokenizer
from benchmark.data.encoding import kept_by
from benchmark.data.start_tokenizer import load_tokenizer
from benchmark.data.tokens import Corpus, DomainInfo, DomainTokens
from benchmark.data.vocabulary import Vocabulary
from benchmark.downstream import discriminator
from benchmark.models import LanguageModel, saved_tokenizer
from benchmark.models.devices import own_device
from benchmark.models.of_stage import load_left
from benchmark.models.transformer import configuration, load_network
from benchmark.settings.base import ConfigError
from benchmark.settings.suite import Data, Domain
from benchmark.training.evaluate import bits_per_byte, perplexity
from benchmark.training.processes import World
from benchmark.training.stream import Stream

if TYPE_CHECKING:
    from typing_extensions import NotRequired  # typing has it from Python 3.11 on

AUTO = "auto"  # a domain to be found out
NO_DOMAIN = "none"  # a published model knows none
LONGEST_ROW = 1024  # columns; published models have positions for rows that no machine here holds


class TextEvaluation(TypedDict):
    """How well a model predicts a text."""

    perplexity: float  # per token
    bits_per_byte: float  # whatever the tokenizer
    domain: str  # whose prompt or column read it, "none" for a published model
    documents: int
    tokens: int
    skipped: dict[str, int]  # documents that are no text, by the reason
    picked_for: NotRequired[float]  # the share of documents for which the discriminator picked that domain


@dataclass(frozen=True)
class ModelOnText:
    """A model and a text that it can read: `stream` has the text as validation text, of each domain of the model."""

    model: LanguageModel
    stream: Stream
    documents: list[list[int]]  # ids of each, without `</s>`
    skipped: dict[str, int]

    @property
    def newest(self) -> int:
        """The index of the model's last domain; 0 where it has met none."""
        return max(0, len(self.model.vocabulary.domains) - 1)

    def perplexity(self, domain: int) -> float:
        """What `evaluate` says. Raises ConfigError where it is no number."""
        alone, text = World(0, 1, own_device()), self.stream.evaluated[domain].title
        value = perplexity(self.model.to(alone.device), self.stream, domain, alone)
        if not math.isfinite(value):
            raise ConfigError(
                f"the model's perplexity on {text} is {value}: its weights or its config.json are damaged; restore the "
                "folder from a copy, or take another model"
            )
        return value


def evaluate_text(checkpoint: Path, text: Path, domain: str | None = None) -> TextEvaluation:
    """Perplexity of a model on the documents of a file (JSON Lines or text, .gz and .zst too).

    `domain`: whose prompt or column reads it; by default the last domain's. "auto" is the one that the checkpoint's
    discriminator picks for most of the documents.

    Raises ConfigError, DataError.
    """
    model, tokenizer = open_folder(checkpoint)
    names = model.vocabulary.domains
    if domain not in (None, AUTO, *names):
        known = (
            f"knows {', '.join(names)}; choose one, or {AUTO!r}, which picks one"
            if names
            else "knows no domain: leave --domain out"
        )
        raise ConfigError(f"--domain {domain!r}: {checkpoint} {known}")
    opened = on_text(model, tokenizer, text)
    share = None
    if domain == AUTO:
        index, share = discriminator.vote(checkpoint, [ids for ids in opened.documents if ids])
    else:
        index = names.index(domain) if domain else opened.newest
    value, measured = opened.perplexity(index), opened.stream.evaluated[index]
    found = TextEvaluation(
        perplexity=value,
        bits_per_byte=bits_per_byte(value, measured),
        domain=names[index] if names else NO_DOMAIN,
        documents=len(opened.documents),
        tokens=len(measured.valid),
        skipped=opened.skipped,
    )
    if share is not None:
        found["picked_for"] = share
    return found


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
                f"{folder}: each text begins with {' '.join(begin)}, which `evaluate` would leave out: evaluate the "
                "stage that it was exported from"
            )
        return model, tokenizer
    model = load_left(folder)
    bpe = saved_tokenizer.read(folder, model.vocabulary)
    return model, TextTokenizer(bpe, model.vocabulary.text, model.vocabulary.special, "")


def on_text(model: LanguageModel, tokenizer: TextTokenizer, text: Path) -> ModelOnText:
    """The documents of a file in rows that are as long as the model can read, each document followed by `</s>`.

    Raises ConfigError for a text shorter than a row, DataError.
    """
    bpe, special = tokenizer.bpe, tokenizer.special
    bpe.encode_special_tokens = True  # "<s>" in a text is text
    skipped: Counter[str] = Counter()
    read = corpus.read(Domain(name="text", train=(str(text),)), 0.5, skipped)
    documents = [one.text for one in kept_by(bpe, read, str(text))]
    encoded = [one.ids for one in bpe.encode_batch(documents, add_special_tokens=False)]
    ids = np.array([token for one in encoded for token in (*one, special.eos)])
    info: DomainInfo = {"valid_bytes": sum(len(one.encode()) for one in documents)}
    one = DomainTokens("text", str(text), "", ids, ids, info)
    stream = Stream(
        Corpus(bpe, model.vocabulary.text, (one,) * max(1, len(model.vocabulary.domains)), special=special),
        Data(sequence_length=min(model.sequence_length, LONGEST_ROW)),
        masked=model.masked,
        seed=0,
    )
    return ModelOnText(model, stream, encoded, dict(skipped))
