"""Random numbers that are hashes of counters: no state, and the same whoever asks for them; the
blocks of text that they draw. No torch here.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, lru_cache
from itertools import takewhile
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from benchmark.data.tokens import DomainTokens
from benchmark.settings.base import ConfigError
from benchmark.settings.texts import WeightedText

Integers = NDArray[np.int64]
STEP, FIRST, SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
WORD = 2**64 - 1
CHOOSES = 7  # apart are the numbers that choose a row's source
MOMENTS = 100  # of a stage, over which weights that change are averaged
PART = 512  # rows are shuffled so many at a time, as a few of them take as long


def draw_bits(*counters: ArrayLike) -> NDArray[np.uint64]:
    """Random bits, 64 for each combination of the counters (broadcast), by rounds of splitmix64's
    finalizer.
    """
    numbers: list[Any] = list(takewhile(lambda counter: isinstance(counter, int), counters))
    mixed = STEP
    for (
        number
    ) in numbers:  # for plain numbers, the same for all, numpy would take five times as long
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


def draw_uniform(*counters: ArrayLike) -> NDArray[np.float64]:
    """Uniform in [0, 1), see `draw_bits`."""
    numbers: NDArray[np.float64] = (draw_bits(*counters) >> np.uint64(11)) * 2.0**-53
    return numbers


def shuffle(indices: ArrayLike, size: int, *key: int) -> Integers:
    """The images of `indices` under a random permutation of range(size) that is never written out.

    Four rounds of a Feistel network on the next even number of bits, walked until the image lies in
    the range (Black and Rogaway 2002, "Ciphers with arbitrary finite domains"), so memory does not
    grow with the corpus.
    """
    half = np.uint64(max(1, (max(size - 1, 1).bit_length() + 1) // 2))
    mask = np.uint64((1 << int(half)) - 1)
    image = np.asarray(indices).astype(np.uint64)
    pending = np.ones(image.shape, dtype=bool)
    while pending.any():
        value = image[pending]
        left, right = value >> half, value & mask
        for round_ in range(4):
            left, right = right, left ^ (draw_bits(*key, round_, right) & mask)
        image[pending] = (left << half) | right
        pending = image >= np.uint64(size)
    return image.astype(np.int64)


@lru_cache(maxsize=64)
def _order_blocks(part: int, size: int, key: tuple[int, ...]) -> Integers:
    """The blocks that the PART rows from `part` * PART on come from, in epochs of `size` blocks."""
    epochs, within = np.divmod(np.arange(part * PART, (part + 1) * PART), size)
    blocks = np.empty(PART, dtype=np.int64)
    for epoch in set(epochs.tolist()):
        here = epochs == epoch
        blocks[here] = shuffle(within[here], size, *key, epoch)
    return blocks


def draw_in_epochs(numbers: Integers, size: int, key: tuple[int, ...]) -> Integers:
    """The blocks of rows that are counted since a phase began, each of `size` blocks once an epoch."""
    parts, within = np.divmod(numbers, PART)
    blocks = np.empty(len(numbers), dtype=np.int64)
    for part in set(parts.tolist()):
        here = parts == part
        blocks[here] = _order_blocks(part, size, key)[within[here]]
    return blocks


def weigh(sources: Sequence[WeightedText], over: float | None) -> NDArray[np.float64]:
    """The probability that a row comes from each source when the share `over` of the stage is over.

    The mean over the stage where `over` is None.
    """
    moments = (np.arange(MOMENTS) + 0.5) / MOMENTS if over is None else np.array([over])
    lists = [np.atleast_1d(source.weight) for source in sources]
    weights = np.array([np.interp(moments, np.linspace(0, 1, len(each)), each) for each in lists])
    shares: NDArray[np.float64] = (weights / weights.sum(axis=0)).mean(axis=1)
    return shares


class DomainBlocks:
    """The order of rows of a domain's training text, cut into blocks of `length` tokens.

    A mixed domain is its sources one after the other; a block that two of them share is nobody's.
    `memory`: so many blocks are remembered, of each source by its mean weight, or all of it where
    that is less; `key` draws them.

    Raises ConfigError for a source that holds no block.
    """

    def __init__(self, text: DomainTokens, length: int, memory: int, key: tuple[int, ...]) -> None:
        self._sources, self._key = text.sources, key
        self._mean = weigh(text.sources, None) if text.sources else np.ones(1)
        ends = np.cumsum(text.info["parts"] if text.sources else [len(text.train)])
        self._first = -(-np.concatenate([[0], ends[:-1]]) // length)  # block of each source
        self._blocks = ends // length - self._first
        if self._blocks.min() < 1:
            raise ConfigError(
                f"domain {text.name!r}: source {int(self._blocks.argmin()) + 1} holds no row of "
                f"{length} training "
                "tokens: give it more, or leave it out"
            )
        self._sizes = np.minimum(self._blocks, np.maximum(1, np.round(self._mean * memory))).astype(
            np.int64
        )

    def draw(self, numbers: Integers, key: tuple[int, ...], over: float | None) -> Integers:
        """The blocks of new rows, which `numbers` count, when the share `over` of the stage is
        over; None: its mean.
        """
        if not self._sources:
            return draw_in_epochs(numbers, int(self._blocks[0]), key)
        share = np.cumsum(self._mean if over is None else weigh(self._sources, over))
        chosen = np.searchsorted(share[:-1], draw_uniform(*key, CHOOSES, numbers), side="right")
        blocks = np.empty(len(numbers), dtype=np.int64)
        for source in set(chosen.tolist()):
            here = chosen == source
            blocks[here] = self._first[source] + draw_in_epochs(
                numbers[here], int(self._blocks[source]), key
            )
        return blocks

    def remember(self, drawn: NDArray[np.float64]) -> Integers:
        """The blocks of memory rows by numbers that are uniform in [0, 1)."""
        share = np.cumsum(self._mean)
        chosen = np.searchsorted(share[:-1], drawn, side="right")
        within = (drawn - (share - self._mean)[chosen]) / self._mean[chosen]
        places = np.minimum(
            (within * self._sizes[chosen]).astype(np.int64), self._sizes[chosen] - 1
        )
        blocks: Integers = self._memory[(np.cumsum(self._sizes) - self._sizes)[chosen] + places]
        return blocks

    @cached_property
    def _memory(self) -> Integers:
        """The blocks of its memory: of each source the first of a shuffle."""
        kept: list[Integers] = []
        for source, (first, size, blocks) in enumerate(
            zip(self._first, self._sizes, self._blocks, strict=True)
        ):
            key = (*self._key, source) if self._sources else self._key
            kept.append(first + shuffle(np.arange(size), int(blocks), *key))
        return np.concatenate(kept)
