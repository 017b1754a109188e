"""The experiment: streams of domains, models that grow, methods under one budget, records of what happened."""

import os

# Before torch starts its threads (with GNU's OpenMP, on Linux): one that waits for the others spins so many rounds,
# some microseconds, and then sleeps. By default it spins on and on, and where another process wants the same cores, a
# small model's steps take 20 times longer, so that a budget in seconds buys a twentieth of the training.
os.environ.setdefault("GOMP_SPINCOUNT", "10000")
