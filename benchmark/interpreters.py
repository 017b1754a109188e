"""The set-up of a process that computes, and where interpreters that it starts import from."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

CODE = Path(__file__).parents[1]
M_TRIM_THRESHOLD = -1  # malloc.h
M_MMAP_MAX = -4  # malloc.h
# With GNU's OpenMP, a thread that waits for the others spins this many rounds (some microseconds),
# then sleeps. By default it spins much longer. If another process wants the same cores, a small
# model's steps then take 20 times as long, so a budget in seconds buys a twentieth of the training.
COMPUTES = {"GOMP_SPINCOUNT": "10000"}  # environment variables, unless they are set


def set_up_to_compute() -> None:
    """Let this process keep the memory that a step frees, and its threads sleep while they wait.

    Commands that compute call this, and so do their workers. `import benchmark` changes nothing in
    a process. The environment variables also act on processes that this one starts. On this one
    they act only if torch is imported later.
    """
    os.environ |= {**COMPUTES, **os.environ}
    # By default glibc returns memory at the end of the heap, and all blocks above 32 MiB, to the
    # system at once. The system must clear them again for the next step, which takes a fifth of the
    # demo's step time, and a twentieth if logits or embeddings are large.
    libc = ctypes.CDLL(None)
    libc.mallopt(M_TRIM_THRESHOLD, -1)  # never
    libc.mallopt(M_MMAP_MAX, 0)  # nothing outside the heap


@contextmanager
def standing_in_code() -> Iterator[None]:
    """Let interpreters that are started inside the block import from this code's folder.

    With `-c` and `-m`, as multiprocessing and joblib start them, Python imports first from the
    current folder, and Python 3.10 has no option against that. So they start in the code's folder.
    """
    previous_folder = os.open(".", os.O_RDONLY)
    os.chdir(CODE)
    try:
        yield
    finally:
        os.fchdir(previous_folder)
        os.close(previous_folder)
