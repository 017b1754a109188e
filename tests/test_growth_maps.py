"""Where the units and layers of a grown network come from: FPI, the history of copied layers."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

from benchmark.data.tokenizer import Vocabulary
from benchmark.models import architectures, build
from benchmark.models.architectures import Affine, list_parts
from benchmark.models.growth import find_places, grow
from benchmark.models.growth.width import Fpi, Heads
from benchmark.settings.names import list_architecture_names
from tests.support.small_networks import FAMILIES, difference, network

# ---- width


def tensor(values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_new_units_of_a_norm_are_zero() -> None:
    """Oracle: LEMON's average expansion: a new unit's input is the mean, which the norm subtracts,
    and its bias is 0.
    """
    grown, _ = grow(network("gpt2"), 2, 24)
    norm: Any = find_places(grown).layers[0].attention.norm
    assert norm.read().bias[:16].all() and not norm.read().bias[16:].any()


def test_fpi_divides_by_the_number_of_copies() -> None:
    """Oracle: fixed numbers from bert2BERT's formula with given index maps."""
    weight = [
        [0.150390625, -0.6884765625, 1.218017578125],
        [-0.786376953125, 0.189208984375, 0.307373046875],
    ]
    expected = [
        [
            0.150390625,
            -0.34423828125,
            1.218017578125 / 3,
            1.218017578125 / 3,
            -0.34423828125,
            1.218017578125 / 3,
        ],
        [
            -0.786376953125,
            0.0946044921875,
            0.102457682291666,
            0.102457682291666,
            0.0946044921875,
            0.102457682291666,
        ],
        [
            0.150390625,
            -0.34423828125,
            1.218017578125 / 3,
            1.218017578125 / 3,
            -0.34423828125,
            1.218017578125 / 3,
        ],
    ]
    fpi = Fpi(3, 6, Heads(1, 3), torch.Generator())
    wide = fpi.widen_linear(
        Affine(tensor(weight), tensor([1, 2])),
        torch.tensor([0, 1, 2, 2, 1, 2]),
        torch.tensor([0, 1, 0]),
    )
    torch.testing.assert_close(wide.weight, tensor(expected))
    assert wide.bias.tolist() == [1, 2, 1]


@pytest.mark.parametrize("family", FAMILIES)
def test_fpi_keeps_the_function_where_all_units_have_equally_many_copies(family: str) -> None:
    """Oracle: the old network's output. A tied head that is divided twice, or a division on the
    wrong side, would change it.
    """
    old = network(family)
    for width in (32, 48):
        new, _ = grow(old, 2, width, mode="fpi")
        assert difference(old, new) < 1e-9


def hidden_origin(old: Any, new: Any) -> Tensor:
    """The old unit of each new one, read off the copied embedding."""
    before, after = old.get_input_embeddings().weight, new.get_input_embeddings().weight
    return (after.T.unsqueeze(1) == before.T.unsqueeze(0)).all(-1).nonzero()[:, 1]


def test_hidden_units_are_drawn_evenly_and_differently_by_seed() -> None:
    """Oracle: the definition: identity on the old units, copy counts that differ by at most one."""
    old = network("gpt2")
    origins = [hidden_origin(old, grow(old, 2, 44, mode="fpi", seed=seed)[0]) for seed in (0, 0, 1)]
    assert origins[0][:16].tolist() == list(range(16))
    assert set(torch.bincount(origins[0]).tolist()) == {2, 3}
    assert torch.equal(origins[0], origins[1]) and not torch.equal(origins[0], origins[2])


@pytest.mark.parametrize("family", FAMILIES)
def test_half_of_transformers_standard_deviation_is_the_noise_of_the_released_code(
    family: str,
) -> None:
    """Oracle: the released code's standard deviation of 0.01, added here to growth without noise,
    bit for bit.

    Matrices draw their noise one after the other from a generator of the growth's seed, layers
    first. Only the columns of units with C > 1 copies get it, as in the paper's equation. Norms,
    biases and tables do not.
    """
    old = network(family)
    assert old.config.initializer_range == 0.02
    plain, noisy = (grow(old, 3, 20, mode="fpi", noise=noise, seed=7)[0] for noise in (0.0, 0.5))
    quiet, loud = find_places(plain), find_places(noisy)
    generator = torch.Generator().manual_seed(7)
    for name in ("layers", "head"):
        parts = (list_parts(getattr(grown, name)) for grown in (quiet, loud))
        for without, with_noise in zip(*parts, strict=True):
            expected, actual = without.read().weight, with_noise.read().weight
            if expected.dim() == 2:
                drawn = torch.randn(expected.shape, generator=generator, dtype=torch.float64)
                expected = expected + 0.01 * drawn * (actual != expected).any(0)
            assert torch.equal(actual, expected), name
    assert generator.get_state().ne(torch.Generator().manual_seed(7).get_state()).any()
    origin = hidden_origin(old, plain)
    split = torch.bincount(origin)[origin] > 1
    assert split.sum() == 8
    for without, with_noise in zip(quiet.layers, loud.layers, strict=True):
        changed = without.ffn.up.read().weight != with_noise.ffn.up.read().weight
        assert torch.equal(changed.any(0), split)
    tables: list[Any] = [model.get_input_embeddings() for model in (noisy, plain)]
    assert torch.equal(tables[0].weight, tables[1].weight)
    unsplit, _ = grow(old, 2, 16, mode="fpi", noise=0.5)
    assert difference(old, unsplit) < 1e-9


@pytest.mark.parametrize("architecture", list_architecture_names())
def test_noise_is_a_share_of_what_new_weights_have(architecture: str) -> None:
    """Oracle: the formula: a standard deviation of 0.5 / sqrt(inputs), divided by sqrt(2 layers)
    for matrices that write to the residual stream. A second growth uses the size before it.
    """
    torch.manual_seed(0)
    model = build(
        architecture, 2, 64, Vocabulary(50), sequence_length=16, head_size=16, scaled=True
    ).network
    for width in (96, 128):
        size, layers = model.config.hidden_size, model.config.num_hidden_layers
        quiet, loud = (
            grow(model, layers + 1, width, mode="fpi", noise=noise, seed=1)[0]
            for noise in (0.0, 0.5)
        )
        for without, with_noise in zip(
            find_places(quiet).layers, find_places(loud).layers, strict=True
        ):
            for part, name, inputs in (
                ("attention", "query", size),
                ("ffn", "up", size),
                ("attention", "output", size * 2 * layers),
                ("ffn", "down", 4 * size * 2 * layers),
            ):
                places = (getattr(getattr(layer, part), name) for layer in (without, with_noise))
                plain, noisy = (place.read().weight for place in places)
                noise = (noisy - plain)[noisy != plain]
                assert noise.std().item() == pytest.approx(0.5 * inputs**-0.5, rel=0.1), name
        model = loud


# ---- depth


def test_no_layer_is_copied_again_before_all_were() -> None:
    """Oracle: the test's own list of used layers, over the paper's ladder of 6, 8, 10, 11 and 12
    layers, and on to 16, with the copied layers given to each growth as after a restart.
    """
    model = network("gpt2", layers=6, width=4)
    used = [False] * 6
    copied: list[int] = []
    for layers in (8, 10, 11, 12, 13, 16):
        model, record = grow(model, layers, 4, copied=copied, seed=layers)
        assert [
            s
            for s, is_copy in zip(record.layer_sources, record.layer_is_copy, strict=True)
            if not is_copy
        ] == [*range(len(used))]
        for position, is_copy in enumerate(record.layer_is_copy):
            if is_copy:
                source = record.layer_sources[position]
                assert record.layer_sources[position - 1] == source  # directly after it
                if all(used):
                    used = [False] * len(used)
                assert not used[source]
        copies = [
            s
            for s, is_copy in zip(record.layer_sources, record.layer_is_copy, strict=True)
            if is_copy
        ]
        assert len(copies) == len(set(copies))
        used = [used[source] or source in copies for source in record.layer_sources]
        copied = list(record.copied)
        assert copied == [layer for layer, flag in enumerate(used) if flag]


@pytest.mark.parametrize("choice, source", [("first", 0), ("last", 2)])
def test_first_and_last_layers(choice: Any, source: int) -> None:
    """Oracle: the paper's two variants of depth expansion, whatever was copied before."""
    _, record = grow(network("gpt2", layers=3, width=4), 5, 4, copy=choice, copied=[source])
    assert record.layer_sources == sorted([0, 1, 2, source, source])


@pytest.mark.parametrize("family", FAMILIES)
def test_fpi_depth_is_a_plain_copy(family: str) -> None:
    """Oracle: the old network, run with its layers in the recorded order. The second layer is
    copied, because ModernBERT's first layer lacks a norm that its copy would need.
    """
    old = network(family)
    new, record = grow(old, 3, 16, mode="fpi", copied=[0])
    by_hand = copy.deepcopy(old)
    architecture = architectures.find(old.config.model_type)
    stack = architecture.layers(by_hand)
    layers = torch.nn.ModuleList(copy.deepcopy(stack[source]) for source in record.layer_sources)
    by_hand.base_model.set_submodule(architecture.stack, layers)
    assert difference(by_hand, new) < 1e-9
