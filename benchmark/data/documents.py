"""What the sources of text have in common."""

from __future__ import annotations

import heapq
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from typing import Any, Generic, Literal, TypeVar

from benchmark.errors import UserError

LONGEST_DOCUMENT = 100_000  # characters; longer ones are cut, so that one file can hold a whole corpus

TORN = re.compile(r"[\ud800-\udfff]")  # half of a surrogate pair, which no tokenizer reads
FEW_DOCUMENTS = 20  # for validation: perplexity is theirs more than the domain's


class DataError(UserError):
    """Text that cannot be used as it is. The message says which, where and the cure."""


@contextmanager
def naming_source(what: str) -> Iterator[None]:
    """Turn whatever libraries raise over text from a network, in the middle of it too, into a DataError that names it.

    They do not say what that may be.
    """
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        raise DataError(
            f"{what}: {type(error).__name__}: {error}: correct the name, or try again where there is a network"
        ) from error


@dataclass(frozen=True)
class Document:
    """`source` says where the text stands: "pandas.core.frame:DataFrame.join", "FILE:LINE" or "DATASET:ROW".

    `kind` is "module", "class" or "function" for a docstring, else empty.
    """

    text: str
    source: str
    kind: str = ""
    split: Literal["train", "valid", ""] = ""


def cut(text: str) -> list[str]:
    """`text` in pieces of at most LONGEST_DOCUMENT characters, each up to the end of a line, or else of a word."""
    pieces = []
    start = 0
    while len(text) - start > LONGEST_DOCUMENT:
        stop = start + LONGEST_DOCUMENT
        end = text.rfind("\n", start, stop) + 1 or text.rfind(" ", start, stop) + 1 or stop
        pieces.append(text[start:end])
        start = end
    return [*pieces, text[start:]]


def text_of(record: Any, text_field: str, place: str) -> str:
    """The text of a record; null is no text, so it will count as blank."""
    if not isinstance(record, Mapping):
        raise DataError(
            f"{place}: a {type(record).__name__}, not an object with a field {text_field!r}: write one on each line"
        )
    if text_field not in record:
        fields = ", ".join(map(str, record)) or "none"
        raise DataError(f"{place}: no field {text_field!r}; there are {fields}: name the right one in text_field")
    text = record[text_field]
    if not isinstance(text, str | None):
        raise DataError(
            f"{place}: field {text_field!r} is a {type(text).__name__}, not text: name another in text_field"
        )
    return text or ""


Item = TypeVar("Item")


class Sample(Generic[Item]):
    """Keeps of all that is added what a hash puts first until `size` is full: even, repeatable, in one pass."""

    def __init__(self, size: int) -> None:
        self._room = size
        self._kept: list[tuple[int, int, int, Item]] = []  # a heap, the largest hash on top
        self._numbers = count()
        self.dropped = 0

    def add(self, item: Item, size: int, hashed: int) -> None:
        heapq.heappush(self._kept, (-hashed, next(self._numbers), size, item))
        self._room -= size
        while self._room + self._kept[0][2] <= 0:
            self._room += heapq.heappop(self._kept)[2]
            self.dropped += 1

    def items(self) -> list[Item]:
        """Return what was kept, in the order in which it came."""
        return [item for _, _, _, item in sorted(self._kept, key=lambda kept: kept[1])]
