"""Experts: feed-forward networks side by side, of which a router chooses two for each token.

Each domain adds one. The method is Chen et al. 2023, "Lifelong language pretraining with
distribution-specialized experts", arXiv 2305.12281, and the mixture is GLaM's (Du et al. 2022,
arXiv 2112.06905). Every other layer has E experts. Each token x goes to the two with the highest
logits w_e x,

    y = sum over these two of g_e FFN_e(x),    g = the softmax of their two logits.

The first expert is the network's own feed-forward network. A new one is a copy of the newest, with
a copy of its row in the router. So two experts at first compute what the one did. With three or
more this is not exact: if the two best experts of a token are now an expert and its copy, the token
loses the output of its former second expert.

Shapes: B sequences, T tokens per sequence, D hidden size, F inputs of the activation, E experts, N
= B T tokens, k experts per token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmark.models.architectures import get_matrix
from benchmark.models.kinds.extended import ExtendedModel
from benchmark.models.transformer import LanguageModel

EVERY = 2  # the uppermost of each group of so many layers has experts
CHOSEN = 2  # experts per token


@dataclass
class Routes:
    """The experts that compute each token of (B, T, D).

    Each token is copied for its k experts. The copies are sorted by expert.
    """

    shape: torch.Size
    tokens: Tensor  # (N k,): the token of each copy
    places: Tensor  # (N, k): the indices of each token's copies
    gates: Tensor  # (N, k)
    counts: list[int]  # (E,): copies for each expert

    def to_experts(self, x: Tensor) -> tuple[Tensor, ...]:
        """The tokens (., D) of each expert."""
        return x.flatten(0, -2)[self.tokens].split(self.counts)

    def to_tokens(self, outputs: Tensor) -> Tensor:
        """The weighted sums (B, T, D) of the experts' outputs (N k, D)."""
        copies = outputs[self.places]
        gates = self.gates.unsqueeze(-1).to(outputs)
        return (copies * gates).sum(1).view(self.shape)


class ExpertModel(ExtendedModel):
    """A language model with experts.

    All weights learn, except those of older experts and their rows of the router. The network stays
    as transformers made it. Only the calls of its feed-forward maps go to the experts. This is
    possible because a single elementwise activation stands between these maps.
    """

    def __init__(self, model: LanguageModel, experts: int = 1) -> None:
        super().__init__(model, experts=1)  # `add` makes the others, and counts them
        layers = model.architecture.find_places(model.network).layers
        # every second layer, counted from the top, in the order of the network
        layers_with_experts = layers[::-1][::EVERY][::-1]
        self._maps = [_list_maps(layer.ffn) for layer in layers_with_experts]
        # all but the first expert: for each layer with experts its maps, the map down last
        self.experts = nn.ModuleList()
        width = model.hidden_size
        example = next(model.parameters())
        # a row (D,) for each expert
        rows = [nn.Parameter(example.new_zeros(width)) for _ in self._maps]
        self.routers = nn.ModuleList(nn.ParameterList([row]) for row in rows)
        self._routes: dict[int, Routes] = {}
        for number, maps in enumerate(self._maps):
            for place, module in enumerate(maps):
                part = self._map_down if module is maps[-1] else self._map_up
                module.forward = partial(part, number, place)
        for _ in range(1, experts):
            self.add()
        self.train(model.training)

    def add(self) -> None:
        """Add an expert for the next domain to each layer that has experts."""
        self.made_with["experts"] += 1
        newest: Any = self.experts[-1] if self.experts else self._maps
        copies = [nn.ModuleList(map(_copy_linear, maps)) for maps in newest]
        self.experts.append(nn.ModuleList(copies))
        self.requires_grad_(True)
        older: Any = [self._maps, *self.experts[:-1]]
        for layers in older:
            for maps in layers:
                for module in maps:
                    module.requires_grad_(False)
        for router in self.routers:
            rows: Any = router
            rows.append(nn.Parameter(rows[-1].detach().clone()))
            for row in rows[:-1]:
                row.requires_grad_(False)
        self.train(self.training)

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _map_up(self, number: int, place: int, x: Tensor) -> Tensor:
        """The outputs (N k, F) of the experts' maps up for (B, T, D)."""
        if number not in self._routes:  # a gated network has two maps up
            self._routes[number] = self._route(number, x)
        return self._apply_experts(number, place, self._routes[number].to_experts(x))

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _map_down(self, number: int, place: int, x: Tensor) -> Tensor:
        """The experts' outputs for the tokens (B, T, D).

        `x` is the output of the activation, with N k rows.
        """
        routes = self._routes.pop(number)
        return routes.to_tokens(self._apply_experts(number, place, x.split(routes.counts)))

    def _apply_experts(self, number: int, place: int, parts: Sequence[Tensor]) -> Tensor:
        """The outputs of the map `place` of each expert for its tokens.

        An expert without tokens gets a gradient too, which is 0. Gradients of frozen experts are
        computed and dropped, so that a step costs the same whatever the router chooses.
        """
        later: Any = self.experts
        maps = [self._maps[number][place]]
        for expert in later:
            maps.append(expert[number][place])
        outputs = []
        for module, part in zip(maps, parts, strict=True):
            outputs.append(_apply_linear(module, part, self.training))
        return torch.cat(outputs)

    def _route(self, number: int, x: Tensor) -> Routes:
        """The experts that the router of a layer chooses for the tokens (B, T, D)."""
        rows: Any = self.routers[number]
        logits = x.flatten(0, -2) @ torch.stack(list(rows)).T
        best, choices = logits.topk(min(CHOSEN, len(rows)), dim=-1)  # (N, k)
        order = choices.flatten().argsort(stable=True)  # all copies, sorted by expert
        experts = torch.arange(len(rows), device=x.device).unsqueeze(1)
        counts = (choices.flatten() == experts).sum(1)
        dtype = torch.promote_types(best.dtype, torch.float32)
        return Routes(
            shape=x.shape,
            tokens=order // choices.shape[1],
            places=order.argsort().view(choices.shape),  # the inverse of `order`
            gates=best.to(dtype).softmax(-1),
            counts=counts.tolist(),
        )

    def make_encoder(self, domain: str) -> LanguageModel:
        """The model with all its experts, whatever the domain: the router chooses."""
        return self


def _list_maps(ffn: Any) -> list[Any]:
    """The modules of a feed-forward network, the map down last.

    Up and gate may be one module.
    """
    up = [place.module for place in (ffn.up, ffn.gate) if place is not None]
    return [*dict.fromkeys(up), ffn.down.module]


def _apply_linear(module: Any, x: Tensor, learns: bool) -> Tensor:
    weight = get_matrix(module)
    if learns and not weight.requires_grad:
        weight = weight.detach().requires_grad_()
    return F.linear(x, weight, module.bias)


def _copy_linear(module: Any) -> nn.Linear:
    weight = get_matrix(module)
    outputs, inputs = weight.shape
    new = nn.utils.skip_init(
        nn.Linear,
        inputs,
        outputs,
        module.bias is not None,
        device=weight.device,
        dtype=weight.dtype,
    )
    with torch.no_grad():
        new.weight.copy_(weight)
        if module.bias is not None:
            new.bias.copy_(module.bias)
    return new
