"""Experts: their mixture, what a new one changes, frozen parameters, costs, Lifelong-MoE's loss."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import methods
from benchmark.instruments.conformance import ALONE
from benchmark.models import LanguageModel
from benchmark.models.kinds.experts import ExpertModel
from benchmark.settings.names import list_architecture_names
from benchmark.settings.suite import Training
from benchmark.training.clock import count_flops
from benchmark.training.learner import Learner
from tests.support import small_models, toy
from tests.support.small_models import mixture, of, rows

FEED_FORWARD: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "bert": lambda layer, x: layer.output.dense(layer.intermediate(x)),
    "gpt": lambda layer, x: layer.mlp(x),
    "llama": lambda layer, x: layer.mlp(x),
    "modernbert": lambda layer, x: layer.mlp(x),
}


def plain(architecture: str, layers: int = 2) -> LanguageModel:
    torch.manual_seed(0)
    return small_models.plain(architecture, dropout=0.0, layers=layers).double().eval()


@pytest.mark.parametrize("architecture", FEED_FORWARD)
@torch.no_grad()
def test_each_token_is_the_sum_of_its_two_experts(architecture: str) -> None:
    """Oracle: for each token, transformers' own feed-forward network with the weights of the two
    experts whose router logits are largest. The outputs are weighted by a softmax over these two
    logits.
    """
    model = mixture(plain(architecture), 3)
    alone = [plain(architecture) for _ in range(3)]
    for number, part in enumerate(alone[1:]):
        layer = part.architecture.find_places(part.network).layers[-1].ffn
        for module, expert in zip(
            dict.fromkeys(place.module for place in (layer.up, layer.gate, layer.down) if place),
            model.experts[number][0],
            strict=True,
        ):
            values = expert.weight.data.T if architecture == "gpt" else expert.weight.data
            module.weight.data, module.bias = values, expert.bias
    seen: list[Tensor] = []
    ffn = model.architecture.find_places(model.network).layers[-1].ffn
    ffn.up.module.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    ffn.down.module.register_forward_hook(lambda _, __, output: seen.append(output))
    tokens, positions = rows()
    model(tokens, of(0), positions)
    inputs, outputs = seen[0].flatten(0, 1), seen[-1].flatten(0, 1)
    chosen = set()
    for x, y in zip(inputs, outputs, strict=True):
        logits = [float(row @ x) for row in model.routers[0]]
        first, second = sorted(range(3), key=lambda e: -logits[e])[:2]
        share = 1 / (1 + torch.tensor(logits[second] - logits[first]).exp().item())
        computed = [
            FEED_FORWARD[architecture](
                alone[e].architecture.layers(alone[e].network)[-1], x.view(1, 1, -1)
            ).flatten()
            for e in (first, second)
        ]
        torch.testing.assert_close(
            y, share * computed[0] + (1 - share) * computed[1], rtol=0, atol=1e-6
        )
        chosen.add((first, second))
    assert len(chosen) > 2


@pytest.mark.parametrize("architecture", list_architecture_names())
def test_a_second_expert_changes_nothing_at_first(architecture: str) -> None:
    """Oracle: the output of the model before the second expert was added."""
    model = plain(architecture, layers=3)
    tokens, positions = rows()
    before = model(tokens, of(0), positions)
    grown = ExpertModel(model)
    grown.add()
    torch.testing.assert_close(grown(tokens, of(0), positions), before, rtol=0, atol=1e-10)
    assert len(grown.routers) == 2  # of three layers: the first and the last


def test_only_the_newest_and_what_is_shared_learn() -> None:
    """By hand: the names of the frozen parameters. All others have a gradient, even if the newest
    expert gets no token.
    """
    model = mixture(plain("llama"), 2)
    model.add()
    assert torch.equal(model.routers[0][2], model.routers[0][1])
    for row in model.routers[0]:
        row.data.zero_()
    model.routers[0][2].data -= 1e3
    tokens, positions = rows()
    model.train().compute_mean_loss(tokens, of(2), positions, torch.ones_like(positions)).backward()
    named = dict(model.named_parameters())
    frozen = {name for name, p in named.items() if not p.requires_grad}
    first = {f"network.model.layers.1.mlp.{part}_proj.weight" for part in ("gate", "up", "down")}
    assert frozen == {
        "routers.0.0",
        "routers.0.1",
        *first,
        *(name for name in named if name.startswith("experts.0.")),
    }
    assert all((p.grad is None) == (name in frozen) for name, p in named.items())


def test_a_step_costs_the_same_whatever_the_router_chooses() -> None:
    """Oracle: torch counts the same FLOPs for a step in which no token goes to the expert that
    learns as for one in which all do.
    """
    model, costs = mixture(plain("gpt"), 3).train(), []
    tokens, positions = rows()
    for logit in (-1e3, 1e3):
        model.routers[0][2].data.fill_(0.0)[0] = logit

        def step() -> None:
            targets = torch.ones_like(positions)
            model.compute_mean_loss(tokens, of(2), positions, targets).backward()

        costs.append(count_flops(step))
    assert costs[0] == costs[1] > 0


def test_the_loss_of_lifelong_moe() -> None:
    """Oracle: -log p + lambda sum p_old (log p_old - log p) by hand. At first both models are
    equal, so only the cross-entropy is left. The next stage adds an expert.
    """
    method: Any = methods.build("lifelong_moe", {"distillation": 0.7})
    before = plain("llama")
    assert method.start_stage(before, toy.stage(0)) is before
    stage = replace(toy.stage(1), previous=lambda: copy.deepcopy(before).eval())
    model: Any = method.start_stage(copy.deepcopy(before).train(), stage)
    learner = Learner(model, method.loss, Training(precision="fp32"), ALONE)
    tokens, positions = rows()
    batch = replace(
        toy.batch({"tokens": [0] * 4, "targets": [0] * 4}), tokens=tokens, positions=positions
    )
    batch = replace(batch, domains=of(1), targets=tokens.gather(1, positions))
    arguments = tokens, batch.domains, positions
    assert method.loss(learner, batch).item() == pytest.approx(
        F.cross_entropy(before(*arguments).flatten(0, 1), batch.targets.flatten()).item(), abs=1e-6
    )
    for parameter in model.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    new, old = (network(*arguments).flatten(0, 1).softmax(-1) for network in (model, before))
    cross_entropy = -sum(
        row[target].log() for row, target in zip(new, batch.targets.flatten(), strict=True)
    ) / len(new)
    divergence = (old * (old.log() - new.log())).sum() / len(new)
    assert method.loss(learner, batch).item() == pytest.approx(
        (cross_entropy + 0.7 * divergence).item(), abs=1e-6
    )
    again: Any = methods.build("lifelong_moe").start_stage(
        model, replace(stage, previous=lambda: copy.deepcopy(model))
    )
    assert again is model and len(again.experts) == 2
