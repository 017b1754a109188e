"""Memory and order as factors: runs whose seeds draw their own memory and order of domains."""

from __future__ import annotations

import contextlib
import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import methods
from analysis import catalogue
from analysis.comparison import build_comparison
from analysis.study import Study
from benchmark.ledger.runs import load_runs
from benchmark.settings.base import ConfigError
from benchmark.settings.load import expand, load_suite
from benchmark.settings.suite import Data, RunConfig
from benchmark.training.batch_parts import check_method
from benchmark.training.declaration import make_stage_keys
from benchmark.training.stream import Stream
from tests.support import synthetic, tiny_suite
from tests.support.texts import tiny_corpus


@pytest.fixture
def configs(tmp_path: Path):
    file = str(tiny_suite.write(tmp_path))

    def read(seeds: range, **changes: object) -> list[RunConfig]:
        suite = load_suite(file, {key.replace("__", "."): value for key, value in changes.items()})
        return [
            config
            for config in expand(suite, methods.list_rows(suite), seeds)
            if config.row == "ER"
        ]

    return read


def test_a_domain_has_one_memory_and_one_set_of_masks_in_every_order(configs, tmp_path) -> None:
    """Oracle: the stream in the listed order. At any place in the order, a domain's memory is the
    same set of blocks and its masked validation text the same batch. A stage's key depends on where
    its domain is listed.
    """
    corpus, data = tiny_corpus(3, 400, 100), Data(sequence_length=18, memory_tokens=160)
    listed = Stream(corpus, data, masked=True, seed=0)
    places = (2, 0, 1)
    domains = tuple(corpus.domains[place] for place in places)
    moved = Stream(
        dataclasses.replace(corpus, domains=domains), data, masked=True, seed=0, places=places
    )
    for now, place in enumerate(places):
        [before], [after] = listed.read_validation(place, 100), moved.read_validation(now, 100)
        assert torch.equal(before.tokens, after.tokens) and torch.equal(
            before.positions, after.positions
        )
    assert memory_of(moved, 0) == memory_of(listed, 2) and memory_of(moved, 1) == memory_of(
        listed, 0
    )
    permuted = next(config for config in configs(range(4), order="permute") if config.places)
    assert permuted.places == (1, 0) and [domain.name for domain in permuted.domains] == ["b", "a"]
    er = methods.build("er")
    listed_too = permuted.model_copy(update={"places": ()})
    assert make_stage_keys(permuted, er, ["x", "y"]) != make_stage_keys(listed_too, er, ["x", "y"])


def memory_of(stream: Stream, domain: int) -> set[int]:
    """The blocks that rows of memory are drawn from."""
    weights = [float(i == domain) for i in range(2)] if domain < 2 else [0.0, 0.0, 1.0]
    domains, blocks = stream._draw_memory((0,), 0, np.arange(500), np.array(weights))
    assert set(domains) == {domain}
    return set(blocks.tolist())


def test_a_memory_of_its_own_is_another_second_stage(configs) -> None:
    """Oracle: by hand: both runs share the first stage, which has no memory. The second stage draws
    from another memory, so it has another key.
    """
    [fixed], [own] = configs(range(1)), configs(range(1), data__memory_seed="run")
    method = methods.build("er")
    keys, others = (make_stage_keys(config, method, ["first", "second"]) for config in (fixed, own))
    assert keys[0] == others[0] and keys[1] != others[1] and fixed.id != own.id


@pytest.mark.parametrize(
    ("tokens", "method", "refused"),
    [
        *(
            (tokens, method, tokens == 15)
            for tokens in (0, 15, 16)
            for method in ("er", "agem", "mer", "infinite_lr")
        ),
        *((tokens, "elle", tokens < 16) for tokens in (0, 1, 15, 16)),
        *((tokens, "naive", False) for tokens in (0, 15)),
    ],
)
def test_a_memory_that_holds_no_row_is_found_before_training(
    tokens, method, refused, configs
) -> None:
    """Oracle: by hand: a row has 16 tokens, so methods that use memory cannot have 1 to 15. 0
    tokens mean no memory, which is refused only for ELLE, because one of its phases trains on
    nothing else.
    """
    [config] = configs(range(1), training__batch_size=20, data__memory_tokens=tokens)
    said = pytest.raises(ConfigError, match=r"^row 'ER'.*data\.memory_tokens")
    with said if refused else contextlib.nullcontext():
        check_method(config, methods.build(method))


def test_stages_that_differ_in_their_domain_are_called_by_their_place(tmp_path) -> None:
    """Oracle: by hand: the second seed meets the first two domains in reverse order, so stages have
    numbers as names. Unigram APs are geometric means over the domains so far.
    """
    synthetic.write(tmp_path, "orders", seeds=2, stages=3)
    runs = load_runs(tmp_path, "orders")
    assert Study("orders", runs).stage_titles == ["WB", "Ns", "Rev"]
    for run in runs:
        run.line.unigram = {"wb": 100.0, "ns": 200.0, "rev": 300.0}
        if run.seed == 1:
            run.line.domains = [run.domains[place] for place in (1, 0, 2)]
    study = Study("orders", runs)
    assert study.stage_titles == ["Domain 1", "Domain 2", "Domain 3"]
    entry: Any = catalogue.load("main_pretraining")
    table = entry.build(study)
    assert [column.group for column in table.columns if column.name == "AP"] == study.stage_titles
    unigram = [cell.values for cell in table.blocks[0].rows[-1].cells if cell.values]
    averages = (100.0, 200.0), (20_000**0.5,) * 2, (6_000_000 ** (1 / 3),) * 2
    assert unigram == [pytest.approx(values) for values in averages]
    after = build_comparison("orders", runs, runs).blocks[0].rows[0].cells[0].text
    assert after == "Domain 3"
