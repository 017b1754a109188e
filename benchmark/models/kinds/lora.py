"""Low-rank adapters on a frozen language model, one set per domain.

With the adapters of Hu et al. 2021, "LoRA", arXiv 2106.09685, every linear map of the transformer
layers computes y = W x + B A x, with A (r, inputs) and B (outputs, r). B is zero at first. (The
paper adapts only queries and values. That is too little here: if only queries, keys and values are
adapted, the demo's stream ends at an average perplexity of 113 instead of 90, with rank 8, in the
mean of two seeds at 800 steps per stage.) The first domain trains the model itself. Each later one
adds its own A and B.

Shapes: B sequences, T tokens per sequence, K predicted positions per sequence, D hidden size,
V_text vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from benchmark.models.architectures import get_matrix
from benchmark.models.kinds.extended import ExtendedModel
from benchmark.models.kinds.progressive import compute_by_domain
from benchmark.models.transformer import LanguageModel


class Adapter(nn.Module):
    """A (r, inputs) and B (outputs, r) of one linear map.

    B A is zero at first.
    """

    def __init__(self, weight: Tensor, rank: int) -> None:
        super().__init__()
        outputs, inputs = weight.shape
        self.down = nn.Linear(inputs, rank, bias=False)
        self.up = nn.Linear(rank, outputs, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, module: nn.Linear | Conv1D, inputs: Tensor) -> Tensor:
        """The outputs of `module` with W + B A in place of W, for inputs (..., inputs)."""
        return AdaptedLinear.apply(
            inputs, get_matrix(module), module.bias, self.down.weight, self.up.weight
        )  # type: ignore[no-untyped-call]

    @torch.no_grad()
    def merge(self, module: nn.Linear | Conv1D) -> None:
        """Add B A to the module's W for good."""
        get_matrix(module).add_(self.up.weight @ self.down.weight)


class AdaptedLinear(torch.autograd.Function):
    """The map y = x (W + B A)^T + b for x (rows, columns, inputs), with gradients of x, A and B.

    The sum W + B A costs little compared with the product with x. Computing x A^T B^T beside x W^T
    would take three more passes over the activations. And autograd would compute the gradient of W
    to get those of A and B, a product that adapters should avoid. Under autocast the sum is in full
    precision, so that small changes are rounded only once.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, down: Tensor, up: Tensor
    ) -> Tensor:
        with torch.autocast(x.device.type, enabled=False):
            merged = torch.addmm(weight, up, down)
        y = F.linear(x, merged, bias)
        ctx.save_for_backward(*(tensor.to(y.dtype) for tensor in (x, merged, down, up)))
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, merged, down, up = ctx.saved_tensors
        dx = gradients[0] @ merged if ctx.needs_input_grad[0] else None
        x = x.flatten(0, 1)
        dy = gradients[0].flatten(0, 1)
        down_gradient = (dy @ up).T @ x
        up_gradient = ((x @ down.T).T @ dy).T
        return dx, None, None, down_gradient, up_gradient


class LoraModel(ExtendedModel):
    """A frozen language model with a set of adapters for each domain but the first.

    The newest set learns. A sequence is read with the adapters of its own domain, or with the
    newest if its domain has none yet. The network stays as transformers made it. Only the calls of
    its linear maps go through the adapters.
    """

    def __init__(self, model: LanguageModel, ranks: Sequence[int] = ()) -> None:
        super().__init__(model, ranks=[])
        self.adapters = nn.ModuleList()
        self._active = 0  # 0: the network alone
        for index, module in enumerate(list_linear_maps(model)):
            module.forward = partial(self._apply_linear, index, module, module.forward)
        for rank in ranks:
            self.add(rank)
        self.train(model.training)

    def add(self, rank: int) -> None:
        """Add adapters for the next domain, drawn from torch's generator.

        All other weights are frozen.
        """
        self.requires_grad_(False)
        matrices = [get_matrix(module) for module in list_linear_maps(self)]
        new = nn.ModuleList(Adapter(matrix, rank) for matrix in matrices)
        self.adapters.append(new.to(next(self.parameters()).device))
        self.made_with["ranks"].append(rank)

    def hidden(self, tokens: Tensor, domains: Tensor) -> Tensor:
        """See LanguageModel."""

        def encode(active: int, tokens: Tensor, domains: Tensor) -> Tensor:
            self._active = active
            hidden = super(LoraModel, self).hidden(tokens, domains)
            self._active = 0
            return hidden

        return compute_by_domain(self, domains, len(self.adapters), encode, tokens, domains)

    def _apply_linear(
        self, index: int, module: Any, plain: Callable[[Tensor], Tensor], inputs: Tensor
    ) -> Tensor:
        if not self._active:
            return plain(inputs)
        adapters: Any = self.adapters[self._active - 1]
        return adapters[index](module, inputs)

    def to_plain(self, domain: int = -1) -> PreTrainedModel:
        """The network with the adapters of a domain added into its weights.

        `domain` is the domain's index, by default the newest. Domain 0 has no adapters.
        """
        if self.adapters and domain:
            index = domain - 1 if 0 < domain < len(self.adapters) else -1
            adapters: Any = self.adapters[index]
            for module, adapter in zip(list_linear_maps(self), adapters, strict=True):
                adapter.merge(module)
        return self.network

    def make_encoder(self, domain: str) -> LanguageModel:
        domains = self.vocabulary.domains
        index = domains.index(domain) if domain in domains else -1
        return LanguageModel(self.to_plain(index), self.vocabulary)


def list_linear_maps(model: LanguageModel) -> list[Any]:
    """The linear maps of the transformer layers, in order."""
    maps = []
    for layer in model.architecture.layers(model.network):
        for module in layer.modules():
            if isinstance(module, (nn.Linear, Conv1D)):
                maps.append(module)
    return maps
