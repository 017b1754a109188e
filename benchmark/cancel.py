"""Whether the work of this process is asked to stop: by a signal, by the end of its parent.

Long work asks between two steps, and saves before it ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Stopped(Exception):
    """The work was asked to stop.

    A run's state is in a checkpoint.
    """


class Taken(Stopped):
    """Another process trains a stage of the run or makes its text, and this one may not wait."""


_sources: list[Callable[[], bool]] = []


@contextmanager
def heed(source: Callable[[], bool]) -> Iterator[None]:
    """Stop where `source` says so, too, while the context lasts."""
    _sources.append(source)
    try:
        yield
    finally:
        _sources.remove(source)


def is_asked() -> bool:
    return any(source() for source in _sources)


def check() -> None:
    """Raise Stopped where this process is asked to stop."""
    if is_asked():
        raise Stopped


def check_wait(may_wait: bool) -> None:
    """As `check`, before a wait for another process: raise Taken where there may be none."""
    check()
    if not may_wait:
        raise Taken
