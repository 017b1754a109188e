"""How much the tests try: what tells most, or in `make test-thorough` everything, which takes hours."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import TypeVar

import pytest

T = TypeVar("T")

THOROUGH = os.environ.get("THOROUGH") == "1"


def one_in(every: int, cases: Iterable[T]) -> list[T]:
    """Return one of so many cases, the first of them included; all in a thorough run."""
    return [*cases][:: 1 if THOROUGH else every]


def these_of(chosen: Iterable[str], names: Sequence[str]) -> list[str]:
    """Return those of the names that are chosen; all in a thorough run. Raises ValueError if one is no name."""
    some = set(chosen)
    if unknown := some - set(names):
        raise ValueError(f"{', '.join(sorted(unknown))}: no such name")
    return [name for name in names if THOROUGH or name in some]


only_thorough = pytest.mark.skipif(not THOROUGH, reason="`make test-thorough`")
