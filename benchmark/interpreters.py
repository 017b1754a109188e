"""From where the interpreters that a process starts import."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

CODE = Path(__file__).parents[1]


@contextmanager
def standing_in_code() -> Iterator[None]:
    """Let interpreters that are started inside the block import from this code's folder, not from the current one.

    With `-c` and `-m`, as multiprocessing and joblib start them, Python imports first from where it
    stands. Python 3.10 cannot be told not to, so they begin in the code's folder.
    """
    before = os.open(".", os.O_RDONLY)
    os.chdir(CODE)
    try:
        yield
    finally:
        os.fchdir(before)
        os.close(before)
