"""Batches of a stream of domains, as pure functions of (seed, stage, phase, step, sequence).

There is no iterator state. To resume, ask for the next step. To shard over processes, ask for fewer
sequences. Random numbers come from hashed counters, not from a generator, so a sequence is the same
in every process.

Shapes: B sequences, N text tokens per sequence (`Data.text_length`), K predicted positions per
sequence.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from benchmark.data.sampling import DomainBlocks, Integers, draw_bits, draw_in_epochs, draw_uniform
from benchmark.data.tokenizer import Ids
from benchmark.data.tokens import (
    Corpus,
    DomainTokens,
    choose_mask_number,
    make_validation_key,
    number_documents,
)
from benchmark.settings.base import ConfigError
from benchmark.settings.suite import Data
from benchmark.settings.texts import Replay
from benchmark.training.batch_parts import SOURCE_STRIDE, Draw, plan_draws
from benchmark.training.learner import Batch
from benchmark.training.method import Phase

# counters that keep kinds of random numbers apart (7 is `sampling.SOURCE_CHOICE`)
SEEN_BLOCK = 1
MEMORY_DOMAIN = 2
MEMORY_BLOCK = 3
REPLAYED_BLOCK = 4
FATE = 5  # of a token that BERT predicts: <mask>, a random token, or left as it is
RANDOM_TOKEN = 6
# the same for random numbers outside a step's draws
MEMORY_TEXT = 2000
VALIDATION_MASKS = 3000
MEMORY_CHOICE = 4000
# share of text tokens to predict: 80% of these become <mask>, 10% a random token, 10% stay (BERT)
MASKED_SHARE = 0.15


def count_predictions(length: int, masked: bool) -> int:
    """K, the predicted positions of a sequence of `length` text tokens.

    It is a fixed number, so shapes are static.
    """
    if masked:
        return max(1, round(MASKED_SHARE * length))
    return length


class Stream:
    """The domains of a corpus as batches.

    `places` has the index of each domain in the suite's list, if the stream has another order. A
    domain's memory and masks depend on this index, so they are the same in every order.

    Raises ConfigError if a domain has too little text for one sequence.
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
        self.corpus = corpus
        self.masked = masked
        self.seed = seed
        self._places = places or range(len(corpus.domains))
        length = data.text_length
        self.length = length
        self.blocks = [len(domain.train) // length for domain in corpus.domains]
        self.evaluated: tuple[DomainTokens, ...] = (*corpus.domains, *corpus.probes)
        for domain in self.evaluated:
            if min(len(domain.train), len(domain.valid)) < self.length:
                raise ConfigError(
                    f"domain {domain.name!r} has {len(domain.train)} training and "
                    f"{len(domain.valid)} validation tokens, less than one sequence of "
                    f"{self.length}: add text, or shorten the sequences of a model still to be "
                    "trained (data.sequence_length)"
                )
        self._train = [self._cut_in_blocks(text.train) for text in self.evaluated]
        self._replay = replay
        self._valid = [self._cut_whole(domain.valid) for domain in self.evaluated]
        self.valid_blocks = [len(blocks) for blocks in self._valid]
        memory = data.memory_tokens // self.length
        self.memory_blocks = [min(memory, blocks) for blocks in self.blocks]
        self._separates_documents = data.document_mask
        self._domains: list[DomainBlocks] = []
        memories = zip(corpus.domains, self.memory_blocks, self._places, strict=True)
        for domain, blocks, place in memories:
            key: tuple[int, ...] = (MEMORY_CHOICE, place)
            if data.memory_seed == "run":
                key = (MEMORY_CHOICE, place, seed)
            self._domains.append(DomainBlocks(domain, self.length, blocks, key))

    def describe(self) -> dict[str, dict[str, Any]]:
        """For the records: what each text's tokens were made of."""
        return {text.name: {**text.info} for text in self.evaluated}

    def number_documents(self, domain: int) -> NDArray[np.int64]:
        """The number of each token's document in a validation text, (blocks, N).

        It is -1 for a token that is also in the sequence before, which counts it.
        """
        ids = np.asarray(self.evaluated[domain].valid)
        numbers = self._cut_whole(number_documents(ids, self.corpus.special.eos))
        rest = len(ids) % self.length
        if rest:
            numbers[-1, : self.length - rest] = -1
        return numbers

    def plan_draws(
        self, phase: Phase, index: int, stage: int, batch_size: int
    ) -> tuple[list[Draw], Draw]:
        """The draws of a phase's step and of its second batch: see `batch_parts.plan_draws`.

        `index` is the phase's position in its stage, from 0.
        """
        replay = self._replay.share if self._replay else 0.0
        return plan_draws(phase, index, batch_size, replay, self._has_memory(stage))

    def _has_memory(self, stage: int) -> bool:
        earlier = self.memory_blocks[:stage]
        return stage > 0 and max(earlier, default=0) > 0

    def make_batch(
        self,
        stage: int,
        draw: Draw,
        step: int,
        sequences: Sequence[int] | Integers,
        own_sequences: Tensor | None = None,
    ) -> Batch:
        """The batch of the sequences with the numbers `sequences` in a step's draw.

        `own_sequences` are all sequences of the draw (draw.sequences, N), if the method made them.
        """
        sequences = np.asarray(sequences, dtype=np.int64)
        is_fresh = sequences < draw.fresh
        is_memory = sequences >= draw.fresh + draw.replayed
        key = (self.seed, stage, draw.number)
        domains = np.full(len(sequences), stage)
        if own_sequences is None:
            blocks = np.empty(len(sequences), dtype=np.int64)
            fresh = step * draw.fresh + sequences[is_fresh]
            domains[is_fresh], blocks[is_fresh] = self._draw_fresh(stage, draw.domain, key, fresh)
            if self._replay and draw.replayed:
                names = [text.name for text in self.evaluated]
                index = names.index(self._replay.text)
                is_replayed = ~(is_fresh | is_memory)
                numbers = step * draw.replayed + sequences[is_replayed] - draw.fresh
                domains[is_replayed] = index
                blocks[is_replayed] = draw_in_epochs(
                    numbers, len(self._train[index]), (*key, REPLAYED_BLOCK)
                )
            weights = np.ones(stage)
            is_memory_of_one_domain = draw.domain not in ("new", "previous", "seen", "memory")
            if is_memory_of_one_domain:
                earlier = self.corpus.domains[:stage]
                weights = np.array([float(domain.name == draw.domain) for domain in earlier])
            # numbered as if there were no replayed sequences before them
            memory_sequences = sequences[is_memory] - draw.replayed
            domains[is_memory], blocks[is_memory] = self._draw_memory(
                key, step, memory_sequences, weights
            )
            text = self._copy_blocks(self._train, domains, blocks)
        else:
            text = own_sequences.cpu().numpy()[sequences]
        batch = self._to_batch(text, domains, *key, step, sequences)
        batch.global_size = draw.sequences
        batch.memory_sequences = int(is_memory.sum())
        batch.source = draw.number // SOURCE_STRIDE
        batch.weight = draw.weight
        return batch

    def draw_memory_text(self, stage: int, sequences: int) -> Tensor:
        """Token ids (sequences, 1+N) from the memory of the domains before `stage`.

        They are masked as in training. There are 0 sequences if there is no memory.
        """
        numbers = range(sequences if self._has_memory(stage) else 0)
        draw = Draw(domain="memory", memory=sequences, number=MEMORY_TEXT)
        return self.make_batch(stage, draw, 0, numbers).tokens

    def read_validation(
        self, domain: int, sequences: int, rank: int = 0, world: int = 1
    ) -> Iterator[Batch]:
        """This rank's share of a domain's validation text, in batches of `sequences`.

        The masks are the same for every model. `domain` is an index into `evaluated`. A probe is
        read like a domain that no model has met.
        """
        local_blocks = np.arange(rank, self.valid_blocks[domain], world)
        return self.read_validation_blocks(domain, local_blocks, sequences)

    def read_validation_blocks(
        self, domain: int, blocks: NDArray[np.int64], sequences: int
    ) -> Iterator[Batch]:
        """These blocks of the validation text of a domain in batches of `sequences`."""
        mask_number = self._choose_mask_number(domain)
        for start in range(0, len(blocks), sequences):
            part = blocks[start : start + sequences]
            domains = np.full(len(part), domain)
            text = self._copy_blocks(self._valid, domains, part)
            # no seed here: one set of masks for all seeds and methods
            yield self._to_batch(text, domains, VALIDATION_MASKS, mask_number, part)

    def _choose_mask_number(self, domain: int) -> int:
        """The counter by which the masks of a validation text are drawn.

        A probe's counter does not depend on the stream.
        """
        return choose_mask_number(self.evaluated[domain].name, domain, self._places)

    @cached_property
    def validation_keys(self) -> dict[str, str]:
        """A hash of each text in `evaluated`, by name.

        It covers the text's tokens, and its masks if there are any.
        """
        keys = {}
        for index, text in enumerate(self.evaluated):
            number = self._choose_mask_number(index) if self.masked else None
            keys[text.name] = make_validation_key(text, number, self._separates_documents)
        return keys

    def _draw_fresh(
        self, stage: int, source: str, key: tuple[int, ...], numbers: Integers
    ) -> tuple[Integers | int, Integers]:
        """Domain and block of fresh sequences.

        `numbers` count the fresh sequences since the phase began.
        """
        if source == "new":
            return stage, self._domains[stage].draw(numbers, key)
        if source == "previous":
            return stage - 1, self._domains[stage - 1].draw(numbers, key)
        # "seen": uniform over the blocks of all domains so far, one domain after the other
        ends = np.cumsum(self.blocks[: stage + 1])
        scaled = draw_uniform(*key, SEEN_BLOCK, numbers) * ends[-1]
        places = scaled.astype(np.int64)
        domains = np.searchsorted(ends, places, side="right")
        starts = np.concatenate([[0], ends])
        return domains, places - starts[domains]

    def _draw_memory(
        self,
        key: tuple[int, ...],
        step: int,
        sequences: Integers,
        weights: NDArray[np.float64],
    ) -> tuple[Integers, Integers]:
        """Domain and block of memory sequences.

        The domain is drawn by `weights`, one per earlier domain. Then one of its sources is drawn
        by the source's weight, and a block uniformly.
        """
        if not len(sequences):
            return sequences, sequences
        sums = np.cumsum(weights)
        choices = draw_uniform(*key, MEMORY_DOMAIN, step, sequences)
        domains = np.searchsorted(sums / sums[-1], choices, side="right")
        places = draw_uniform(*key, MEMORY_BLOCK, step, sequences)
        blocks = np.empty(len(sequences), dtype=np.int64)
        for domain in set(domains.tolist()):
            is_of_domain = domains == domain
            blocks[is_of_domain] = self._domains[domain].remember(places[is_of_domain])
        return domains, blocks

    def _cut_in_blocks(self, ids: NDArray[Any]) -> NDArray[Any]:
        """All blocks of a text (blocks, N).

        They are a plain array, because cutting a sequence from a memory-mapped one takes longer.
        """
        end = len(ids) // self.length * self.length
        return np.asarray(ids)[:end].reshape(-1, self.length)

    def _cut_whole(self, ids: NDArray[Any]) -> NDArray[Any]:
        """All tokens of a text in blocks (blocks, N), also those that `_cut_in_blocks` drops.

        To include them, the last block overlaps the one before.
        """
        blocks = self._cut_in_blocks(ids)
        if len(ids) % self.length == 0:
            return blocks
        last_block = np.asarray(ids)[-self.length :]
        return np.concatenate([blocks, last_block[None]])

    def _copy_blocks(self, sources: Sequence[Ids], domains: Integers, blocks: Integers) -> Integers:
        text = np.empty((len(blocks), self.length), dtype=np.int64)
        for domain in set(domains.tolist()):
            is_of_domain = domains == domain
            text[is_of_domain] = sources[domain][blocks[is_of_domain]]
        return text

    def _to_batch(self, text: Integers, domains: Integers, *counters: ArrayLike) -> Batch:
        """Sequences of text as a batch.

        `counters` determine the random numbers that mask it. The `</s>` between documents is masked
        and predicted like other tokens, unless it must show where documents end
        (`data.document_mask`). Random tokens are any of the tokenizer's, except the first four ids.
        """
        columns = np.arange(self.length)
        special = self.corpus.special
        begins = np.full((len(text), 1), special.bos)
        tokens = np.concatenate([begins, text], axis=1)
        if self.masked:
            count = count_predictions(self.length, self.masked)
            sequence_bits = draw_bits(*counters)[:, None]
            order = draw_bits(sequence_bits, columns)
            if self._separates_documents:
                # `</s>` is not masked, so that the model can tell documents apart
                is_end = text == special.eos
                order[is_end] = np.iinfo(order.dtype).max
            smallest = np.argpartition(order, count - 1, axis=1)[:, :count]
            places = np.sort(smallest, axis=1)
            targets = np.take_along_axis(text, places, axis=1)
            fate = draw_uniform(sequence_bits, FATE, places)
            choices = self.corpus.token_count - 4
            random_numbers = draw_uniform(sequence_bits, RANDOM_TOKEN, places) * choices
            random_tokens = 4 + random_numbers.astype(np.int64)
            corrupted = np.where(fate < 0.9, random_tokens, targets)
            corrupted = np.where(fate < 0.8, special.mask, corrupted)
            positions = places + 1  # `tokens` begin with `<s>`
            np.put_along_axis(tokens, positions, corrupted, axis=1)
        else:  # the state at `<s>` predicts the first text token, and so on
            positions = np.broadcast_to(columns, text.shape).copy()
            targets = text
        return Batch(
            tokens=torch.from_numpy(tokens),
            domains=torch.from_numpy(np.ascontiguousarray(domains)),
            positions=torch.from_numpy(positions),
            targets=torch.from_numpy(targets),
            global_size=len(text),
            memory_sequences=0,
        )
