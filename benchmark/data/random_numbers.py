"""Random numbers that are hashes of counters: no state, and the same whoever asks for them. No torch here."""

from __future__ import annotations

from itertools import takewhile
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Integers = NDArray[np.int64]
STEP, FIRST, SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
WORD = 2**64 - 1


def random_bits(*counters: ArrayLike) -> NDArray[np.uint64]:
    """Random bits, 64 for each combination of the counters (broadcast), by rounds of splitmix64's finalizer."""
    numbers: list[Any] = list(takewhile(lambda counter: isinstance(counter, int), counters))
    mixed = STEP
    for number in numbers:  # for plain numbers, the same for all, numpy would take five times as long
        mixed = (mixed + number * STEP) & WORD
        mixed = (mixed ^ (mixed >> 30)) * FIRST & WORD
        mixed = (mixed ^ (mixed >> 27)) * SECOND & WORD
        mixed ^= mixed >> 31
    state = np.array(mixed, dtype=np.uint64)
    with np.errstate(over="ignore"):
        for counter in counters[len(numbers) :]:
            state = state + np.asarray(counter).astype(np.uint64) * np.uint64(STEP)
            state = (state ^ (state >> np.uint64(30))) * np.uint64(FIRST)
            state = (state ^ (state >> np.uint64(27))) * np.uint64(SECOND)
            state = state ^ (state >> np.uint64(31))
    return state


def uniform(*counters: ArrayLike) -> NDArray[np.float64]:
    """Uniform in [0, 1), see `random_bits`."""
    numbers: NDArray[np.float64] = (random_bits(*counters) >> np.uint64(11)) * 2.0**-53
    return numbers


def shuffled(indices: ArrayLike, size: int, *key: int) -> Integers:
    """The images of `indices` under a random permutation of range(size) that is never written out.

    Four rounds of a Feistel network on the next even number of bits, walked until the image lies in the range
    (Black and Rogaway 2002, "Ciphers with arbitrary finite domains"), so memory does not grow with the corpus.
    """
    half = np.uint64(max(1, (max(size - 1, 1).bit_length() + 1) // 2))
    mask = np.uint64((1 << int(half)) - 1)
    image = np.asarray(indices).astype(np.uint64)
    pending = np.ones(image.shape, dtype=bool)
    while pending.any():
        value = image[pending]
        left, right = value >> half, value & mask
        for round_ in range(4):
            left, right = right, left ^ (random_bits(*key, round_, right) & mask)
        image[pending] = (left << half) | right
        pending = image >= np.uint64(size)
    return image.astype(np.int64)
