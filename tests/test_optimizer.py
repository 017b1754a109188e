"""The optimizer: rates by name, frozen parts, and moments that outlive a phase or a stage."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

import methods
from benchmark.instruments.conformance import TinyRuns, tiny_config
from benchmark.models import load
from benchmark.settings.base import ConfigError
from benchmark.training.keys import stage_keys
from benchmark.training.learner import carry_on, copy_layers, factors, moments, new_optimizer
from benchmark.training.method import LifelongMethod, Phase
from benchmark.training.step import trainable_stage
from tests.support.record_lines import read_lines

CONSTANT: Any = "constant"


@dataclass
class Remembers(LifelongMethod):
    """Carries the optimizer on and notes each gradient of the first norm of the first layer."""

    first: bool = True
    gradients: list = field(default_factory=list, init=False)
    state = ("gradients",)

    def signature(self, stage):
        return {"remembers": self.first}

    def phases(self, stage):
        if stage.first and not self.first:
            return [Phase("adapt")]
        return [
            Phase("a", 0.3, optimizer="carry", schedule=CONSTANT),
            Phase("look", 0.2, trains=False),
            Phase("b", 0.5, optimizer="carry", schedule=CONSTANT),
        ]

    def adjust_gradients(self, learner, memory):
        gradient = dict(learner.named_parameters)["network.transformer.h.0.ln_1.weight"].grad
        self.gradients = [*self.gradients, gradient.clone()]


def test_moments_go_on_over_phases_and_stages(tmp_path) -> None:
    """Oracle: Adam's mean of all gradients so far in closed form, over 24 steps of six phases; and the rows that the
    embeddings got with their domains have moments of zero, as no text contains them."""
    tiny = TinyRuns("remembers", lambda name, options: Remembers(), tmp_path)
    run = tiny.run(tiny.config(), "run")
    run.train()
    stage = run.store.stage(run.keys[-1])
    kept = torch.load(stage / "optimizer.pt", weights_only=True)
    gradients = torch.load(stage / "method.pt", weights_only=True)["gradients"]
    assert len(gradients) == 24 and kept["layers.0.ln_1.weight"]["step"] == 24
    expected = sum(0.1 * 0.9 ** (23 - i) * gradient for i, gradient in enumerate(gradients))
    torch.testing.assert_close(kept["layers.0.ln_1.weight"]["exp_avg"], expected)
    assert len(kept["embeddings.0.weight"]["exp_avg"]) == load(stage / "model").vocabulary.size
    assert not kept["embeddings.0.weight"]["exp_avg_sq"][-3:].any()


def test_a_stage_cannot_carry_on_what_none_has_kept() -> None:
    """Oracle: the message names the stages and the cure, before anything is trained."""
    with pytest.raises(ConfigError, match=r"stage 1 carries .* stage 0 keeps none: let the first phase of every stage"):
        stage_keys(tiny_config("naive"), Remembers(first=False), ["a", "b", "c"])


def test_a_first_stage_that_is_kept_is_not_naives() -> None:
    """Oracle: the rule of stage keys: one key, one content of the folder."""

    @dataclass
    class Keeps(LifelongMethod):
        def phases(self, stage):
            return [Phase("adapt", optimizer="carry")]

    config, texts = tiny_config("naive"), ["a", "b", "c"]
    assert stage_keys(config, Keeps(), texts)[0] != stage_keys(config, methods.build("naive"), texts)[0]


def test_moments_fit_what_has_grown() -> None:
    """Oracle: by hand: new rows of a vocabulary of three are zero, another width begins anew, that of a norm too, and a
    copied layer takes its own along."""
    training = tiny_config("naive").training
    small, large = {"table": (2, 3), "map": (3, 3), "norm": (2,)}, {"table": (3, 3), "map": (4, 4), "norm": (4,)}
    old, new = ([(name, torch.nn.Parameter(torch.ones(s))) for name, s in shapes.items()] for shapes in (small, large))
    before = new_optimizer([p for _, p in old], training)
    for _, parameter in old:
        parameter.grad = torch.ones_like(parameter)
    before.step()
    known = moments(before, old)
    after = new_optimizer([p for _, p in new], training)
    carry_on(after, new, known, vocabulary=3)
    table, *others = [after.state[parameter] for _, parameter in new]
    assert others == [{}, {}]
    assert table["step"] == 1 and table["exp_avg"].tolist() == [[pytest.approx(0.1)] * 3] * 2 + [[0.0] * 3]
    marked: Any = {"layers.0.w": 0, "layers.1.w": 1, "embeddings.0.w": 2}
    expected: Any = {"layers.0.w": 0, "layers.1.w": 1, "layers.2.w": 0, "embeddings.0.w": 2}
    assert copy_layers(marked, [0, 1, 0]) == expected


@pytest.mark.parametrize("architecture", ["gpt", "bert", "llama"])
def test_parts_have_names_in_every_architecture(architecture: str, tmp_path) -> None:
    """Oracle: the ladder: two layers, each of whose parameters has its number, and an embedding table of tokens."""
    config = tiny_config("naive", architecture)
    tiny = TinyRuns("naive", methods.build, tmp_path)
    stage = tiny.run(config, "run").config.model.ladder[-1]
    model = trainable_stage(config, 2, tiny.run(config, "run").stream).build(stage)
    names = set(model.part_names().values())
    assert len(names) == len(list(model.parameters()))
    assert {name.split(".")[1] for name in names if name.startswith("layers.")} == {"0", "1"}
    assert "embeddings.0.weight" in names


@dataclass
class Groups(LifelongMethod):
    rates: Mapping[str, float] = field(default_factory=dict)

    def signature(self, stage):
        return {"rates": dict(self.rates)}

    def phases(self, stage):
        return [Phase("adapt", rates=self.rates, schedule=CONSTANT)]


def test_rates_by_name(tmp_path) -> None:
    """Oracle: Adam's first step is the rate times a direction that the gradient decides, so at half the rate it moves
    half as far; what is frozen does not move, and needs no gradient."""
    weights, flops = [], []
    for rates in ({"embeddings.*": 0.0, "layers.*": 0.0}, {}, {"*.ln_1.*": 0.5, "layers.*": 1.0, "embeddings.*": 0.0}):
        tiny = TinyRuns("groups", lambda name, options: Groups(rates), tmp_path)  # noqa: B023
        config = tiny.config()
        budget = config.budget.model_copy(update={"amount": 1.0})
        config = config.model_copy(update={"budget": budget, "domains": config.domains[:1]})
        run = tiny.run(config, "run")
        run.train()
        stage = run.store.stage(run.keys[0])
        weights.append(load(stage / "model").state_dict())
        flops.append(
            next(line for line in read_lines(stage / "records.jsonl") if line["kind"] == "done")["charged"]["flops"]
        )
    frozen, free, groups = weights
    name = "network.transformer.h.0.ln_1.weight"
    begin = frozen[name]
    assert not torch.equal(begin, free[name])
    torch.testing.assert_close(groups[name] - begin, (free[name] - begin) / 2, rtol=1e-3, atol=1e-7)
    name = "network.transformer.h.0.mlp.c_fc.weight"
    torch.testing.assert_close(groups[name], free[name])
    assert torch.equal(groups["network.transformer.wte.weight"], frozen["network.transformer.wte.weight"])
    assert flops[0] < flops[2] < flops[1]


@pytest.mark.parametrize(
    ("rates", "message"),
    [
        ({"layer.*": 0.5}, r"'layer.\*' fits no parameter; there are embeddings.\*.weight, layers.\*.ln_1.weight"),
        ({"layers.*": -1.0}, "has -1, less than 0"),
    ],
)
def test_rates_that_mean_nothing_are_refused(rates: dict[str, float], message: str) -> None:
    """Oracle: the message names the pattern and the choices."""
    with pytest.raises(ConfigError, match=message):
        factors(["embeddings.0.weight", "layers.0.ln_1.weight", "layers.1.ln_1.weight"], rates, "adapt")


def test_a_phase_that_freezes_all_is_refused(tmp_path) -> None:
    """Oracle: the message says so."""
    with pytest.raises(ConfigError, match="phase 'adapt' trains nothing"):
        TinyRuns("groups", lambda name, options: Groups({"*": 0.0}), tmp_path).undisturbed()
