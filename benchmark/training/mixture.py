"""The sources of a mixed domain: which blocks are of which source, and from which source a row comes."""

from __future__ import annotations

import numpy as np

from benchmark.data.tokens import DomainTokens
from benchmark.settings.base import ConfigError
from benchmark.settings.texts import weigh
from benchmark.training.random_numbers import Integers, draw_in_epochs, shuffled, uniform

CHOOSES = 7  # apart are the numbers that choose a row's source


class Mixture:
    """A domain with sources, cut into blocks of `length` tokens. A block that two of them share is nobody's.

    Raises ConfigError for a source that holds no block.
    """

    def __init__(self, text: DomainTokens, length: int) -> None:
        self._sources, self._mean = text.sources, np.array(weigh(text.sources, None))
        ends = np.cumsum(text.info["parts"])
        self._first = -(-np.concatenate([[0], ends[:-1]]) // length)  # block of each source
        self._blocks = ends // length - self._first
        if self._blocks.min() < 1:
            number = int(self._blocks.argmin()) + 1
            raise ConfigError(
                f"domain {text.name!r}: source {number} holds no row of {length} training tokens: give it "
                "more, or leave it out"
            )

    def draw(self, numbers: Integers, key: tuple[int, ...], over: float | None) -> Integers:
        """The blocks of new rows, which `numbers` count, when the share `over` of the stage is over; None: its mean."""
        share = np.cumsum(self._mean if over is None else weigh(self._sources, over))
        chosen = np.searchsorted(share[:-1], uniform(*key, CHOOSES, numbers), side="right")
        blocks = np.empty(len(numbers), dtype=np.int64)
        for source in set(chosen.tolist()):
            here = chosen == source
            blocks[here] = self._first[source] + draw_in_epochs(numbers[here], int(self._blocks[source]), key)
        return blocks

    def remember(self, drawn: np.ndarray, memory: int, key: tuple[int, ...]) -> Integers:
        """The blocks of memory rows by numbers that are uniform in [0, 1), of a memory of so many blocks.

        It has of each source its mean weight, or all of it where that is less; rows are drawn by the weights.
        """
        sizes = np.minimum(self._blocks, np.maximum(1, np.round(self._mean * memory))).astype(np.int64)
        share = np.cumsum(self._mean)
        chosen = np.searchsorted(share[:-1], drawn, side="right")
        within = (drawn - (share - self._mean)[chosen]) / self._mean[chosen]
        places = np.minimum((within * sizes[chosen]).astype(np.int64), sizes[chosen] - 1)
        blocks = np.empty(len(drawn), dtype=np.int64)
        for source in set(chosen.tolist()):
            here = chosen == source
            shuffle = shuffled(places[here], int(self._blocks[source]), *key, source)
            blocks[here] = self._first[source] + shuffle
        return blocks
