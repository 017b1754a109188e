"""Requests to stop the work of this process, such as a signal or the end of its parent.

Long work looks for a request between two steps, and saves its state before it ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Stopped(Exception):
    """The work was asked to stop.

    A run's state is in a checkpoint.
    """


class Taken(Stopped):
    """Another process trains a stage of the run or prepares its text, and this one may not wait."""


_sources: list[Callable[[], bool]] = []


@contextmanager
def heed(source: Callable[[], bool]) -> Iterator[None]:
    """While the context lasts, stop the work also if `source` returns true."""
    _sources.append(source)
    try:
        yield
    finally:
        _sources.remove(source)


def is_asked() -> bool:
    return any(source() for source in _sources)


def check() -> None:
    """Raise Stopped if this process is asked to stop."""
    if is_asked():
        raise Stopped


def check_wait(may_wait: bool) -> None:
    """Before a wait for another process: do as `check`, then raise Taken unless `may_wait`."""
    check()
    if not may_wait:
        raise Taken
