"""Token ids: made of documents, opened on disk without reading them, and counted."""

from __future__ import annotations

import hashlib
import os
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmark.data.documents import Document
from benchmark.data.tokenizer import TextTokenizer, ids_of

BATCH = 128  # documents that a thread tokenises at once
THREADS = min(os.cpu_count() or 1, 8)
# threads of the library's own stay, and a process that is forked later hangs or warns
os.environ["TOKENIZERS_PARALLELISM"] = "false"
Ids = NDArray[np.integer[Any]]  # uint16 or uint32


def encode_documents(
    made_with: TextTokenizer, documents: Iterable[Document], written: int = 0
) -> Iterator[tuple[Document, Ids]]:
    """Documents in their order, with their ids and `</s>`. The library holds no lock while it works in a thread.

    Of the first ones, so many as were `written`, those for training get no ids.
    """

    def encode(batch: list[tuple[int, Document]]) -> list[tuple[Document, Ids]]:
        asked = [document for number, document in batch if number >= written or document.split == "valid"]
        cut = ids_of(made_with.bpe, [document.text for document in asked])
        ids = {id(document): [*text, made_with.special.eos] for document, text in zip(asked, cut, strict=True)}
        return [(document, np.array(ids.get(id(document), []), made_with.dtype)) for _, document in batch]

    numbered = enumerate(documents)
    pending: deque[Future[list[tuple[Document, Ids]]]] = deque()
    with ThreadPoolExecutor(THREADS) as pool:
        while batch := list(islice(numbered, BATCH)):
            pending.append(pool.submit(encode, batch))
            if len(pending) > 2 * THREADS:
                yield from pending.popleft().result()
        while pending:
            yield from pending.popleft().result()


def open_ids(path: Path, dtype: np.dtype[Any]) -> Ids:
    """A file's ids, which are read when they are used."""
    # an empty file cannot be mapped
    return np.memmap(path, dtype, mode="r") if path.stat().st_size else np.empty(0, dtype)


def counts_and_hash(path: Path, made_with: TextTokenizer) -> tuple[NDArray[np.int64], str]:
    """How often each id occurs in a file, (vocabulary,), and a hash of the ids, the same for 16 and 32 bits.

    The file is read in parts: pages of a mapped one would count as our memory.
    """
    counts, hashed = np.zeros(made_with.vocabulary, np.int64), hashlib.sha256()
    with path.open("rb") as file:
        while (part := np.fromfile(file, made_with.dtype, 2**20)).size:
            counts += np.bincount(part, minlength=made_with.vocabulary)
            hashed.update(part.astype("<u4").tobytes())
    return counts, hashed.hexdigest()


def unigram_perplexity(train: Ids, valid: Ids) -> float:
    """Perplexity of `valid` under the frequencies of `train`, one added to each; both are token counts (V_text,)."""
    log_probabilities = np.log((train + 1) / (train.sum() + len(train)))
    return float(np.exp(-(valid @ log_probabilities) / max(1, valid.sum())))
