"""Batches: exact counts, the right domains, masks, and that they are functions of (seed, stage,
phase, step, row).
"""

from __future__ import annotations

import hashlib
from typing import Literal

import numpy as np
import pytest
import torch

from benchmark.data.sampling import draw_bits, draw_uniform, shuffle
from benchmark.data.tokenizer import BOS, MASK
from benchmark.settings.base import ConfigError
from benchmark.settings.suite import Data
from benchmark.training.batch_parts import count_sequences_of_share
from benchmark.training.learner import Batch
from benchmark.training.method import Phase
from benchmark.training.stream import Stream
from tests.support.texts import draw, tiny_corpus

DATA = Data(
    sequence_length=18, memory_tokens=160
)  # rows of 16 text tokens, 10 rows of memory per domain


@pytest.fixture(scope="module")
def corpus():
    return tiny_corpus(domains=3, train_tokens=1000, valid_tokens=100)


def test_shuffled_is_a_permutation() -> None:
    """Oracle: the images of range(n) are range(n) in another order, for sizes around powers of
    four.
    """
    for size in (1, 2, 3, 4, 5, 15, 16, 17, 63, 64, 65, 1000):
        image = shuffle(np.arange(size), size, 7)
        assert sorted(image) == list(range(size))
    assert list(shuffle(np.arange(1000), 1000, 7)) != list(shuffle(np.arange(1000), 1000, 8))


def test_random_numbers_stay_the_same() -> None:
    """Results depend on these numbers. Oracle: the numbers of the first version, which took all
    counters as arrays, and an identity: a number equals an array of one element, at any place among
    the counters, also if negative or beyond 32 bits.
    """
    assert list(draw_bits(3, 1, 0, 2, np.arange(2))) == [9280051629230105959, 13419328740998678981]
    assert int(draw_bits(7, 5000)) == 13925461807964534033
    assert list(shuffle(np.arange(6), 1000, 3, 1, 0, 2)) == [58, 753, 119, 836, 291, 188]
    assert list(draw_uniform(-1, 2**40, np.arange(2))) == [0.6071589704128798, 0.9567672253060227]
    rows = np.arange(5)
    for counters in ((4, -7, 2**40, rows), (4, rows, -7), (2**63 + 1, 5)):
        as_arrays = [
            np.array([counter]) if isinstance(counter, int) else counter for counter in counters
        ]
        assert (np.ravel(draw_bits(*counters)) == draw_bits(*as_arrays)).all()


@pytest.mark.parametrize(
    ("share", "batch_size", "what"),
    [
        (0.1, 5, "none"),
        (0.05, 10, "none"),
        (0.95, 6, "all"),
        (0.5, 1, "none"),
    ],  # round(0.5) is 0, round(9.5) 10
)
def test_a_share_that_no_batch_can_hold(share: float, batch_size: int, what: str) -> None:
    """Oracle: rounding by hand. A batch with twenty times the rows can hold the share."""
    with pytest.raises(ConfigError, match=rf"batch of {batch_size} sequences .*\b{what}\b"):
        count_sequences_of_share(share, batch_size, "memory")
    assert 0 < count_sequences_of_share(share, 20 * batch_size, "memory") < 20 * batch_size


def test_memory_is_uniform_over_earlier_domains_and_stays_in_the_sub_sample(corpus) -> None:
    """Oracle: 2000 draws of two domains lie within five standard errors of half; only ten blocks of
    each are seen.
    """
    stream = Stream(corpus, DATA, masked=False, seed=0)
    batch = draw(stream, 2, Phase("recover", memory=1.0), 0, 0, 2000, range(2000))
    assert abs((batch.domains == 0).sum() - 1000) < 5 * 500**0.5
    for domain in (0, 1):
        seen = {tuple(row) for row in batch.targets[batch.domains == domain].tolist()}
        assert len(seen) == 10


def test_the_sub_sample_of_a_run(corpus) -> None:
    """Oracle: ten blocks of each domain, the same in two runs that share them, others in two that
    draw their own.
    """

    def remembered(memory_seed: str, seed: int, stage: int) -> set[tuple[int, ...]]:
        stream = Stream(
            corpus, DATA.model_copy(update={"memory_seed": memory_seed}), masked=False, seed=seed
        )
        batch = draw(stream, stage, Phase("recover", memory=1.0), 0, 0, 1000, range(1000))
        return {tuple(row) for row in batch.targets[batch.domains == 0].tolist()}

    assert remembered("fixed", 0, 1) == remembered("fixed", 1, 1)
    own = [remembered("run", seed, 1) for seed in (0, 1)]
    assert [len(rows) for rows in own] == [10, 10]
    assert own[0] != own[1] and own[0] != remembered("fixed", 0, 1)
    assert own[0] == remembered("run", 0, 2)  # it stays what it is in later stages


def test_an_epoch_sees_every_block_once(corpus) -> None:
    """Oracle: the rows of one pass over a domain are its blocks, each once; the next pass has
    another order.
    """
    stream = Stream(corpus, DATA, masked=False, seed=0)
    blocks = stream.blocks[0]
    first = draw(stream, 0, Phase("adapt"), 0, 0, blocks, range(blocks)).targets
    second = draw(stream, 0, Phase("adapt"), 0, 1, blocks, range(blocks)).targets
    text = torch.tensor(corpus.domains[0].train[: blocks * 16].astype(np.int64)).view(blocks, 16)
    assert sorted(first.tolist()) == sorted(second.tolist()) == sorted(text.tolist())
    assert first.tolist() != second.tolist()


@pytest.mark.parametrize(
    ("masked", "expected"), [(False, "4d74edbd4596533c"), (True, "cdf7a9155868af91")]
)
def test_batches_stay_the_same(corpus, masked: bool, expected: str) -> None:
    """Results depend on batches. Oracle: a hash of the first version's batches. It shuffled each
    row separately, read it from the file, and read only whole rows of validation text. Steps lie
    within epochs and parts that are shuffled at once, at their ends, and one step is drawn twice.
    """
    stream, seen = Stream(corpus, DATA, masked, seed=5), hashlib.sha256()
    domains: tuple[Literal["new", "previous", "seen"], ...] = ("new", "previous", "seen")
    batches = [
        draw(stream, 2, Phase("adapt", memory=0.3, domain=domain), 1, step, 20, range(20))
        for domain in domains
        for step in (0, 1, 36, 37, 200, 36)
    ]
    validation = list(stream.read_validation(1, 4))
    assert [batch.global_size for batch in validation] == [4, 3]
    for batch in (*batches, *validation):
        rows = 2 if batch.global_size == 3 else batch.global_size  # the last row is not a whole one
        for tensor in (batch.tokens, batch.domains, batch.positions, batch.targets):
            seen.update(tensor[:rows].numpy().tobytes())
    seen.update(stream.draw_memory_text(2, 9).numpy().tobytes())
    assert seen.hexdigest()[:16] == expected


def test_masks(corpus) -> None:
    """Oracle: BERT's recipe: round(0.15 N) positions per row, of which 80% become <mask>, 10%
    random, and 10% are kept.
    """
    data = replace_length(DATA, 102)
    stream = Stream(corpus, data, masked=True, seed=0)
    batch = draw(stream, 0, Phase("adapt"), 0, 0, 500, range(500))
    assert batch.positions.shape == (500, 15)
    assert (batch.tokens[:, 0] == BOS).all() and batch.positions.min() >= 1
    assert all(len(set(row)) == 15 for row in batch.positions.tolist())
    seen = batch.tokens.gather(1, batch.positions)
    masked, kept = (seen == MASK).float().mean(), (seen == batch.targets).float().mean()
    assert abs(masked - 0.8) < 5 * (0.8 * 0.2 / 7500) ** 0.5
    assert abs(kept - 0.1) < 0.03
    untouched = batch.tokens.clone().scatter(1, batch.positions, batch.targets)
    assert not (untouched == MASK).any()


def test_validation_masks_do_not_depend_on_seed_or_process(corpus) -> None:
    """Oracle: an identity: another seed reads the same batch, and the second of two processes reads
    every other row of it.
    """
    first, second = (Stream(corpus, DATA, masked=True, seed=seed) for seed in (0, 9))
    whole = next(first.read_validation(1, sequences=6))
    assert batches_equal(whole, next(second.read_validation(1, sequences=6)))
    halves = [next(first.read_validation(1, 6, rank, 2)) for rank in range(2)]
    assert torch.equal(halves[1].tokens, whole.tokens[1::2])


def test_too_little_text(corpus) -> None:
    """By hand: 100 tokens of validation text are less than a row of 398, 400 columns without `<s>`
    and a prompt.
    """
    with pytest.raises(ConfigError, match="less .*sequence of 398"):
        Stream(corpus, Data(sequence_length=400), masked=False, seed=0)


def batches_equal(a: Batch, b: Batch) -> bool:
    return (
        torch.equal(a.tokens, b.tokens)
        and torch.equal(a.positions, b.positions)
        and torch.equal(a.targets, b.targets)
    )


def replace_length(data: Data, length: int) -> Data:
    return data.model_copy(update={"sequence_length": length})
