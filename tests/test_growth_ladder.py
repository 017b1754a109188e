"""Exact growth along a ladder: the same function on every rung, and everything new learns."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from benchmark.models.growth import find_architecture, find_places, grow, read_heads
from tests.support.small_networks import (
    CAUSAL,
    PRE_NORM,
    RMS_FAMILIES,
    TOKENS,
    exact_norms,
    network,
)

LADDER: dict[str, tuple[tuple[int, int], ...]] = dict.fromkeys(
    (*RMS_FAMILIES, *CAUSAL), ((3, 24), (3, 40), (5, 48))
)
LADDER.update(dict.fromkeys(PRE_NORM[2:], ((3, 32), (5, 64))))  # exact at whole multiples
EVERY = [(family, tied) for family in LADDER for tied in (True, False)]


def logits(model: Any) -> Tensor:
    with torch.no_grad():
        return model(TOKENS).logits


@pytest.mark.parametrize(("family", "tied"), EVERY)
def test_every_rung_computes_what_the_first_did(family: str, tied: bool) -> None:
    """Oracle: the model of the first rung: all larger ones have its logits, in fp32 and fp64."""
    first = network(family, tie_word_embeddings=tied)
    spread = logits(first).std()
    assert spread > 0.3
    model, copied = first, list[int]()
    for layers, width in LADDER[family]:
        model, record = grow(model, layers, width, copied=copied)
        copied = record.copied
        assert model.config.hidden_size == width
        with exact_norms():
            torch.testing.assert_close(logits(model), logits(first), rtol=0, atol=1e-10)
        single, grown = copy.deepcopy(first).float(), copy.deepcopy(model).float()
        torch.testing.assert_close(
            logits(grown), logits(single), rtol=0, atol=1e-5 * max(1, float(spread))
        )


def moved(tensor: Tensor) -> Tensor:
    return tensor.abs() > 0


@pytest.mark.parametrize(("family", "tied"), EVERY)
def test_everything_new_learns_from_the_first_step(family: str, tied: bool) -> None:
    """Oracle: autograd: in the first step, each new residual unit, head, feed-forward unit and
    layer has a gradient other than zero. Within ten steps every weight has had one, except for rows
    of tokens and positions that are never read.
    """
    layers, width = LADDER[family][0]
    old = network(family, tie_word_embeddings=tied)
    new, record = grow(old, layers, width)
    grown, before = find_places(new), find_places(old)
    optimizer = torch.optim.Adam(new.parameters(), lr=1e-3)
    ever = {
        name: torch.zeros_like(parameter, dtype=torch.bool)
        for name, parameter in new.named_parameters()
    }
    for step in range(10):
        optimizer.zero_grad()
        F.cross_entropy(
            new(TOKENS).logits[:, :-1].flatten(0, 1), TOKENS[:, 1:].flatten()
        ).backward()
        for name, parameter in new.named_parameters():
            if name not in find_architecture(new).unused:
                ever[name] |= moved(parameter.grad)
        if step == 0:
            written = moved(grown.tables[0].module.weight.grad).any(0)
            for is_copy, layer in zip(record.layer_is_copy, grown.layers, strict=True):
                output, down = (
                    gradient(place) for place in (layer.attention.output, layer.ffn.down)
                )
                last = [(layer.attention.output_norm, output), (layer.ffn.output_norm, down)]
                for norm, written_by in last:
                    # a new layer that normalises its output learns the norm's gain first
                    learns: Any = written_by
                    if is_copy and norm:
                        learns = moved(norm.module.weight.grad)
                    assert learns.any()
                written |= output.any(1) | down.any(1)
                small = before.layers[0]
                if not is_copy:
                    assert output[:, small.attention.output.read().weight.shape[1] :].any(0).all()
                    assert down[:, small.ffn.down.read().weight.shape[1] :].any(0).all()
            assert written[16:].all()
        optimizer.step()
    for name, parameter in new.named_parameters():
        whole = any(parameter is table.module.weight for table in (*grown.tables, grown.decoder))
        rows = (
            ever[name][ever[name].any(1)] if whole else ever[name]
        )  # of a table, only rows that were read
        assert rows.all() or name in find_architecture(new).unused, (
            f"{name}: {int((~rows).sum())} of {rows.numel()}"
        )
    assert read_heads(new.config).ratio == read_heads(old.config).ratio


def gradient(place: Any) -> Tensor:
    """Where the gradient of a map's weight (out, in) is not zero."""
    weight = place.module.weight
    return moved(weight.grad.T if type(place.module).__name__ == "Conv1D" else weight.grad)
