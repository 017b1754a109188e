"""Dropout on a CPU: what it drops, where a network drops, and attention with dropout."""

from __future__ import annotations

import copy
import math

import pytest
import torch
import torch.nn.functional as F

from benchmark.data.tokenizer import Vocabulary
from benchmark.models import LanguageModel, build
from benchmark.models import fast_operators as dropout
from benchmark.models.fast_operators import Dropout, attention, drop

ARCHITECTURES = ("bert", "bert_preln", "gpt")


def model(architecture: str, p: float = 0.1) -> LanguageModel:
    torch.manual_seed(1)
    return build(
        architecture, 2, 32, Vocabulary(60, ("a", "b")), 18, head_size=16, dropout=p
    ).train()


TOKENS, DOMAINS = torch.arange(4, 4 + 3 * 17).view(3, 17), torch.zeros(3, dtype=torch.long)
POSITIONS = torch.arange(1, 9).expand(3, 8)


def logits(network: LanguageModel) -> torch.Tensor:
    return network(TOKENS, DOMAINS, POSITIONS)


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_drops_a_share_and_scales_the_rest(p, dtype):
    """Oracle: the number of zeros is binomial (within six standard deviations), and all other
    elements are 1 / (1 - p), so that the mean stays.
    """
    torch.manual_seed(0)
    ones = torch.ones(1000, 1000, dtype=dtype)
    dropped = drop(ones, p).double()
    zeros = (dropped == 0).double().mean().item()
    assert abs(zeros - p) < 6 * math.sqrt(p * (1 - p) / ones.numel()) + 1 / dropout.LEVELS
    rest = dropped[dropped != 0]
    assert rest.min() == rest.max() and abs(rest[0] * (1 - p) - 1) < (
        1e-4 if dtype == torch.float32 else 4e-3
    )
    neighbours = ((dropped[:, 1:] == 0) & (dropped[:, :-1] == 0)).double().mean().item()
    assert abs(neighbours - p * p) < 6 * math.sqrt(p * p / ones.numel())  # independent


def test_the_gradient_has_the_same_mask():
    """Oracle: d (m x) / d x = m."""
    x = torch.rand(50, 60).add_(0.5).requires_grad_()
    dropped = drop(x, 0.3)
    dropped.sum().backward()
    torch.testing.assert_close(x.grad, (dropped / x).detach())


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_network_drops_where_transformers_does(architecture, monkeypatch):
    """Oracle: transformers' own network with torch's dropout, both with the same masks."""
    fast = model(architecture)
    plain = copy.deepcopy(fast)
    for module in list(plain.modules()):
        for name, child in module.named_children():
            if isinstance(child, Dropout):
                setattr(module, name, torch.nn.Dropout(child.p))
    plain.network.set_attn_implementation("eager")

    def every_other(
        x: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
    ) -> torch.Tensor:
        if not training:
            return x
        kept = torch.arange(x.numel()).view(x.shape) % 7 > 0
        return x * kept / (1 - p)

    monkeypatch.setattr(F, "dropout", every_other)
    monkeypatch.setattr(dropout, "drop", every_other)
    expected = plain.predict(plain.network.base_model(TOKENS).last_hidden_state, POSITIONS)
    torch.testing.assert_close(logits(fast), expected, rtol=1e-5, atol=1e-5)
    assert not torch.allclose(logits(fast.eval()), expected, atol=1e-3)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("groups", [1, 2])
def test_attention_is_that_of_the_formula(causal, groups, monkeypatch):
    """Oracle: torch's scaled_dot_product_attention. The mask of dropout drops nothing here."""
    monkeypatch.setattr(dropout, "drop", lambda shares, p: shares)
    query, key, value = (
        torch.randn(2, heads, 9, 8, dtype=torch.float64) for heads in (4, 4 // groups, 4 // groups)
    )
    module = torch.nn.Identity()
    output, _ = attention(module, query, key, value, None, dropout=0.1, is_causal=causal)
    expected = F.scaled_dot_product_attention(
        query, key, value, is_causal=causal, enable_gqa=groups > 1
    )
    torch.testing.assert_close(output.transpose(1, 2), expected)
    if not causal:
        padding = torch.ones(2, 1, 9, 9, dtype=torch.bool)
        padding[0, :, :, 6:] = False
        output, _ = attention(module, query, key, value, padding, dropout=0.1, is_causal=False)
        expected = F.scaled_dot_product_attention(query, key, value, padding, enable_gqa=groups > 1)
        torch.testing.assert_close(output.transpose(1, 2), expected)
