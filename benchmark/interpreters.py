"""What a process that computes begins with, and from where interpreters that it starts import."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

CODE = Path(__file__).parents[1]
M_TRIM_THRESHOLD = -1  # malloc.h
M_MMAP_MAX = -4  # malloc.h
# With GNU's OpenMP a thread that waits for the others spins so many rounds, some microseconds, and
# then sleeps. By default it spins on and on, and where another process wants the same cores, a
# small model's steps take 20 times longer, so that a budget in seconds buys a twentieth of the
# training.
COMPUTES = {"GOMP_SPINCOUNT": "10000"}  # variables, unless they are set, of processes that compute


def set_up_to_compute() -> None:
    """Let this process keep the memory that a step frees, and its threads sleep while they wait.

    Commands that compute call this, and so do their workers: `import benchmark` leaves a process as
    it is. The variables count also for the processes that this one starts; in this one they count
    if torch is imported later.
    """
    os.environ |= {**COMPUTES, **os.environ}
    # By default glibc gives what lies at the end of the heap, and all that is larger than 32 MiB,
    # back to the system at once, which must clear it again for the next step: a fifth of the time
    # of the demo's steps, and a twentieth where logits or embeddings are large.
    libc = ctypes.CDLL(None)
    libc.mallopt(M_TRIM_THRESHOLD, -1)  # never
    libc.mallopt(M_MMAP_MAX, 0)  # nothing outside the heap


@contextmanager
def standing_in_code() -> Iterator[None]:
    """Let interpreters that are started inside the block import from this code's folder.

    With `-c` and `-m`, as multiprocessing and joblib start them, Python imports first from the
    current folder. Python 3.10 cannot be told not to, so they begin in the code's folder.
    """
    previous_folder = os.open(".", os.O_RDONLY)
    os.chdir(CODE)
    try:
        yield
    finally:
        os.fchdir(previous_folder)
        os.close(previous_folder)
