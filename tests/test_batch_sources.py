"""Steps of several batches: which rows they have, and how their losses are weighted."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

import methods
from benchmark.instruments.conformance import ALONE, TinyRuns, make_tiny_config
from benchmark.settings.base import ConfigError
from benchmark.settings.suite import Training
from benchmark.training.batch_parts import check_method
from benchmark.training.learner import Learner
from benchmark.training.method import LifelongMethod, Phase, Source
from tests.support import toy
from tests.support.record_lines import last_line


@dataclass
class Mixes(LifelongMethod):
    """Trains on `sources`, and notes the domains of the rows in each batch."""

    sources: tuple = ()
    rows: list = field(default_factory=list, init=False)
    state = ("rows",)

    def signature(self, stage):
        return {"sources": repr(self.sources)}

    def phases(self, stage):
        return [Phase("adapt", sources=(Source("new"),) if stage.first else self.sources)]

    def start_stage(self, model, stage):
        self.step: list = []
        return model

    def loss(self, learner, batch):
        self.rows = [*self.rows, [batch.source, batch.domains.tolist(), batch.memory_sequences]]
        return super().loss(learner, batch)


def test_sources_are_batches_of_their_own(tiny_folder) -> None:
    """Oracle: by hand: the shares of a batch of eight rows are four rows of the new domain, two of
    all memory and four of the first domain's memory. The tokens of all ten rows are charged.
    """
    sources = (Source("new", 0.5), Source("memory", 0.25), Source("json", 0.5))
    tiny = TinyRuns("mixes", lambda name, options: Mixes(sources), tiny_folder)
    run = tiny.make_run(tiny.make_config(), "run")
    run.train()
    last = run.store.stage_folder(run.keys[-1])
    rows = torch.load(last / "method.pt", weights_only=True)["rows"]
    assert rows[0][0] == 0 and rows[0][1:] == [[0] * 8, 0]  # the first stage has one source
    [new, memory, first] = [[row for row in rows[-30:] if row[0] == number] for number in range(3)]
    assert [row[1:] for row in new] == [[[2] * 4, 0]] * 10 and [row[1:] for row in first] == [
        [[0] * 4, 4]
    ] * 10
    assert {domain for row in memory for domain in row[1]} == {0, 1} and {
        len(row[1]) for row in memory
    } == {2}
    done = last_line(last / "records.jsonl", "done")
    assert done and done["charged"]["tokens"] == 10 * 10 * 16


def test_one_source_is_the_batch_itself(tiny_folder) -> None:
    """Oracle: Naive's weights, bit for bit, because Naive trains on the same rows."""
    tiny = TinyRuns("mixes", lambda name, options: Mixes((Source("new"),)), tiny_folder)
    naive = TinyRuns("naive", methods.build, tiny_folder)
    for expected, actual in zip(
        naive.train(naive.make_config(), "naive"),
        tiny.train(tiny.make_config(), "mixes"),
        strict=True,
    ):
        assert all(torch.equal(expected[name], actual[name]) for name in expected)


def test_losses_are_weighed() -> None:
    """Oracle: autograd on each batch alone: twice the gradient of the first batch's mean loss plus
    half the gradient of the second's.
    """
    model, method = toy.Toy(), LifelongMethod()
    parts = [
        toy.batch({"tokens": [1, 2, 3], "targets": [2, 3, 4]}),
        toy.batch({"tokens": [5], "targets": [6]}),
    ]
    expected = []
    for part in parts:
        model.zero_grad()
        model.compute_mean_loss(part.tokens, part.domains, part.positions, part.targets).backward()
        expected.append(toy.gradients(model))
    parts[0].weight, parts[1].weight = 2.0, 0.5
    loss = method.loss.__func__.__get__(method)  # type: ignore[attr-defined]
    training = Training(precision="fp32")
    learner = Learner(model, loss, training, ALONE)  # type: ignore[arg-type]
    learner.accumulate(parts)
    for name, gradient in toy.gradients(model).items():
        torch.testing.assert_close(
            gradient, 2 * expected[0][name] + 0.5 * expected[1][name], **toy.EXACT
        )


@pytest.mark.parametrize(
    ("sources", "message"),
    [
        (
            (Source("email"),),
            "phase 'adapt' of stage 1: .*'email'.*; there are new, .*memory, json$",
        ),
        ((Source("new", 0.5), Source("memory", 0.01)), r"phase 'adapt': .* 0\.01 .* 8 sequences"),
    ],
)
def test_sources_that_are_none_are_refused(sources: Any, message: str) -> None:
    """Oracle: the message names place, value and choices, before anything is trained."""
    with pytest.raises(ConfigError, match=message):
        check_method(make_tiny_config("naive"), Mixes(sources))


@dataclass
class Asks(LifelongMethod):
    """Has one phase or several."""

    asked: tuple = ()

    def phases(self, stage):
        return [Phase(f"phase {number}", **of) for number, of in enumerate(self.asked)]


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (({"share": 0.7}, {"share": 0.7}), "stage 0 sum to 1.4"),
        (({"share": 0.5}, {"share": 0.3}), "stage 2 sum to 0.8"),
        (({"memory": 1.5},), "share of 1.5 of a batch"),
        (({"domain": "memory"},), "no domain 'memory'"),
    ],
)
def test_phases_that_no_run_can_have_are_refused(asked: Any, message: str) -> None:
    """Oracle: the sums by hand, and the number or name that was given."""
    with pytest.raises(ConfigError, match=message):
        check_method(make_tiny_config("asks"), Asks(asked))


def test_a_default_that_an_option_cannot_have_is_refused(tmp_path, monkeypatch) -> None:
    """Oracle: by hand: ER's replay_ratio is at most 1, and the copied file's default is 10."""
    (tmp_path / "tenfold.py").write_text(
        Path(methods.__path__[0], "er.py").read_text().replace("= 0.1 ", "= 10 ")
    )
    monkeypatch.setattr(methods, "__path__", [*methods.__path__, str(tmp_path)])
    with pytest.raises(ConfigError, match="'tenfold': replay_ratio: .*less than or equal to 1.*10"):
        methods.build("tenfold")


@pytest.mark.parametrize(("architecture", "is_masked"), [("gpt", False), ("bert", True)])
def test_a_method_for_causal_models_is_refused_for_masked_ones(
    architecture: str, is_masked: bool
) -> None:
    """Oracle: by hand: BERT predicts masked tokens, GPT every token."""
    config = make_tiny_config("self_replay", architecture)
    outcome: Any = pytest.raises(ConfigError, match=architecture) if is_masked else nullcontext()
    with outcome:
        check_method(config, methods.build("self_replay"))
