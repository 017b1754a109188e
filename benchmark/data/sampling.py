"""Random numbers that are hashes of counters, and the blocks of text that they draw.

They have no state: the same counters give the same numbers in any process. No torch here.
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
Floats = NDArray[np.float64]
Bits = NDArray[np.uint64]
STEP = 0x9E3779B97F4A7C15
FIRST = 0xBF58476D1CE4E5B9
SECOND = 0x94D049BB133111EB
UINT64_MASK = 2**64 - 1
SOURCE_CHOICE = 7  # counter of the numbers that choose a row's source, and of no others
PART = 512  # rows are shuffled so many at a time, because fewer would take as long


def draw_bits(*counters: ArrayLike) -> Bits:
    """Random bits, 64 for each combination of the counters (broadcast).

    They are made by rounds of splitmix64's finalizer.
    """
    numbers: list[Any] = list(takewhile(lambda counter: isinstance(counter, int), counters))
    mixed = STEP
    # numpy would take five times as long for plain integers, such as the first counters
    for number in numbers:
        mixed = (mixed + number * STEP) & UINT64_MASK
        mixed = (mixed ^ (mixed >> 30)) * FIRST & UINT64_MASK
        mixed = (mixed ^ (mixed >> 27)) * SECOND & UINT64_MASK
        mixed ^= mixed >> 31
    state = np.array(mixed, dtype=np.uint64)
    with np.errstate(over="ignore"):
        for counter in counters[len(numbers) :]:
            array = np.asarray(counter).astype(np.uint64)
            state = state + array * np.uint64(STEP)
            state = (state ^ (state >> np.uint64(30))) * np.uint64(FIRST)
            state = (state ^ (state >> np.uint64(27))) * np.uint64(SECOND)
            state = state ^ (state >> np.uint64(31))
    return state


def draw_uniform(*counters: ArrayLike) -> Floats:
    """Uniform in [0, 1), see `draw_bits`."""
    bits = draw_bits(*counters) >> np.uint64(11)
    numbers: Floats = bits * 2.0**-53
    return numbers


def shuffle(indices: ArrayLike, size: int, *key: int) -> Integers:
    """The images of `indices` under a random permutation of range(size) that is never written out.

    A Feistel network of four rounds on the next even number of bits is repeated until the image
    lies in the range (cycle walking, Black and Rogaway 2002, "Ciphers with arbitrary finite
    domains"). So memory does not grow with the corpus.
    """
    width = max(size - 1, 1).bit_length()
    half = np.uint64(max(1, (width + 1) // 2))
    mask = np.uint64((1 << int(half)) - 1)
    image = np.asarray(indices).astype(np.uint64)
    pending = np.ones(image.shape, dtype=bool)
    while pending.any():
        value = image[pending]
        high = value >> half
        low = value & mask
        for round_ in range(4):
            bits = draw_bits(*key, round_, low)
            mixed = high ^ (bits & mask)
            high = low
            low = mixed
        image[pending] = (high << half) | low
        pending = image >= np.uint64(size)
    return image.astype(np.int64)


@lru_cache(maxsize=64)
def _order_blocks(part: int, size: int, key: tuple[int, ...]) -> Integers:
    """The blocks of PART rows, from row `part` * PART on, in epochs of `size` blocks."""
    start = part * PART
    rows = np.arange(start, start + PART)
    epochs, places = np.divmod(rows, size)
    blocks = np.empty(PART, dtype=np.int64)
    for epoch in set(epochs.tolist()):
        in_epoch = epochs == epoch
        blocks[in_epoch] = shuffle(places[in_epoch], size, *key, epoch)
    return blocks


def draw_in_epochs(numbers: Integers, size: int, key: tuple[int, ...]) -> Integers:
    """The blocks of rows, whose `numbers` count from the beginning of a phase.

    Each of `size` blocks comes once per epoch.
    """
    parts, places = np.divmod(numbers, PART)
    blocks = np.empty(len(numbers), dtype=np.int64)
    for part in set(parts.tolist()):
        in_part = parts == part
        order = _order_blocks(part, size, key)
        blocks[in_part] = order[places[in_part]]
    return blocks


def weigh(sources: Sequence[WeightedText]) -> Floats:
    """The probability that a row comes from each source."""
    weights = np.array([source.weight for source in sources])
    shares: Floats = weights / weights.sum()
    return shares


class DomainBlocks:
    """The order of rows of a domain's training text, cut into blocks of `length` tokens.

    A mixed domain is its sources one after the other. A block with text of two sources is never
    drawn. The memory has `memory` blocks, shared among the sources by weight. If a source has
    fewer blocks than its share, the memory has all of them. `key` draws the blocks.

    Raises ConfigError for a source that holds no block.
    """

    def __init__(self, text: DomainTokens, length: int, memory: int, key: tuple[int, ...]) -> None:
        self._sources = text.sources
        self._key = key
        self._shares = np.ones(1)
        token_counts = [len(text.train)]
        if text.sources:
            self._shares = weigh(text.sources)
            token_counts = text.info["parts"]
        ends = np.cumsum(token_counts)
        starts = np.concatenate([[0], ends[:-1]])
        # of each source: its first block, how many it has, and how many of these the memory has
        self._first_blocks = -(-starts // length)
        self._block_counts = ends // length - self._first_blocks
        if self._block_counts.min() < 1:
            number = int(self._block_counts.argmin()) + 1
            raise ConfigError(
                f"domain {text.name!r}: source {number} holds no row of {length} training tokens: "
                "give it more, or leave it out"
            )
        wanted = np.round(self._shares * memory)
        memory_sizes = np.minimum(self._block_counts, np.maximum(1, wanted))
        self._memory_sizes = memory_sizes.astype(np.int64)

    def draw(self, numbers: Integers, key: tuple[int, ...]) -> Integers:
        """The blocks of new rows, whose `numbers` count from the beginning of a phase."""
        if not self._sources:
            return draw_in_epochs(numbers, int(self._block_counts[0]), key)
        ends = np.cumsum(self._shares)
        uniform = draw_uniform(*key, SOURCE_CHOICE, numbers)
        row_sources = np.searchsorted(ends[:-1], uniform, side="right")
        blocks = np.empty(len(numbers), dtype=np.int64)
        for source in set(row_sources.tolist()):
            in_source = row_sources == source
            block_count = int(self._block_counts[source])
            order = draw_in_epochs(numbers[in_source], block_count, key)
            blocks[in_source] = self._first_blocks[source] + order
        return blocks

    def remember(self, uniform: Floats) -> Integers:
        """The blocks of rows from the memory, by numbers that are uniform in [0, 1)."""
        ends = np.cumsum(self._shares)
        row_sources = np.searchsorted(ends[:-1], uniform, side="right")
        starts = (ends - self._shares)[row_sources]
        # how far each number is into its source's share of [0, 1), itself from 0 to 1
        fractions = (uniform - starts) / self._shares[row_sources]
        sizes = self._memory_sizes[row_sources]
        offsets = np.minimum((fractions * sizes).astype(np.int64), sizes - 1)
        first_places = np.cumsum(self._memory_sizes) - self._memory_sizes
        places = first_places[row_sources] + offsets
        blocks: Integers = self._memory[places]
        return blocks

    @cached_property
    def _memory(self) -> Integers:
        """The blocks of the memory: for each source, the first of a shuffle."""
        memory: list[Integers] = []
        sources = zip(self._first_blocks, self._memory_sizes, self._block_counts, strict=True)
        for source, (first, size, block_count) in enumerate(sources):
            key = (*self._key, source) if self._sources else self._key
            order = shuffle(np.arange(size), int(block_count), *key)
            memory.append(first + order)
        return np.concatenate(memory)
