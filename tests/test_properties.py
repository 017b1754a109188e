"""Suites and the stream on random input that nobody thought of (hypothesis)."""

from __future__ import annotations

import json
import re
from collections import Counter
from types import SimpleNamespace
from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmark.settings.base import ConfigError
from benchmark.settings.load import load_suite, parse_set
from benchmark.settings.suite import Data
from benchmark.training.method import Phase, Source
from benchmark.training.processes import World
from benchmark.training.step import Loader
from benchmark.training.stream import Stream
from tests.support.texts import tiny_corpus

few = settings(max_examples=60, deadline=None, derandomize=True, database=None)
KEYS = st.sampled_from(
    [
        "seeds",
        "title",
        "data.memory_tokens",
        "training.max_grad_norm",
        "budget.amount",
        "model.ladder",
        "rows",
    ]
)


def values_of(letters: st.SearchStrategy[str]) -> st.SearchStrategy[object]:
    """Values of JSON, with texts of these letters."""
    return st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(letters),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.text(letters, max_size=5), inner, max_size=3)
        ),
        max_leaves=5,
    )


VALUES = values_of(st.characters())


@few
@given(KEYS | st.text(max_size=10), VALUES)
def test_a_suite_is_read_or_refused(key: str, value: object) -> None:
    """Oracle: a suite is loaded, or ConfigError is raised, which users see as a short message."""
    try:
        load_suite("demo", dict([parse_set(f"{key}={json.dumps(value)}")]))
    except ConfigError as error:
        assert len(str(error)) < 3000


def rows_of(
    steps: range,
    stage: int,
    phase: Phase,
    batch_size: int,
    micro: int,
    processes: int,
    masked: bool,
) -> list[list[tuple[int, ...]]]:
    """The rows of all processes in each step, sorted: source, domain, tokens, targets.

    Each process begins `steps` with a new loader.
    """
    rows_of_steps: list[list[tuple[int, ...]]] = [[] for _ in steps]
    for rank in range(processes):
        inputs: Any = SimpleNamespace(
            config=SimpleNamespace(
                training=SimpleNamespace(batch_size=batch_size, micro_batch_size=micro, shard=False)
            ),
            stage=SimpleNamespace(index=stage),
            stream=Stream(CORPUS, Data(sequence_length=18, memory_tokens=160), masked, seed=0),
            world=World(rank, processes, torch.device("cpu")),
            method=None,
        )
        loader = Loader(inputs, phase, 0)
        for rows, step in zip(rows_of_steps, steps, strict=True):
            for part in loader.get(step)[0]:
                values = (tensor.tolist() for tensor in (part.domains, part.tokens, part.targets))
                rows += [
                    (part.source, domain, *tokens, *targets)
                    for domain, tokens, targets in zip(*values, strict=True)
                ]
        loader.close()
    return [sorted(rows) for rows in rows_of_steps]


CORPUS = tiny_corpus(domains=3, train_tokens=1000, valid_tokens=100)
MACHINES = st.tuples(
    st.integers(1, 24), st.sampled_from([1, 2, 3])
)  # rows of a forward pass, processes


@few
@given(
    *(
        st.integers(0, 2),
        st.integers(0, 20).map(lambda part: part / 20),
        st.booleans(),
        st.integers(1, 4),
    ),
    *(MACHINES, MACHINES, st.integers(0, 4), st.booleans()),
)
def test_a_stream_goes_on_at_any_step(
    stage: int,
    share: float,
    apart: bool,
    sixths: int,
    machine: tuple[int, int],
    other: tuple[int, int],
    resumed: int,
    masked: bool,
) -> None:
    """Oracle: the rows of an uninterrupted stream, which another machine continues at any step. By
    hand: the new and the earlier domains have their shares of a batch, rounded to rows.
    """
    size, sources = 6 * sixths, (Source("new", 1 - share), Source("memory", share))
    phase = Phase("adapt", sources=sources) if apart else Phase("adapt", memory=share)
    try:
        whole = rows_of(range(5), stage, phase, size, *machine, masked)
        rest = rows_of(range(resumed, 5), stage, phase, size, *other, masked)
    except (
        ConfigError,
        ValueError,
    ) as error:  # a share that no batch can hold, or fewer rows than processes
        assert re.search("rounds to|cannot be split", str(error))
        return
    assert rest == whole[resumed:]
    for rows in whole:
        of_domain = Counter(domain for _, domain, *_ in rows)
        new, earlier = of_domain[stage], sum(of_domain[domain] for domain in range(stage))
        assert len(rows) == new + earlier and abs(earlier - share * size * bool(stage)) <= 0.5
        assert abs(new - (1 - share) * size) <= 0.5 if apart else len(rows) == size
