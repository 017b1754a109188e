"""Batches of a stream of domains. A batch is a pure function of (seed, stage, phase, step, row).

There is no iterator state: to resume, ask for the next step; to shard over processes, ask for fewer
rows. Random numbers come from hashed counters, not from a generator, so a row is the same whoever
asks for it.

Shapes: B rows, N text tokens a row (`Data.text_length`), K predicted positions a row.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from benchmark.data.leaks import Found
from benchmark.data.sampling import DomainBlocks, Integers, draw_bits, draw_in_epochs, draw_uniform
from benchmark.data.tokenizer import Ids
from benchmark.data.tokens import Corpus, DomainTokens
from benchmark.settings.base import ConfigError, digest
from benchmark.settings.suite import Data
from benchmark.settings.texts import Replay
from benchmark.training.batch_parts import SOURCES, Draw, plan_draws
from benchmark.training.learner import Batch
from benchmark.training.method import Phase

REPLAYED = 4  # sets the random numbers apart that order the replayed text
PROBES = 2**32  # where the numbers of their masks begin
MASKED_SHARE = (
    0.15  # of the text tokens of a row; 80% become <mask>, 10% a random token, 10% stay (BERT)
)


def count_predictions(length: int, masked: bool) -> int:
    """K, the predicted positions of a row of `length` text tokens: a fixed number, so shapes are
    static.
    """
    return max(1, round(MASKED_SHARE * length)) if masked else length


class Stream:
    """The domains of a corpus as batches.

    `places`: the place of each domain in the suite's list, where the stream has another order.
    Memory and masks of a domain depend on it, and so are the same in every order.

    Raises ConfigError if a domain has too little text for one row.
    """

    def __init__(
        self,
        corpus: Corpus,
        data: Data,
        masked: bool,
        seed: int,
        places: Sequence[int] = (),
        replay: Replay | None = None,
    ) -> None:
        self.corpus, self.masked, self.seed = corpus, masked, seed
        self._places = places or range(len(corpus.domains))
        self.length = data.text_length
        self.blocks = [len(domain.train) // self.length for domain in corpus.domains]
        self.evaluated: tuple[DomainTokens, ...] = (*corpus.domains, *corpus.probes)
        self.valid_blocks = [len(text.valid) // self.length for text in self.evaluated]
        for domain in self.evaluated:
            if min(len(domain.train), len(domain.valid)) < self.length:
                raise ConfigError(
                    f"domain {domain.name!r} has {len(domain.train)} training and "
                    f"{len(domain.valid)} validation "
                    f"tokens, less than one row of {self.length}: add text, or shorten the rows of "
                    "a model still to be "
                    "trained (data.sequence_length)"
                )
        self._train = [self._cut_in_blocks(text.train) for text in self.evaluated]
        self._replay = replay
        self._valid = [self._cut_in_blocks(domain.valid) for domain in self.evaluated]
        memory = data.memory_tokens // self.length
        self.memory_blocks = [min(memory, blocks) for blocks in self.blocks]
        self._apart = data.document_mask
        own = [seed] if data.memory_seed == "run" else []
        each = zip(corpus.domains, self.memory_blocks, self._places, strict=True)
        self._domains = [
            DomainBlocks(text, self.length, kept, (4000, place, *own)) for text, kept, place in each
        ]
        # by a training text's name and each of `evaluated`, which documents nearly stand in it
        self.leaks: Found = {}

    def describe(self) -> dict[str, dict[str, Any]]:
        """For the records: what each text's tokens were made of, and how many of its documents
        nearly stand where.
        """
        described = {}
        for text in self.evaluated:
            counts = {
                domain: len(of[text.name]) for domain, of in self.leaks.items() if of[text.name]
            }
            own = counts.pop(text.name, 0)
            described[text.name] = {
                **text.info,
                "near_copies": own,
                **({"near_copies_in": counts} if counts else {}),
            }
        return described

    def number_documents(self, domain: int) -> NDArray[np.int64]:
        """The number of the document that each token of a validation text is of, (blocks, N)."""
        ends = np.asarray(self.evaluated[domain].valid) == self.corpus.special.eos
        return self._cut_in_blocks(np.cumsum(ends) - ends)

    def plan_draws(
        self, phase: Phase, index: int, stage: int, batch_size: int
    ) -> tuple[list[Draw], Draw]:
        """The draws of a step of a phase, the `index`-th of its stage, and of its second batch: see
        `plan_draws`.
        """
        return plan_draws(
            phase,
            index,
            batch_size,
            self._replay.share if self._replay else 0.0,
            self._has_memory(stage),
        )

    def _has_memory(self, stage: int) -> bool:
        return stage > 0 and max(self.memory_blocks[:stage], default=0) > 0

    def is_steady(self, stage: int) -> bool:
        """Whether rows are the same whatever share of the stage is over."""
        sources = self.corpus.domains[stage].sources
        return not any(isinstance(source.weight, tuple) for source in sources)

    def make_batch(
        self,
        stage: int,
        draw: Draw,
        step: int,
        rows: Sequence[int] | Integers,
        weights: Sequence[float] | None = None,
        over: float = 0.0,
        own: Tensor | None = None,
    ) -> Batch:
        """Rows `rows` of a draw of this step.

        `weights`: how likely a memory row comes from each earlier domain; uniform by default.
        `over`: the share of the stage that is over, for weights of sources. `own`: all rows
        (draw.rows, N), where the method has made them.
        """
        rows = np.asarray(rows, dtype=np.int64)
        is_fresh, is_memory = rows < draw.fresh, rows >= draw.fresh + draw.replayed
        key = (self.seed, stage, draw.number)
        domains, blocks = np.full(len(rows), stage), np.empty(len(rows), dtype=np.int64)
        if own is None:
            fresh = step * draw.fresh + rows[is_fresh]
            domains[is_fresh], blocks[is_fresh] = self._draw_fresh(
                stage, draw.domain, key, fresh, over
            )
            if self._replay and draw.replayed:
                text = [text.name for text in self.evaluated].index(self._replay.text)
                is_replayed = ~(is_fresh | is_memory)
                numbers = step * draw.replayed + rows[is_replayed] - draw.fresh
                domains[is_replayed] = text
                blocks[is_replayed] = draw_in_epochs(
                    numbers, len(self._train[text]), (*key, REPLAYED)
                )
            if draw.domain not in ("new", "previous", "seen", "memory"):
                weights = [
                    float(domain.name == draw.domain) for domain in self.corpus.domains[:stage]
                ]
            remembered = rows[is_memory] - draw.replayed
            domains[is_memory], blocks[is_memory] = self._draw_memory(
                stage, key, step, remembered, weights
            )
        drawn = (
            self._copy_blocks(self._train, domains, blocks)
            if own is None
            else own.cpu().numpy()[rows]
        )
        batch = self._to_batch(drawn, domains, *key, step, rows)
        batch.rows, batch.memory_rows = draw.rows, int(is_memory.sum())
        batch.source, batch.weight = draw.number // SOURCES, draw.weight
        return batch

    def draw_memory_text(self, stage: int, rows: int) -> Tensor:
        """Token ids (rows, 1+N), masked as in training, from the memory of the domains before
        `stage`.

        No rows where there is no memory.
        """
        numbers = range(rows if self._has_memory(stage) else 0)
        return self.make_batch(
            stage, Draw(domain="memory", memory=rows, number=2000), 0, numbers
        ).tokens

    def read_validation(
        self, domain: int, rows: int, rank: int = 0, world: int = 1
    ) -> Iterator[Batch]:
        """The validation text of a domain in batches of `rows`, this rank's share; the same masks
        for every model.

        `domain` is an index of `evaluated`. A probe is read as a domain that no model has met.
        """
        mine = np.arange(rank, self.valid_blocks[domain], world)
        for start in range(0, len(mine), rows):
            blocks = mine[start : start + rows]
            domains = np.full(len(blocks), domain)
            text = self._copy_blocks(self._valid, domains, blocks)
            # no seed here: one set of masks for all seeds and methods
            yield self._to_batch(text, domains, 3000, self._choose_mask_number(domain), blocks)

    def _choose_mask_number(self, domain: int) -> int:
        """The number by which the masks of a validation text are drawn. A probe's does not depend
        on the stream.
        """
        is_probe = domain >= len(self.corpus.domains)
        return (
            PROBES + zlib.crc32(self.evaluated[domain].name.encode())
            if is_probe
            else self._places[domain]
        )

    @cached_property
    def validation_keys(self) -> dict[str, str]:
        """A hash for each of `evaluated`, by name, of its tokens, and of its masks where there are
        any.
        """
        kept = ["document_mask"] if self.masked and self._apart else []
        return {
            text.name: digest(
                [text.key, self._choose_mask_number(index) if self.masked else None, *kept]
            )
            for index, text in enumerate(self.evaluated)
        }

    def _draw_fresh(
        self, stage: int, whose: str, key: tuple[int, ...], numbers: Integers, over: float
    ) -> tuple[Integers | int, Integers]:
        """Domain and block of the rows that are not memory; `numbers` count such rows since the
        phase began.
        """
        if whose in ("new", "previous"):
            domain = stage if whose == "new" else stage - 1
            return domain, self._domains[domain].draw(
                numbers, key, over if domain == stage else None
            )
        ends = np.cumsum(self.blocks[: stage + 1])
        drawn = (draw_uniform(*key, 1, numbers) * ends[-1]).astype(np.int64)
        domains = np.searchsorted(ends, drawn, side="right")
        return domains, drawn - np.concatenate([[0], ends])[domains]

    def _draw_memory(
        self,
        stage: int,
        key: tuple[int, ...],
        step: int,
        rows: Integers,
        weights: Sequence[float] | None,
    ) -> tuple[Integers, Integers]:
        """Domain and block of memory rows: the domain uniform or by `weights`, the block uniform."""
        if not len(rows):
            return rows, rows
        share = np.cumsum(np.ones(stage) if weights is None else weights)
        domains = np.searchsorted(
            share / share[-1], draw_uniform(*key, 2, step, rows), side="right"
        )
        drawn = draw_uniform(*key, 3, step, rows)
        blocks = np.empty(len(rows), dtype=np.int64)
        for domain in set(domains.tolist()):
            here = domains == domain
            blocks[here] = self._domains[domain].remember(drawn[here])
        return domains, blocks

    def _cut_in_blocks(self, ids: NDArray[Any]) -> NDArray[Any]:
        """All blocks of a text (blocks, N). A plain array, as cutting a row off a memory-mapped one
        takes longer.
        """
        return np.asarray(ids)[: len(ids) // self.length * self.length].reshape(-1, self.length)

    def _copy_blocks(self, sources: Sequence[Ids], domains: Integers, blocks: Integers) -> Integers:
        text = np.empty((len(blocks), self.length), dtype=np.int64)
        for domain in set(domains.tolist()):
            here = domains == domain
            text[here] = sources[domain][blocks[here]]
        return text

    def _to_batch(self, text: Integers, domains: Integers, *counters: ArrayLike) -> Batch:
        """Rows of text as a batch; `counters` are those of the random numbers that mask it."""
        n = self.length
        tokens = np.concatenate([np.full((len(text), 1), self.corpus.special.bos), text], axis=1)
        if self.masked:
            count, row_bits = count_predictions(n, self.masked), draw_bits(*counters)
            order = draw_bits(row_bits[:, None], np.arange(n))
            if self._apart:  # what ends a document stays, so that the model can tell them apart
                order[text == self.corpus.special.eos] = np.iinfo(order.dtype).max
            chosen = np.sort(np.argpartition(order, count - 1, axis=1)[:, :count], axis=1)
            targets = np.take_along_axis(text, chosen, axis=1)
            fate = draw_uniform(row_bits[:, None], 5, chosen)
            choices = self.corpus.text_vocabulary - 4
            other = 4 + (draw_uniform(row_bits[:, None], 6, chosen) * choices).astype(np.int64)
            corrupted = np.where(
                fate < 0.8, self.corpus.special.mask, np.where(fate < 0.9, other, targets)
            )
            positions = chosen + 1
            np.put_along_axis(tokens, positions, corrupted, axis=1)
        else:
            positions = np.broadcast_to(np.arange(n), text.shape).copy()
            targets = text
        return Batch(
            tokens=torch.from_numpy(tokens),
            domains=torch.from_numpy(np.ascontiguousarray(domains)),
            positions=torch.from_numpy(positions),
            targets=torch.from_numpy(targets),
            rows=len(text),
            memory_rows=0,
        )
