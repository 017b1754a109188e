"""LoRA: adapters as a change of weights, their gradients, and new adapters."""

from __future__ import annotations

import re

import pytest
import torch
from transformers.pytorch_utils import Conv1D

from benchmark.models import LanguageModel
from benchmark.models.kinds.lora import AdaptedLinear, LoraModel
from benchmark.settings.names import list_architecture_names
from tests.support.small_models import adapted, of, plain, rows


def seeded(architecture: str) -> LanguageModel:
    """The model that `adapted` begins with."""
    torch.manual_seed(0)
    return plain(architecture).eval()


def changed(model: LoraModel, architecture: str, domain: int) -> LanguageModel:
    """The plain model with W + B A in place of W, for the adapters of a domain.

    The matrices W are in the network's numbered modules, which are its layers.
    """
    alone = seeded(architecture)
    numbered = [
        module for name, module in alone.network.named_modules() if re.search(r"\.\d+\.", name)
    ]
    maps = [
        module
        for module in numbered
        if getattr(module, "weight", None) is not None and module.weight.dim() == 2
    ]
    for module, adapter in zip(maps, model.adapters[domain - 1], strict=True):  # type: ignore[call-overload]
        change = adapter.up.weight @ adapter.down.weight
        module.weight.data += change.T if isinstance(module, Conv1D) else change
    return alone


@pytest.mark.parametrize("architecture", list_architecture_names())
def test_adapters_are_a_change_of_weights(architecture: str) -> None:
    """Oracle: the plain model with W + B A in place of W (Hu et al., eq. 3). The first domain has
    no adapters, so its model is the plain one.
    """
    model = adapted(architecture).eval()
    tokens, positions = rows()
    assert torch.equal(
        model(tokens, of(0), positions), seeded(architecture)(tokens, of(0), positions)
    )
    for domain in (1, 2):
        expected = changed(model, architecture, domain)(tokens, of(domain), positions)
        torch.testing.assert_close(
            model(tokens, of(domain), positions), expected, rtol=1e-4, atol=1e-5
        )


def test_gradients_are_those_of_the_changed_weights() -> None:
    """Oracle: finite differences in float64, for the hand-written gradients of x, A and B."""
    generator = torch.Generator().manual_seed(2)
    shapes = {"x": (2, 3, 5), "weight": (4, 5), "bias": (4,), "down": (2, 5), "up": (4, 2)}
    inputs = [
        torch.randn(shape, dtype=torch.float64, generator=generator) for shape in shapes.values()
    ]
    for name, tensor in zip(shapes, inputs, strict=True):
        tensor.requires_grad_(name in ("x", "down", "up"))
    assert torch.autograd.gradcheck(AdaptedLinear.apply, inputs)


def test_new_adapters_change_nothing() -> None:
    """Oracle: B = 0 in new adapters, so their domain has the logits of the first domain."""
    model = adapted("gpt", domains=1).eval()
    model.add(rank=3)
    tokens, positions = rows()
    assert torch.equal(model(tokens, of(2), positions), model(tokens, of(0), positions))
