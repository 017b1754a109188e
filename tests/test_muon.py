"""Muon on matrices that hold several linear maps: it treats each map by itself, so that it does the
same in all architectures.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import methods
from benchmark.data.tokenizer import Vocabulary
from benchmark.instruments.conformance import make_tiny_config
from benchmark.models.transformer import build
from benchmark.settings.base import ConfigError
from benchmark.settings.decides import describe
from benchmark.settings.load import load_suite
from benchmark.settings.optimizers import find_optimizer
from benchmark.training.optimizer import PhaseOptimizer, find_linear_maps
from tests.support.tiny_suite import write

WIDTH = 32
HEADS = 2
STEPS = 3
RATE = 0.01
Cut = Callable[[Tensor], list[Tensor]]


def cut_neox(matrix: Tensor) -> list[Tensor]:
    """Query, key and value of a head stand one below the other, then those of the next."""
    by_head = matrix.view(HEADS, 3, WIDTH // HEADS, WIDTH)
    return [by_head[:, part].reshape(WIDTH, WIDTH) for part in range(3)]


# the maps (out, in) in a matrix of a layer, as transformers' modules read them
FUSED: Mapping[str, Mapping[str, Cut]] = {
    "gpt": {
        "attn.c_attn.weight": lambda weight: [*weight.T.split(WIDTH)],
        "mlp.c_fc.weight": lambda weight: [weight.T],
    },
    "gpt_neox": {"attention.query_key_value.weight": cut_neox},
    "modernbert": {
        "attn.Wqkv.weight": lambda weight: [*weight.split(WIDTH)],
        "mlp.Wi.weight": lambda weight: [*weight.split(4 * WIDTH)],
    },
    "llama": {},
}


def make_model(architecture: str) -> Any:
    torch.manual_seed(1)
    return build(architecture, 1, WIDTH, Vocabulary(40), 12, head_size=WIDTH // HEADS)


def make_optimizer(model: Any, **training: Any) -> PhaseOptimizer:
    settings = {"fused_maps": "apart", "weight_decay": 0.1, **training}
    config = make_tiny_config("naive", optimizer="muon", **settings)
    names = model.map_parameter_names()
    named = [(names[name], parameter) for name, parameter in model.named_parameters()]
    rates = [1.0] * len(named)
    linear_maps = find_linear_maps(model)
    return PhaseOptimizer(find_optimizer("muon"), named, rates, config.training, linear_maps)


def draw_gradients(model: Any, step: int) -> None:
    """Give all parameters random gradients, different ones in each step."""
    generator = torch.Generator().manual_seed(step)
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator)


@pytest.mark.parametrize("architecture", FUSED)
@pytest.mark.parametrize("decay", ["all", "matrices"])
def test_each_map_is_orthogonalised_apart(architecture: str, decay: str) -> None:
    """Oracle: torch's Muon on matrices (out, in) that the test cuts out of the weights, by the
    layout of transformers' modules. Halfway a new optimizer gets the moments, as when a run is
    resumed.
    """
    model = make_model(architecture)
    name_of = {parameter: name for name, parameter in model.named_parameters()}
    cuts: dict[nn.Parameter, Cut] = {}
    [layer] = model.architecture.layers(model.network)
    for name, parameter in layer.named_parameters():
        if parameter.dim() == 2:
            cuts[parameter] = FUSED[architecture].get(name, lambda weight: [weight])
        if name.endswith("c_proj.weight"):  # GPT-2's maps are stored (in, out)
            cuts[parameter] = lambda weight: [weight.T]
    assert FUSED[architecture].keys() <= dict(layer.named_parameters()).keys()
    copies = {
        parameter: [nn.Parameter(part.detach().clone()) for part in cut(parameter)]
        for parameter, cut in cuts.items()
    }
    by_hand = torch.optim.Muon(
        [part for parts in copies.values() for part in parts],
        lr=RATE,
        weight_decay=0.1,
        momentum=0.95,
        adjust_lr_fn="match_rms_adamw",
    )
    optimizer = make_optimizer(model, decay=decay)
    for step in range(2 * STEPS):
        if step == STEPS:
            moments = optimizer.gather_moments()
            optimizer = make_optimizer(model, decay=decay)
            optimizer.load_moments(moments, 40)
        draw_gradients(model, step)
        for parameter, parts in copies.items():
            assert parameter.grad is not None
            for part, gradient in zip(parts, cuts[parameter](parameter.grad), strict=True):
                part.grad = gradient.clone()
        optimizer.step(RATE)
        by_hand.step()
    for parameter, parts in copies.items():
        for found, expected in zip(cuts[parameter](parameter), parts, strict=True):
            torch.testing.assert_close(
                found.detach(), expected.detach(), rtol=0, atol=1e-6, msg=name_of[parameter]
            )


OWN = """
from dataclasses import dataclass

from benchmark.training.method import LifelongMethod


@dataclass
class Own(LifelongMethod):
    title = "Own"

    optimizer: str = "muon"  # the kind
"""
ROWS = """
extends = "tiny.toml"
methods = ["own", "naive"]
[[rows]]
name = "sgd"
method = "own"
options.optimizer = "sgd"
[[rows]]
name = "said"
method = "own"
set = { training.decay = "all", "training.fused_maps" = "whole" }
"""


@pytest.fixture
def suite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A suite with rows of a method that brings its own optimizer."""
    write(tmp_path)
    (tmp_path / "own.py").write_text(OWN)
    (tmp_path / "rows.toml").write_text(ROWS)
    monkeypatch.setattr(methods, "__path__", [*methods.__path__, str(tmp_path)])
    yield tmp_path / "rows.toml"
    sys.modules.pop("methods.own")
    methods.find.cache_clear()


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_defaults_follow_the_optimizer_that_trains(optimizer: str, suite: Path) -> None:
    """By hand: a method's own optimizer overrides the suite's, and a row's settings override both.
    A table in a row's `set` overrides its section key by key. "whole", the old way, leaves ids as
    they were.
    """
    runs = methods.list_runs(load_suite(str(suite), {"training.optimizer": optimizer}))
    found = {run.row: (run.training.fused_maps, run.training.decay) for run in runs}
    muon = ("apart", "matrices")
    other = ("whole", "all")
    naive = muon if optimizer == "muon" else other
    assert found == {"Own": muon, "Naive": naive, "sgd": other, "said": other}
    assert {run.training.batch_size for run in runs} == {10}
    [said] = [run for run in runs if run.row == "said"]
    assert "fused_maps" not in describe(said, "weights")["training"]


def test_a_method_with_an_unknown_optimizer_is_named(suite: Path) -> None:
    """Oracle: the message names the file and the value."""
    suite.write_text(ROWS.replace('"sgd"', '"moun"'))
    with pytest.raises(ConfigError, match=r"methods/own\.py: .*'moun'"):
        methods.list_runs(load_suite(str(suite)))
