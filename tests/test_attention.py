"""Attention patterns of heads, and of the heads that they were grown from."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from analysis import model_similarity
from benchmark.models.growth import grow
from tests.support.small_models import large

TOKENS = torch.randint(4, 40, (5, 13), generator=torch.Generator().manual_seed(5))


def of(model: Any) -> Tensor:
    return model_similarity.compute_attention(model, TOKENS, torch.ones(5, dtype=torch.long))


def test_attention_is_that_of_the_first_layers_weights() -> None:
    """Oracle: softmax(q k^T / sqrt(d)), written out for GPT-2's first layer with a causal mask and
    with the prompt of domain b after the first token.
    """
    model = large("gpt")
    block, body = model.network.transformer.h[0], model.network.transformer
    tokens = torch.cat([TOKENS[:, :1], torch.full((5, 1), 41), TOKENS[:, 1:]], dim=1)
    hidden = block.ln_1(body.wte(tokens) + body.wpe.weight[:14])
    q, k, _ = (
        (hidden @ block.attn.c_attn.weight + block.attn.c_attn.bias).view(5, 14, 3, 2, 16).unbind(2)
    )
    scores = torch.einsum("bqhd,bkhd->hbqk", q, k) / 4
    expected = scores.masked_fill(torch.ones(14, 14).triu(1).bool(), -torch.inf).softmax(-1)
    torch.testing.assert_close(of(model)[:2], expected.detach(), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("architecture", "mode", "layers", "width"),
    [
        (
            "bert",
            "fpi",
            2,
            64,
        ),  # every unit is there twice, so LayerNorms keep their mean and variance
        ("gpt", "fpi", 2, 64),
        ("gpt", "exact", 3, 48),  # LEMON keeps a pre-LN network's function at any size
        ("bert_preln", "exact", 2, 64),
        ("gpt_neox", "exact", 3, 48),
        ("llama", "exact", 3, 48),
        ("modernbert", "exact", 3, 64),
    ],
)
def test_a_copy_of_a_head_attends_as_its_source(
    architecture: str, mode: Any, layers: int, width: int
) -> None:
    """Oracle: theory: if growth keeps the input of a layer, a head that is copied whole attends as
    its source does. Copied layers are left out, because they read the output of their source.
    """
    model = large(architecture)
    before = of(model)
    network, growth = grow(model.network, layers, width, mode=mode, seed=1)
    model.set_network(network)
    parents = model_similarity.find_parents(growth.layer_sources, growth.head_sources, 2)
    after = of(model)
    heads = width // 16
    originals = [h for h in range(layers * heads) if not growth.layer_is_copy[h // heads]]
    assert len(originals) == 2 * heads
    torch.testing.assert_close(
        after[originals], before[[parents[h] for h in originals]], rtol=1e-3, atol=1e-5
    )
    assert not torch.allclose(
        after[originals], before[[parents[h] ^ 1 for h in originals]], atol=0.1
    )
