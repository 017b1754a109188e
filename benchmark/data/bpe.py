"""Byte-level BPE tokenizers, trained or loaded, all with the same layout of ids (see `benchmark.data.vocabulary`)."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from benchmark.data.documents import DataError
from benchmark.data.vocabulary import SPECIAL_TOKENS, Special
from benchmark.files import Refused, read_text
from benchmark.settings.base import digest


@dataclass(frozen=True)
class TextTokenizer:
    """What turns text into ids: its rows of the vocabulary, its special tokens, and a hash of all that decides ids."""

    bpe: Tokenizer
    vocabulary: int
    special: Special
    key: str

    @classmethod
    def of(cls, bpe: Tokenizer) -> TextTokenizer:
        """One with our layout of ids."""
        return cls(bpe, bpe.get_vocab_size(), Special(), content_key(bpe))

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of an id on disk."""
        return np.dtype("<u2" if self.vocabulary <= 2**16 else "<u4")


def train_bpe(texts: Iterable[str], vocabulary: int) -> Tokenizer:
    """A byte-level BPE of at most `vocabulary` ids, the special tokens first. The same text gives the same ids."""
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    bpe = _byte_level(models.BPE())
    bpe.train_from_iterator(texts, trainer)
    return bpe


def load_bpe(folder: Path) -> Tokenizer:
    """GPT-2's kind of vocab.json and merges.txt, with our special tokens before its entries.

    So GPT-2's ids are shifted by 4; `<|endoftext|>` stays as a row that no text uses. Raises DataError.
    """
    try:
        published = json.loads(read_text(folder / "vocab.json"))
        lines = read_text(folder / "merges.txt").split("\n")
    except Refused:
        raise
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"tokenizer folder {str(folder)!r}: {error}; it must hold vocab.json and merges.txt") from None
    if not isinstance(published, dict) or not all(isinstance(number, int) for number in published.values()):
        raise DataError(
            f"{folder / 'vocab.json'}: a {type(published).__name__}, not an object of tokens and their ids"
            ": take that of a byte-level BPE"
        )
    if missing := _missing_bytes(published):
        raise DataError(
            f"{folder / 'vocab.json'}: not byte-level: it lacks {missing} of the 256 bytes"
            ": take that of a byte-level BPE"
        )
    text = [token for token in sorted(published, key=published.__getitem__) if token not in SPECIAL_TOKENS]
    ids = {token: index for index, token in enumerate((*SPECIAL_TOKENS, *text))}
    rules = [line.partition(" ") for line in lines if line and not line.startswith("#version")]
    merges = [(left, right) for left, _, right in rules]
    try:
        model = models.BPE(ids, merges)
    except Exception as error:  # the library raises nothing narrower
        raise DataError(f"{folder}: merges.txt does not go with vocab.json: {error}") from None
    bpe = _byte_level(model)
    bpe.add_special_tokens(list(SPECIAL_TOKENS))
    return bpe


def _byte_level(model: models.BPE) -> Tokenizer:
    bpe = Tokenizer(model)
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    return bpe


def _missing_bytes(vocabulary: Iterable[str]) -> int:
    return len(set(pre_tokenizers.ByteLevel.alphabet()).difference(vocabulary))


def plainly(bpe: Tokenizer) -> int:
    """Have a saved tokenizer cut whole texts, always alike, and fill none. Returns how many of the 256 bytes it lacks.

    A byte-level BPE has a token for each of them; of another kind nothing is said. A unigram model draws among ways to
    cut only where its `alpha` is set, which no file holds.
    """
    bpe.no_truncation()
    bpe.no_padding()
    if isinstance(bpe.model, models.BPE):
        bpe.model.dropout = None  # it draws which merges to leave out, for training
    content = json.loads(bpe.to_str())
    is_byte_level = content["model"]["type"] == "BPE" and '"ByteLevel"' in json.dumps(content["pre_tokenizer"])
    return _missing_bytes(content["model"]["vocab"]) if is_byte_level else 0


def content_key(bpe: Tokenizer) -> str:
    """A hash of all that decides how text is cut and numbered."""
    model = json.loads(bpe.to_str())["model"]
    return digest([model["vocab"], model["merges"]])
