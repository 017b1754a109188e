"""Validation documents, and tests of tasks, that nearly stand in the training text of a stream, or
of the task.

They are looked for once; `copies/` in the folder of prepared data holds the answer. Near copies are
documents that differ in a few words, so that they have long runs of words in common.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer, models

from benchmark.data.tokenizer import Ids
from benchmark.data.tokens import Corpus, Place, Poll, describe_cure
from benchmark.files import read_json, write_json
from benchmark.settings.base import digest
from benchmark.settings.texts import Domain

RUN = 13  # words in a row that two texts hardly have in common by chance
NEARLY = 0.5  # of a document's runs stand in another text
BLOCK = 2**18  # ids that are looked through at once
BLANKS = "\u0120\u010a\u0109\u010d\u2581 \t\r\n"  # how byte-level tokenizers and others write them
END = np.uint64(1)  # of a document, in place of a word
POWERS = np.multiply.accumulate(
    np.full(1000, 0x9E3779B97F4A7C15, np.uint64)
)  # of the places of letters in a word
Hashes = NDArray[np.uint64]
FORMAT = 1  # raised when other documents come to be copies
Text = tuple[str, Callable[[], Ids]]  # a key, and what reads its ids
Found = dict[str, dict[str, list[int]]]  # by domain, by text: numbers of its documents


def find_leaks(
    bpe: Tokenizer,
    eos: int,
    asked: Mapping[str, Text],
    texts: Mapping[str, Text],
    folder: Path,
    poll: Poll = lambda waits: None,
) -> Found:
    """The documents of each text `asked` about that nearly stand in each of `texts`: see
    `find_near_copies`.

    Ids come from this tokenizer, and each document is followed by `eos`.
    """
    copies: Found = {}

    def make(read: Callable[[], Ids], unfinished: Path) -> None:
        documents = [np.asarray(read_documents()) for _, read_documents in asked.values()]
        found = find_near_copies(bpe, eos, documents, read())
        write_json(unfinished / "copies.json", {"copies": found})

    for name, (key, read) in texts.items() if asked else ():
        identity = digest([FORMAT, key, [key for key, _ in asked.values()]])
        made = Place(folder, poll=poll).make_once("copies", identity, partial(make, read))
        copies[name] = dict(
            zip(asked, read_json(made / "copies.json", describe_cure(made))["copies"], strict=True)
        )
    return copies


def list_learned(corpus: Corpus, learned: Sequence[Domain]) -> dict[str, Text]:
    """The training text of each domain that is learned, for `find_leaks`."""
    names = {text.name for text in learned}
    texts = (text for text in (*corpus.domains, *corpus.probes) if text.name in names)
    return {text.name: (text.key, partial(np.asarray, text.train)) for text in texts}


def find_validation_leaks(
    corpus: Corpus, learned: Sequence[Domain], folder: Path, poll: Poll = lambda waits: None
) -> Found:
    """The documents of the validation text of each domain and probe that nearly stand in training
    text.
    """
    asked = {
        text.name: (text.key, partial(np.asarray, text.valid))
        for text in (*corpus.domains, *corpus.probes)
    }
    return find_leaks(
        corpus.tokenizer, corpus.special.eos, asked, list_learned(corpus, learned), folder, poll
    )


def find_shared_documents(corpus: Corpus, folder: Path) -> Found:
    """The documents of the validation text of each domain that nearly stand in that of another, or
    in its own.
    """
    asked = {text.name: (text.key, partial(np.asarray, text.valid)) for text in corpus.domains}
    texts = {name: (f"valid {key}", read) for name, (key, read) in asked.items()}
    return find_leaks(corpus.tokenizer, corpus.special.eos, asked, texts, folder)


# Near copies


def find_near_copies(
    bpe: Tokenizer, eos: int, asked: Sequence[NDArray[Any]], ids: NDArray[Any]
) -> list[list[int]]:
    """For each array, the numbers of the documents at least NEARLY of whose runs of RUN words stand
    in `ids` too.

    Neither case nor blanks count, nor how the tokenizer cuts words. A document of fewer words has
    no run.
    """
    words = _Words(bpe, eos)
    parts = [words.hash_runs(text) for text in asked]
    sought = np.unique(np.concatenate([np.empty(0, np.uint64), *(runs for runs, _ in parts)]))
    is_copied, likely = np.zeros(len(sought), bool), np.zeros(2**22, bool)
    likely[sought % len(likely)] = True
    for start in range(0, len(ids) if len(sought) else 0, BLOCK):
        runs, _ = words.hash_runs(ids[start : start + BLOCK + 8 * RUN])
        runs = runs[likely[runs % len(likely)]]
        places = np.minimum(np.searchsorted(sought, runs), len(sought) - 1)
        is_copied[places[sought[places] == runs]] = True
    shares = (
        np.bincount(of, is_copied[np.searchsorted(sought, runs)]) / np.bincount(of).clip(1)
        for runs, of in parts
    )
    return [np.flatnonzero(share >= NEARLY).tolist() for share in shares]


class _Words:
    """Hashes of words, put together from those of the letters in their tokens."""

    def __init__(self, bpe: Tokenizer, eos: int) -> None:
        tokens, size = bpe.get_vocab(), max(eos, *bpe.get_vocab().values()) + 1
        pieces = isinstance(bpe.model, models.WordPiece)
        self._eos = eos
        self._hashed, self._letters = np.zeros(size, np.uint64), np.zeros(size, np.int64)
        self._begins = np.full(size, pieces)
        for token, number in tokens.items():
            self._begins[number] = not token.startswith("##") if pieces else token[:1] in BLANKS
            letters = token.removeprefix("##" if pieces else "").strip(BLANKS).casefold()[:500]
            codes = np.array([ord(letter) for letter in letters], np.uint64)
            self._hashed[number], self._letters[number] = (
                (codes * POWERS[: len(codes)]).sum(),
                len(codes),
            )

    def hash_runs(self, ids: NDArray[Any]) -> tuple[Hashes, NDArray[np.int64]]:
        """A hash of each run of RUN words inside a document, and the document's number."""
        if not len(ids):
            return np.empty(0, np.uint64), np.empty(0, np.int64)
        ends = ids == self._eos
        begins = self._begins[ids] | ends
        begins[1:] |= ends[:-1]
        begins[0] = True
        places = np.flatnonzero(begins)
        letters = np.cumsum(self._letters[ids]) - self._letters[ids]
        letters -= np.repeat(letters[places], np.diff(places, append=len(ids)))
        powers = POWERS[np.minimum(letters, len(POWERS)) - 1]
        powers[letters == 0] = 1
        words = np.add.reduceat(self._hashed[ids] * powers, places)
        words[ends[places]] = END
        words = words[words != 0]
        ended = np.cumsum(words == END)
        before = ended - (words == END)
        count = max(0, len(words) - RUN + 1)
        runs = np.zeros(count, np.uint64)
        for place in range(RUN):
            runs = runs * POWERS[0] + words[place : place + count]
        whole = before[:count] == ended[RUN - 1 :][:count]
        return runs[whole], before[:count][whole]
