"""One process at a time adds to a study, or renders it: both go by what is there, and write what comes of it."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path

from benchmark.locks import Lock


@contextlib.contextmanager
def alone(study: Path) -> Iterator[None]:
    """Wait until no other process is in such a block for the same study, as far as its file system has locks.

    Its first suite's file is locked, for a study holds nothing that is not committed.
    """
    suites = sorted(study.glob("*.toml"))
    lock = Lock(suites[0], needed=False) if suites else None
    with contextlib.suppress(PermissionError):  # a suite that may only be read
        if lock:
            lock.acquire(lambda: print(f"waits for another process, which collects into {study}", file=sys.stderr))
    try:
        yield
    finally:
        if lock:
            lock.release()
