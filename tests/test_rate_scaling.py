"""`training.rate_scaling = "mup"`: one learning rate that suits every width."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import methods
from benchmark.data.tokenizer import Vocabulary
from benchmark.models import build
from benchmark.settings.base import ConfigError
from benchmark.settings.load import load_suite
from benchmark.settings.optimizers import OPTIMIZERS
from benchmark.settings.suite import Training
from benchmark.training.batch_parts import check_method
from benchmark.training.optimizer import PhaseOptimizer, find_width_factors

WIDTHS = (32, 64, 128, 256)
RATE = 1e-3
LAST_NORM = {"gpt": "transformer.ln_f", "llama": "model.norm"}


def measure_changes(architecture: str, width: int, training: Training) -> dict[str, float]:
    """The RMS of the changes in coordinates of states and of logits in the first step."""
    torch.manual_seed(0)
    vocabulary = Vocabulary(text=64, domains=())
    model = build(architecture, 2, width, vocabulary, 34, head_size=8, dropout=0.0, scaled=True)
    tokens = torch.randint(8, 64, (4, 32), generator=torch.Generator().manual_seed(1))
    states: list[Any] = []
    norm = model.network.get_submodule(LAST_NORM[architecture])
    norm.register_forward_hook(lambda module, inputs, output: states.append(inputs[0].detach()))
    names = model.map_parameter_names()
    named = [(names[name], parameter) for name, parameter in model.named_parameters()]
    factors = find_width_factors(model, [parameter for _, parameter in named], training)
    optimizer = PhaseOptimizer(OPTIMIZERS["adamw"], named, factors, training)
    logits = []
    for _ in range(2):
        model.zero_grad()
        output = model.network(input_ids=tokens).logits
        logits.append(output.detach())
        F.cross_entropy(output[:, :-1].flatten(0, 1), tokens[:, 1:].flatten()).backward()
        optimizer.step(RATE)
    return {
        "states": (states[-1] - states[0]).square().mean().sqrt().item(),
        "logits": (logits[-1] - logits[0]).square().mean().sqrt().item(),
    }


def find_slopes(architecture: str, training: Training) -> dict[str, float]:
    """The exponents of the width with which the changes grow."""
    changes = [measure_changes(architecture, width, training) for width in WIDTHS]
    logs = [math.log(width) for width in WIDTHS]
    return {
        part: float(np.polyfit(logs, [math.log(change[part]) for change in changes], 1)[0])
        for part in changes[0]
    }


@pytest.mark.parametrize("architecture", LAST_NORM)
def test_a_step_moves_states_alike_at_every_width(architecture: str) -> None:
    """Oracle: the coordinate check of Yang et al. 2022 (arXiv 2203.03466, appendix D.1): with one
    rate, coordinates of wider models move further, but equally far under muP. Logits still move a
    little further, because a tied table begins with 1 / sqrt(width), not with muP's 1 / width.
    """
    plain = find_slopes(architecture, Training(batch_size=4, learning_rate=RATE))
    mup = Training(batch_size=4, learning_rate=RATE, rate_scaling="mup", rate_width=WIDTHS[0])
    scaled = find_slopes(architecture, mup)
    assert plain["states"] > 0.6
    assert plain["logits"] > 0.6
    assert abs(scaled["states"]) < 0.15
    assert abs(scaled["logits"]) < 0.35


def test_which_rates_follow_the_width() -> None:
    """Oracle: table 8 of Yang et al. 2022: rates of layers' matrices and of the output layer fall
    with the width, in each layer alike. Those of input tables and vectors do not. GPT's token table
    is also its output layer.
    """
    training = Training(batch_size=4, learning_rate=RATE, rate_scaling="mup", rate_width=16)
    model = build("gpt", 2, 64, Vocabulary(text=64), 34, head_size=8)
    names = model.map_parameter_names()
    factors = find_width_factors(model, model.parameters(), training)
    by_name = dict(zip((names[name] for name, _ in model.named_parameters()), factors, strict=True))
    assert by_name["embeddings.0.weight"] == 16 / 64
    assert by_name["embeddings.1.weight"] == 1.0
    for name, factor in by_name.items():
        if name.startswith("layers."):
            is_matrix = name.endswith("weight") and ".ln_" not in name
            assert factor == (16 / 64 if is_matrix else 1.0), name


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rate_scaling": "mup"}, "rate_width"),
        ({"rate_width": 16}, "rate_scaling"),
    ],
)
def test_a_rule_without_its_width_is_refused(settings: dict[str, Any], message: str) -> None:
    """By hand: the rule needs a width, and a width needs the rule."""
    with pytest.raises(ValueError, match=message):
        Training(batch_size=4, learning_rate=RATE, **settings)


@pytest.mark.parametrize(
    ("optimizer", "own", "init", "message"),
    [
        ("adamw", None, "scaled", ""),
        ("muon", None, "scaled", "muon"),
        ("adamw", "sgd", "scaled", "sgd"),
        ("adamw", None, "fixed", "fixed"),
    ],
)
def test_a_rule_that_does_not_hold_is_refused(
    optimizer: str, own: str | None, init: str, message: str
) -> None:
    """Oracle: muP's rule is for Adam and scaled weights. A method may bring another optimizer."""
    mup = {"training.rate_scaling": "mup", "training.rate_width": 16}
    suite = load_suite("demo", {**mup, "training.optimizer": optimizer, "model.init": init})
    [config] = methods.list_runs(suite, ("naive",))
    method = methods.build("naive", {})
    method.optimizer = own  # type: ignore[misc]
    if message:
        with pytest.raises(ConfigError, match=f"'Naive'.* 'mup' .*{message}"):
            check_method(config, method)
    else:
        check_method(config, method)
