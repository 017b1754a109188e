"""Domains of several sources: how they are tokenised, and from which one a row comes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import methods
from benchmark.data.tokens import Corpus
from benchmark.instruments.conformance import TinyRuns
from benchmark.settings.base import ConfigError
from benchmark.settings.suite import Data, Tokenizer
from benchmark.settings.texts import Domain, WeightedText
from benchmark.training.method import Phase
from benchmark.training.stream import Stream
from tests.support.texts import draw, prepare, sentences, tiny_corpus, write

DATA = Data(sequence_length=18, memory_tokens=480)  # rows of 16, 30 rows of memory per domain
TOKENS = 1000, 600  # of two sources: 62 and 37 rows, without the row that has text of both


def mixed(*weights: float) -> Corpus:
    """Two domains, the first of two sources."""
    texts = tiny_corpus(domains=2, train_tokens=sum(TOKENS), valid_tokens=100)
    sources = tuple(
        WeightedText.model_validate({"train": ("x",), "weight": weight}) for weight in weights
    )
    first = replace(texts.domains[0], sources=sources, info={"parts": list(TOKENS)})
    return replace(texts, domains=(first, texts.domains[1]))


def sources_of(corpus: Corpus, tokens: torch.Tensor) -> np.ndarray:
    """The source of each row, looked up in the text, or -1 if a row is not whole in one source."""
    text = corpus.domains[0].train
    rows = {
        tuple(text[i : i + 16].tolist()): (0 if i + 16 <= TOKENS[0] else 1)
        for i in range(0, 992, 16)
    }
    rows |= {tuple(text[i : i + 16].tolist()): 1 for i in range(1008, 1600 - 15, 16)}
    return np.array([rows.get(tuple(row), -1) for row in tokens[:, 1:].tolist()])


@pytest.mark.parametrize(("weights", "share"), [([7.0, 3.0], 0.7), ([1.0, 3.0], 0.25)])
def test_rows_come_from_sources_by_their_weights(weights: list[float], share: float) -> None:
    """Oracle: the shares by hand, within four standard deviations of 4,000 draws. A row's place in
    the text tells its source.
    """
    corpus = mixed(*weights)
    stream = Stream(corpus, DATA, masked=False, seed=5)
    batch = draw(stream, 0, Phase("adapt"), 0, 3, 4000, range(4000))
    sources = sources_of(corpus, batch.tokens)
    assert sources.min() >= 0
    assert abs((sources == 0).mean() - share) <= 4 * (share * (1 - share) / 4000) ** 0.5
    again = draw(stream, 0, Phase("adapt"), 0, 3, 4000, range(1, 4000, 2))
    assert torch.equal(again.tokens, batch.tokens[1::2])


def test_memory_has_the_mix_of_the_stage() -> None:
    """By hand: 21 of the 30 rows of memory come from the first source, whose weight is 0.7."""
    corpus = mixed(0.7, 0.3)
    stream = Stream(corpus, DATA, masked=False, seed=5)
    batch = draw(stream, 1, Phase("recover", memory=1.0), 0, 0, 8000, range(8000))
    sources = sources_of(corpus, batch.tokens)
    rows = np.unique(np.column_stack([sources, batch.tokens.numpy()]), axis=0)
    assert np.bincount(rows[:, 0]).tolist() == [21, 9]
    assert abs((sources == 0).mean() - 0.7) < 0.03


def test_a_mixed_domain_is_its_sources_one_after_the_other(tmp_path: Path) -> None:
    """Oracle: the token ids of each source, prepared as a domain of its own. Other weights prepare
    nothing again. Messages name a source by its place in the list.
    """
    files = [
        str(write(tmp_path / f"{name}.jsonl", sentences(seed))) for seed, name in enumerate("ab")
    ]
    own = Data(sequence_length=18, valid_share=0.2)

    def domain(*weights: float) -> Domain:
        sources = tuple(
            WeightedText(train=(file,), weight=weight)
            for file, weight in zip(files, weights, strict=True)
        )
        return Domain(name="web", sources=sources, hold_out=0.1)

    said: list[str] = []
    corpus = prepare([domain(0.5, 0.5)], tmp_path / "data", data=own, report=said.append)
    assert said[-2:] == [f"web, source {number}: tokenising" for number in (1, 2)]
    made = {path: path.stat().st_mtime_ns for path in (tmp_path / "data").rglob("*")}
    other = prepare([domain(0.9, 0.1)], tmp_path / "data", data=own)
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "data").rglob("*")} == made
    assert other.keys == corpus.keys and other.domains[0].sources[0].weight == 0.9
    folder = tmp_path / "bpe"
    folder.mkdir()
    corpus.tokenizer.model.save(str(folder))
    fixed = Tokenizer(folder=str(folder))
    [joined] = prepare([domain(0.5, 0.5)], tmp_path / "data", tokenizer=fixed, data=own).domains
    alone = prepare(
        [Domain(name=f"d{i}", train=(file,), hold_out=0.1) for i, file in enumerate(files)],
        tmp_path,
        tokenizer=fixed,
        data=own,
    )
    for split in ("train", "valid"):
        assert np.array_equal(
            getattr(joined, split), np.concatenate([getattr(part, split) for part in alone.domains])
        )
    assert joined.info["parts"] == [len(part.train) for part in alone.domains]
    assert joined.info["skipped"]["held out"] > 0


def test_stage_keys_hold_the_weights_of_sources(tiny_folder: Path) -> None:
    """By hand: with another weight of a source, no stage has the same key."""
    tiny = TinyRuns("er", methods.build, tiny_folder)
    plain = tiny.make_config()
    keys = []
    for weight in (1.0, 0.5):
        given = [
            {"packages": ["json"], "weight": weight},
            {"packages": ["email"], "weight": 0.5},
        ]
        first = Domain.model_validate({"name": "json", "sources": given})
        config = plain.model_copy(update={"domains": (first, *plain.domains[2:])})
        keys.append({*tiny.make_run(config, "run").keys})
    assert not keys[0] & keys[1]


def test_sources_that_cannot_be_mixed_are_refused() -> None:
    """By hand: a weight of 0, packages beside sources, 10 tokens for a row of 16."""
    with pytest.raises(ValueError, match="greater than 0"):
        Domain.model_validate({"name": "a", "sources": [{"train": ["x"], "weight": 0}]})
    with pytest.raises(ValueError, match="one of packages, .*sources"):
        Domain.model_validate({"name": "a", "packages": ["json"], "sources": [{"train": ["x"]}]})
    corpus = mixed(1.0, 1.0)
    small = replace(corpus.domains[0], info={"parts": [1590, 10]})
    with pytest.raises(ConfigError, match="source 2 .*row of 16"):
        Stream(replace(corpus, domains=(small,)), DATA, masked=False, seed=0)
