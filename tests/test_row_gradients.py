"""Gradients of each row from one backward pass."""

from __future__ import annotations

from collections import defaultdict
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from benchmark.data.tokenizer import MASK, PAD, Vocabulary
from benchmark.models import LanguageModel, build
from benchmark.models import row_gradients as module
from benchmark.models.fast_operators import cross_entropy
from benchmark.models.row_gradients import compute_row_gradients
from benchmark.settings.base import ConfigError
from benchmark.settings.names import list_architecture_names

ROWS = 5


def model_of(architecture: str) -> LanguageModel:
    torch.manual_seed(0)
    model = (
        build(architecture, 2, 32, Vocabulary(40, ("web", "news")), 12, head_size=16, prompts=True)
        .double()
        .eval()
    )
    for parameter in model.parameters():  # biases and layer norms away from 0 and 1
        parameter.data.add_(0.1 * torch.randn_like(parameter))
    return model


def batch() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Tokens, with padding and masks, domains, positions and targets of five rows."""
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(MASK, 40, (ROWS, 11), generator=generator)
    tokens[1, 5:] = PAD
    positions = torch.stack([torch.randperm(11, generator=generator)[:3] for _ in range(ROWS)])
    return (
        tokens,
        torch.tensor([0, 1, 0, 1, 1]),
        positions,
        torch.randint(4, 40, (ROWS, 3), generator=generator),
    )


def by_row(model: LanguageModel, autocast: torch.autocast) -> dict[str, Tensor]:
    """The gradient of each row's loss (ROWS, *shape), with one backward pass per row."""
    rows = []
    for row in range(ROWS):
        tokens, domains, positions, targets = (part[row : row + 1] for part in batch())
        with autocast:
            loss = cross_entropy(model(tokens, domains, positions), targets)
        names, parameters = zip(
            *((n, p) for n, p in model.named_parameters() if p.requires_grad), strict=True
        )
        rows.append(dict(zip(names, torch.autograd.grad(loss, parameters), strict=True)))
    return {name: torch.stack([row[name] for row in rows]) for name in rows[0]}


def together(model: LanguageModel, autocast: torch.autocast) -> dict[str, Tensor]:
    tokens, domains, positions, targets = batch()
    names = {parameter: name for name, parameter in model.named_parameters()}
    pieces: dict[str, list[Tensor]] = defaultdict(list)  # parts of each, in order

    def loss() -> Tensor:
        with autocast:
            return cross_entropy(model(tokens, domains, positions), targets) * ROWS

    def take(parameter: nn.Parameter, part: slice, gradients: Tensor) -> None:
        assert gradients.shape == (ROWS, *parameter[part].shape)
        pieces[names[parameter]].append(gradients.clone())

    compute_row_gradients(model, ROWS, loss, take)
    return {name: torch.cat(parts, 1) for name, parts in pieces.items()}


FULL, BF16 = torch.autocast("cpu", enabled=False), torch.autocast("cpu", dtype=torch.bfloat16)


@pytest.mark.parametrize("at_once", [1, ROWS * 41 * 32, 2**23])
@pytest.mark.parametrize("architecture", list_architecture_names())
def test_gradients_are_those_of_each_row_alone(
    architecture: str, at_once: int, monkeypatch
) -> None:
    """Oracle: a forward and backward pass of autograd for each row, in float64. Embeddings are tied
    to the head, positions are shared by all rows, and PAD has no gradient in RoBERTa's embedding.
    The embedding's 42 rows, of which the last two are prompts without logits, are computed one at a
    time, as 41 and one, or all at once.
    """
    monkeypatch.setattr(module, "AT_ONCE", at_once)
    model = model_of(architecture)
    expected, ours = by_row(model, FULL), together(model, FULL)
    assert ours.keys() == expected.keys()
    for name, value in expected.items():
        tell = partial("{}: {}".format, name)
        # Gemma's norms, and their gradients, are of single precision whatever the network
        rtol, atol = (1e-4, 1e-7) if architecture == "gemma" else (1e-9, 1e-12)
        torch.testing.assert_close(ours[name], value, rtol=rtol, atol=atol, msg=tell)
    assert all(
        parameter.requires_grad and parameter.grad is None for parameter in model.parameters()
    )


@pytest.mark.parametrize("architecture", ["bert", "gpt"])
def test_gradients_under_autocast(architecture: str) -> None:
    """Oracle: one backward pass per row under the same autocast. bf16 has 8 bits, so errors of 3%
    of each tensor's largest gradient are allowed.
    """
    model = model_of(architecture).float()
    expected, ours = by_row(model, BF16), together(model, BF16)
    for name, value in expected.items():
        assert ours[name].dtype == torch.float32
        torch.testing.assert_close(
            ours[name], value, rtol=0, atol=0.03 * float(value.abs().max()) + 1e-7
        )


def test_other_uses_of_parameters_are_refused() -> None:
    """By hand: the bare parameter, and the layer whose weight is used without a call, are named; no
    hook stays.
    """

    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bare, self.called, self.uncalled = (
                nn.Parameter(torch.ones(3)),
                nn.Linear(3, 3),
                nn.Linear(3, 3),
            )

        def forward(self, x: Tensor) -> Tensor:
            return self.called(x) * self.bare + x @ self.uncalled.weight + self.uncalled.bias

    model = Odd()
    with pytest.raises(
        ConfigError, match=r"bare, uncalled\.bias, uncalled\.weight: .* Linear, Conv1D"
    ):
        compute_row_gradients(
            model, 2, lambda: model(torch.ones(2, 4, 3)).sum(), lambda *given: None
        )
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert not any(layer._forward_hooks for layer in model.modules())
