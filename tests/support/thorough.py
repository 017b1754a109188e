"""How many cases the tests try: the most informative ones, or in `make test-thorough` all, which
takes hours.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Sequence
from typing import TypeVar

import pytest

T = TypeVar("T")

THOROUGH = os.environ.get("THOROUGH") == "1"


def one_in(every: int, cases: Iterable[T]) -> list[T]:
    """Return every `every`-th case, from the first on. A thorough run returns all."""
    return [*cases][:: 1 if THOROUGH else every]


def these_of(chosen: Iterable[str], names: Sequence[str]) -> list[str]:
    """Return the chosen ones of `names`, in a thorough run all. Raises ValueError if a chosen name
    is not in `names`.
    """
    some = set(chosen)
    if unknown := some - set(names):
        raise ValueError(f"{', '.join(sorted(unknown))}: no such name")
    return [name for name in names if THOROUGH or name in some]


def program(*names: str, package: str) -> str:
    """Return the path of the first of these programs that is installed. `package` is its Debian
    package.

    If none is installed, the test is skipped, or fails if all tests must run (`.ci/run` sets CI).
    """
    if path := next(filter(None, map(shutil.which, names)), None):
        return path
    reason = f"no {names[0]} on this machine (Debian: {package})"
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)


only_thorough = pytest.mark.skipif(not THOROUGH, reason="`make test-thorough`")
