"""Documents to token ids: in threads, a few batches ahead, and kept so that whoever is killed goes on where it was."""

from __future__ import annotations

import hashlib
import os
import struct
import zlib
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from benchmark.data.documents import DataError, Document
from benchmark.data.tokenizer import TextTokenizer
from benchmark.data.words import Words, takes_words_alone

BATCH = 2**18  # characters that a thread tokenises at once
LOOKED_AT, BEGINNING = 20, 2000  # documents, and characters of each, by which it is seen what a tokenizer keeps
THREADS = min(os.cpu_count() or 1, 8)
Ids = NDArray[np.integer[Any]]  # uint16 or uint32


class BegunBatch(NamedTuple):
    """Documents whose ids are on their way: those that were looked up, and the library's in another thread."""

    documents: list[Document]
    hashed: bytes
    looked_up: list[Ids | None]
    others: Future[list[Ids]]

    def ids(self) -> list[Ids]:
        others = iter(self.others.result())
        return [next(others) if ids is None else ids for ids in self.looked_up]


def encoded(made_with: TextTokenizer, documents: Iterable[Document], kept: Path) -> Iterator[tuple[Document, Ids]]:
    """Documents in their order, with their ids and `</s>`; batches that the file `kept` has are not tokenised again.

    This thread looks up the words of ASCII text, if the tokenizer takes them alone. All else is the library's, in other
    threads, since it holds no lock there; where a core would be idle it gets a whole batch.
    """
    eos, dtype = made_with.special.eos, made_with.dtype
    words = Words(made_with.bpe, dtype, eos).ids if takes_words_alone(made_with.bpe) else None

    def encode(texts: list[str]) -> list[Ids]:
        encodings = made_with.bpe.encode_batch_fast(texts, add_special_tokens=False)
        return [np.array([*encoding.ids, eos], dtype) for encoding in encodings]

    def begun(batch: list[Document], hashed: bytes) -> BegunBatch:
        idle = sum(not one.others.done() for one in pending) < THREADS - 1
        by_word = None if idle else words
        texts = [document.text for document in batch]
        others = pool.submit(encode, [text for text in texts if not (by_word and text.isascii())])
        looked_up = [by_word(text) if by_word and text.isascii() else None for text in texts]
        return BegunBatch(batch, hashed, looked_up, others)

    pending: deque[BegunBatch] = deque()
    with KeptBatches(kept, dtype, eos) as before, ThreadPoolExecutor(THREADS) as pool:

        def oldest() -> Iterator[tuple[Document, Ids]]:
            batch = pending.popleft()
            before.add(batch.hashed, ids := batch.ids())
            return zip(batch.documents, ids, strict=True)

        for batch in _batches(documents):
            hashed = _hash(batch)
            if (ids := before.next(hashed)) is not None:
                yield from zip(batch, ids, strict=True)
                continue
            pending.append(begun(batch, hashed))
            if len(pending) > 4 * THREADS:
                yield from oldest()
        while pending:
            yield from oldest()


class KeptBatches:
    """A file of the ids of batches in their order: of each a hash of its texts, size and CRC-32 of its ids, and these.

    What it has is read first. A batch of other texts, or one that is damaged or cut short, ends that: the file is cut
    before it, and goes on with what is added. It is never synced, as nothing in it is believed unchecked.
    """

    HEAD = struct.Struct("<32sQI")

    def __init__(self, path: Path, dtype: np.dtype[Any], eos: int) -> None:
        self._file = path.open("r+b" if path.exists() else "w+b")
        self._size = path.stat().st_size
        self._dtype, self._eos = dtype, eos
        self._reads = True

    def __enter__(self) -> KeptBatches:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def next(self, texts: bytes) -> list[Ids] | None:
        """The ids of each document of the next batch, if it has these texts; else None, and from then on."""
        place = self._file.tell()
        if self._reads and place + self.HEAD.size <= self._size:
            hashed, size, crc32 = self.HEAD.unpack(self._file.read(self.HEAD.size))
            if hashed == texts and self._file.tell() + size <= self._size:
                content = self._file.read(size)
                if zlib.crc32(content) == crc32:
                    ids = np.frombuffer(content, self._dtype)
                    ends = np.flatnonzero(ids == self._eos) + 1
                    return [part.copy() for part in np.split(ids, ends[:-1])]  # or each would keep all in memory
        if self._reads:
            self._reads = False
            self._file.seek(place)
            self._file.truncate()
        return None

    def add(self, texts: bytes, batch: list[Ids]) -> None:
        content = b"".join(ids.tobytes() for ids in batch)
        self._file.write(self.HEAD.pack(texts, len(content), zlib.crc32(content)) + content)
        self._file.flush()


def kept_by(bpe: Tokenizer, documents: Iterable[Document], name: str) -> Iterator[Document]:
    """The documents, of which the tokenizer must keep something: their bits per byte would be next to none.

    Raises DataError where of the first few no tenth of the bytes is left, as when a normalizer deletes letters.
    """
    whole = left = number = 0

    def check() -> None:
        if left < whole / 10:
            raise DataError(
                f"{name}: of {whole:,} bytes of text the tokenizer leaves {left:,}: copy the one that the model was "
                "trained with"
            )

    for number, document in enumerate(documents, 1):
        if number <= LOOKED_AT:
            text = document.text[:BEGINNING]
            whole += len(text.encode())
            ids = bpe.encode(text, add_special_tokens=False).ids
            left += len(bpe.decode(ids, skip_special_tokens=False).encode())
        if number == LOOKED_AT:
            check()
        yield document
    if number < LOOKED_AT:
        check()


def _batches(documents: Iterable[Document]) -> Iterator[list[Document]]:
    batch: list[Document] = []
    size = 0
    for document in documents:
        batch.append(document)
        size += len(document.text)
        if size >= BATCH:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _hash(batch: list[Document]) -> bytes:
    hashed = hashlib.sha256()
    for document in batch:
        text = document.text.encode()
        hashed.update(b"%d\n" % len(text) + text)
    return hashed.digest()
