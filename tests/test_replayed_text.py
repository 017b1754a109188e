"""General text beside the stream: `[replay]` puts the training text of a probe into each batch of
every stage.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import methods
from benchmark.instruments.conformance import TinyRuns
from benchmark.ledger.records import EvaluationLine, find_last
from benchmark.settings.base import ConfigError
from benchmark.settings.suite import Data
from benchmark.settings.texts import Domain, Replay
from benchmark.training.batch_parts import check_method
from benchmark.training.declaration import make_stage_keys
from benchmark.training.method import Phase, Source
from benchmark.training.stream import Stream
from tests.support.texts import draw, tiny_corpus

DATA = Data(sequence_length=18, memory_tokens=160)


@pytest.fixture(scope="module")
def streams() -> tuple[Stream, Stream]:
    """A stream with a replayed probe, and one without."""
    texts = tiny_corpus(domains=4, train_tokens=1000, valid_tokens=100)
    corpus = replace(texts, domains=texts.domains[:3], probes=texts.domains[3:])
    replayed = Stream(corpus, DATA, masked=False, seed=7, replay=Replay(text="d3", share=0.3))
    return replayed, Stream(corpus, DATA, masked=False, seed=7)


@pytest.mark.parametrize("memory", [0.0, 0.25, 1.0])
def test_the_rest_of_a_batch_is_a_smaller_batch(
    streams: tuple[Stream, Stream], memory: float
) -> None:
    """Oracle: by hand: of 20 rows, 30% are six rows of the probe, with each of its blocks once per
    epoch. The other fourteen are a batch without replay. Phases that do not train replay nothing.
    """
    stream, without = streams
    phase = Phase("adapt", memory=memory)
    [looks], _ = stream.plan_draws(Phase("look", trains=False), 0, 1, 20)
    assert looks.replayed == 0
    blocks = []
    for step in range(31):
        batch = draw(stream, 1, phase, 0, step, 20, range(20))
        alone = draw(without, 1, phase, 0, step, 14, range(14))
        general = (batch.domains == 3).numpy()
        assert general.sum() == 6 and np.array_equal(batch.tokens[~general], alone.tokens)
        assert (
            batch.memory_sequences == alone.memory_sequences
            and not general[20 - batch.memory_sequences :].any()
        )
        parts = [draw(stream, 1, phase, 0, step, 20, range(rank, 20, 2)) for rank in (0, 1)]
        assert all(
            np.array_equal(part.tokens, batch.tokens[rank::2]) for rank, part in enumerate(parts)
        )
        blocks += [tuple(row) for row in batch.targets[general].tolist()]
    text = stream.corpus.probes[0].train
    expected = {tuple(text[start : start + 16].tolist()) for start in range(0, 992, 16)}
    assert len(blocks) == 3 * len(expected) == 3 * 62
    assert all(set(blocks[epoch * 62 : epoch * 62 + 62]) == expected for epoch in range(3))


def test_each_batch_of_a_step_that_is_new_has_its_part(streams: tuple[Stream, Stream]) -> None:
    """Oracle: by hand: 30% of the rows of the source "new" are replayed, and none from memory."""
    phase = Phase("adapt", sources=(Source("new", 0.5), Source("memory", 0.5)))
    [new, memory], _ = streams[0].plan_draws(phase, 0, 1, 20)
    assert streams[0].make_batch(1, new, 0, range(10)).domains.tolist() == [1] * 7 + [3] * 3
    assert streams[0].make_batch(1, memory, 0, range(10)).domains.tolist() == [0] * 10


def test_a_replayed_text_is_learned_and_is_no_stage(tiny_folder) -> None:
    """Oracle: the same run without replay: with replay, the probe's perplexity is lower and the
    keys differ, also for other text of the probe. With a share of 0 the keys are the same. Measured
    texts, stages and tokens are the stream's in both.
    """
    tiny = TinyRuns("er", methods.build, tiny_folder)
    probe = Domain(name="general", packages=("unittest",))
    without = tiny.make_config(batch_size=20).model_copy(update={"probes": (probe,)})
    with_it = without.model_copy(update={"replay": Replay(text="general", share=0.5)})
    none = without.model_copy(update={"replay": Replay(text="general", share=0.0)})
    ends, keys = [], []
    for config in (without, with_it):
        run = tiny.make_run(config, "runs")
        run.train()
        keys.append(run.keys)
        ends.append([find_last(run.store.read_stage(key), EvaluationLine) for key in run.keys])
    assert not set(keys[0]) & set(keys[1]) and len(keys[1]) == 3
    assert tiny.make_run(none, "runs").keys == keys[0]
    for plain, mixed in zip(*ends, strict=True):
        assert plain.charged["tokens"] == mixed.charged["tokens"]
        assert list(mixed.perplexity) == ["json", "email", "logging", "general"]
        assert mixed.perplexity["general"] < plain.perplexity["general"]
    assert make_stage_keys(with_it, methods.build("er"), ["a", "b", "c", "g"]) != make_stage_keys(
        with_it, methods.build("er"), ["a", "b", "c", "h"]
    )


def test_a_share_that_the_rest_of_a_batch_cannot_hold_is_refused(tiny_folder) -> None:
    """Oracle: by hand: ER's tenth of the two rows that are not replayed rounds to 0."""
    config = TinyRuns("er", methods.build, tiny_folder).make_config(batch_size=20)
    config = config.model_copy(update={"replay": Replay(text="general", share=0.9)})
    with pytest.raises(ConfigError, match=r"memory of phase 'adapt'.* none\b"):
        check_method(config, methods.build("er"))
