"""Arrays of token ids on disk: opened without reading them, or read in parts."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmark.data.encoding import Ids


def open_ids(path: Path, dtype: np.dtype[Any]) -> Ids:
    """A file's ids, which are read when they are used."""
    # an empty file cannot be mapped
    return np.memmap(path, dtype, mode="r") if path.stat().st_size else np.empty(0, dtype)


def counts(path: Path, dtype: np.dtype[Any], vocabulary: int) -> NDArray[np.int64]:
    """How often each id occurs in a file, (vocabulary,)."""
    found = np.zeros(vocabulary, np.int64)
    for part in _parts(path, dtype):
        found += np.bincount(part, minlength=vocabulary)
    return found


def sha256(path: Path, dtype: np.dtype[Any]) -> str:
    """A hash of a file's ids, the same for 16 and 32 bits."""
    hashed = hashlib.sha256()
    for part in _parts(path, dtype):
        hashed.update(part.astype("<u4").tobytes())
    return hashed.hexdigest()


def _parts(path: Path, dtype: np.dtype[Any]) -> Iterator[Ids]:
    """The ids of a file, read in parts: pages of a mapped file would count as our memory."""
    with path.open("rb") as file:
        while (part := np.fromfile(file, dtype, 2**20)).size:
            yield part
