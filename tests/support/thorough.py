"""How much the tests try: what tells most, or in `make test-thorough` everything, which takes
hours.
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
    """Return one of so many cases, the first of them included; all in a thorough run."""
    return [*cases][:: 1 if THOROUGH else every]


def these_of(chosen: Iterable[str], names: Sequence[str]) -> list[str]:
    """Return those of the names that are chosen; all in a thorough run. Raises ValueError if one is
    no name.
    """
    some = set(chosen)
    if unknown := some - set(names):
        raise ValueError(f"{', '.join(sorted(unknown))}: no such name")
    return [name for name in names if THOROUGH or name in some]


def program(*names: str, package: str) -> str:
    """The path of the first of these that is installed; `package` is Debian's.

    Without it a test skips, but fails where all must run (`.ci/run` sets CI).
    """
    if path := next(filter(None, map(shutil.which, names)), None):
        return path
    reason = f"no {names[0]} on this machine (Debian: {package})"
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)


only_thorough = pytest.mark.skipif(not THOROUGH, reason="`make test-thorough`")
