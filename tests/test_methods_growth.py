"""Controls that grow in another way than ELLE: stacking and advanced knowledge initialisation."""

from __future__ import annotations

import copy
from operator import attrgetter

import pytest
import torch

from benchmark.data.tokenizer import Vocabulary
from benchmark.models import build
from benchmark.models.architectures import Place, list_parts, map_parts
from benchmark.models.growth import find_places, grow

LINEARS = (
    "attention.query",
    "attention.key",
    "attention.value",
    "attention.output",
    "ffn.up",
    "ffn.down",
)


def network(architecture: str, layers: int):
    """A language model with hidden size 32, whose biases are not 0 and whose gains are not 1."""
    torch.manual_seed(0)
    made = build(architecture, layers, 32, Vocabulary(50, ("a",)), 18, head_size=16).network
    for parameter in made.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    return made


def read(grown):
    return map_parts(find_places(grown), Place.read)


@pytest.mark.parametrize("architecture", ["gpt", "bert"])
def test_stacking_repeats_the_stack(architecture: str) -> None:
    """Oracle: layer i of the grown model is layer i mod 2 of the old one, weight for weight; the
    rest is unchanged.
    """
    old = network(architecture, 2)
    grown, record = grow(old, 5, 32, mode="fpi", copy="stack")
    assert record.layer_sources == [0, 1, 0, 1, 0] and record.layer_is_copy == [
        False,
        False,
        True,
        True,
        True,
    ]
    before, after = read(old), read(grown)
    for number, layer in enumerate(after.layers):
        for new, source in zip(
            list_parts(layer), list_parts(before.layers[number % 2]), strict=True
        ):
            assert torch.equal(new.weight, source.weight) and torch.equal(new.bias, source.bias)
    for new, source in zip(after.tables, before.tables, strict=True):
        assert torch.equal(new.weight, source.weight)


@pytest.mark.parametrize("architecture", ["gpt", "bert", "bert_preln"])
def test_new_units_come_from_the_layer_above(architecture: str) -> None:
    """Oracle: FPI with the same seed: old units equal those of FPI of the network, new units those
    of FPI of the network with each layer replaced by the layer above it.
    """
    old = network(architecture, 3)
    moved = copy.deepcopy(old)
    stands = find_places(moved).layers
    for place, above in zip(stands, read(old).layers[1:], strict=False):
        for part, weights in zip(list_parts(place), list_parts(above), strict=True):
            part.write(weights)
    aki, _ = grow(old, 3, 48, mode="aki", seed=5)
    own, upper = (read(grow(each, 3, 48, mode="fpi", seed=5)[0]) for each in (old, moved))
    grown = read(aki)
    for number, layer in enumerate(grown.layers):
        for name in LINEARS:
            new, low, high = (
                attrgetter(name)(each) for each in (layer, own.layers[number], upper.layers[number])
            )
            kept = 128 if name == "ffn.up" else 32
            for kind in ("weight", "bias"):
                expected = torch.cat([getattr(low, kind)[:kept], getattr(high, kind)[kept:]])
                assert torch.equal(getattr(new, kind), expected), (number, name)
            assert torch.equal(new.weight, low.weight) == (
                number == 2
            )  # no layer is above the top layer
        for name in ("attention.norm", "ffn.norm"):
            assert torch.equal(
                attrgetter(name)(layer).weight, attrgetter(name)(own.layers[number]).weight
            )
    assert torch.equal(grown.tables[0].weight, own.tables[0].weight)
