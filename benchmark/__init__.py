"""The experiment: streams of domains, models that grow, methods under one budget, records of what happened."""

import ctypes
import os

__version__ = "0.1.0"

# Before torch starts its threads (with GNU's OpenMP, on Linux): one that waits for the others spins so many rounds,
# some microseconds, and then sleeps. By default it spins on and on, and where another process wants the same cores, a
# small model's steps take 20 times longer, so that a budget in seconds buys a twentieth of the training.
os.environ.setdefault("GOMP_SPINCOUNT", "10000")

# glibc: keep the memory that a step frees for the next one. By default what lies at the end of the heap, and all that
# is larger than 32 MiB, goes back to the system at once, which must clear it again for the next step: a fifth of the
# time of the demo's steps, and a twentieth where logits or embeddings are large.
_libc = ctypes.CDLL(None)
M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # malloc.h
_libc.mallopt(M_TRIM_THRESHOLD, -1)  # never
_libc.mallopt(M_MMAP_MAX, 0)  # nothing outside the heap
