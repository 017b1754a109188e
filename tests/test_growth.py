"""Growth keeps the network's function where that is possible, and changes nothing else."""

from __future__ import annotations

import copy
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from benchmark.models.growth import find_places, grow
from benchmark.models.transformer import load_network
from benchmark.settings.base import ConfigError
from tests.support.small_networks import (
    CAUSAL,
    FAMILIES,
    PRE_NORM,
    RMS_FAMILIES,
    TOKENS,
    difference,
    equal_gains,
    network,
)

BERTS = FAMILIES[len(CAUSAL) :]

# ---- the function is kept


@pytest.mark.parametrize("family", BERTS)
@pytest.mark.parametrize("width", [16, 32, 48])
def test_bert_keeps_its_function_at_whole_multiples(family: str, width: int) -> None:
    """Oracle: the old network, in float64. A post-LN network gets no new layers here, because they
    would change it by the LayerNorms' epsilon.
    """
    old = network(family)
    new, _ = grow(old, 2 if family not in PRE_NORM else 4, width)
    assert difference(old, new) < 1e-9


@pytest.mark.parametrize("family", ["roberta", "bert"])
def test_new_post_norm_layers_read_what_their_source_would(family: str) -> None:
    """Oracle: W (g u + b) + c for a normalised vector u: the source's map (W, c) after the
    LayerNorm before it (gain g, bias b). The new layer adds nothing yet.
    """
    old = network(family)
    new, record = grow(old, 3, 16)
    index = record.layer_is_copy.index(True)
    source, made = (
        find_places(old).layers[record.layer_sources[index]],
        find_places(new).layers[index],
    )
    u = F.layer_norm(
        torch.randn(7, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(0)), (16,)
    )
    for name, norm in (
        ("attention.query", source.ffn.norm),
        ("attention.value", source.ffn.norm),
        ("ffn.up", source.attention.norm),
    ):
        part = attrgetter(name)
        wanted = part(source).module(u * norm.module.weight + norm.module.bias)
        torch.testing.assert_close(part(made).module(u), wanted)
    with torch.no_grad():
        assert (
            made.attention.output.module(u).abs().max()
            == made.ffn.down.module(u.repeat(1, 3)).abs().max()
            == 0
        )


def hidden_error(old: Any, new: Any) -> float:
    with torch.no_grad():
        before = old.base_model(TOKENS).last_hidden_state
        after = new.base_model(TOKENS).last_hidden_state[..., : before.shape[-1]]
    return (before - after).abs().max().item()


def test_pre_norm_bert_body_is_kept_to_second_order_at_any_width() -> None:
    """Oracle: the error of the embedding's LayerNorm is quadratic in the spread of its gain: half
    the spread gives a quarter of the error, no spread gives none.
    """
    errors = []
    for spread in (0.02, 0.01, 0.0):
        old = network("roberta-prelayernorm")
        gain = old.base_model.embeddings.LayerNorm.weight
        gain.data.copy_(1.2 + spread * torch.linspace(-1, 1, len(gain)))
        new, _ = grow(old, 3, 28)
        errors.append(hidden_error(old, new))
    assert errors[0] / errors[1] == pytest.approx(4, rel=0.1)
    assert errors[2] < 1e-9


def test_post_norm_body_is_kept_where_the_residual_mean_is_constant() -> None:
    """Oracle: the extra units miss only variations of the residual's mean. Equal gains make that
    mean constant, so that there is no error.
    """
    old = network("roberta")
    equal_gains(old)
    new, _ = grow(old, 2, 28)
    assert hidden_error(old, new) < 1e-9


@pytest.mark.parametrize("family", BERTS)
def test_calibration_fits_the_head(family: str) -> None:
    """Oracle: the old network, on tokens that the calibration did not see. A fit that generalises
    has a smaller error than plain copies.

    Equal gains leave the head as the only source of error.
    """
    old = network(family, spread=0.1)
    equal_gains(old)
    with torch.no_grad():
        old.get_output_embeddings().weight.mul_(10)  # logits of a trained network's size
    calibration = torch.randint(4, 23, (300, 9), generator=torch.Generator().manual_seed(8))
    fitted, _ = grow(old, 2, 24, calibration=calibration)
    copies, _ = grow(old, 2, 24)
    assert difference(old, fitted) < 0.2 * difference(old, copies)
    with (
        torch.no_grad()
    ):  # without a fit the logits are at least not smaller or larger on the whole
        before, after = old(TOKENS).logits, copies(TOKENS).logits
    assert (before * after).sum() / before.square().sum() == pytest.approx(1, abs=0.1)


def gradients_of_twins(new: Any) -> Tensor:
    """Cosines between gradients of the first layer's feed-forward units and of their copies, in a
    network of twice the width.
    """
    F.cross_entropy(new(TOKENS).logits[:, :-1].flatten(0, 1), TOKENS[:, 1:].flatten()).backward()
    linear = new.transformer.h[0].mlp.c_fc
    twin = (linear.bias[64:].unsqueeze(1) == linear.bias[:64]).nonzero()[:, 1]
    return F.cosine_similarity(linear.weight.grad.T[64:], linear.weight.grad.T[:64][twin])


def test_exact_growth_breaks_the_symmetry_of_copies() -> None:
    """Oracle: copies whose outgoing weights are equal shares get equal gradients for ever, which is
    why FPI adds noise. Unequal shares give other gradients.

    The cosine matters, because under Adam proportional gradients would still give equal steps.
    """
    old = network("gpt2")
    assert gradients_of_twins(grow(old, 2, 32, mode="fpi")[0]).min() > 1 - 1e-9
    assert gradients_of_twins(grow(old, 2, 32)[0]).max() < 1 - 1e-3


# ---- what else must hold


@pytest.mark.parametrize("family", FAMILIES + RMS_FAMILIES)
def test_a_grown_model_survives_saving(family: str, tmp_path: Path) -> None:
    """Oracle: the model before saving. Growth rescales epsilon, which the configuration holds."""
    new, _ = grow(network(family), 3, 24)
    new.save_pretrained(tmp_path)
    again = load_network(tmp_path).double()
    assert difference(new, again) < 1e-12
    epsilons: set[Any] = {
        getattr(module, "variance_epsilon", getattr(module, "eps", None))
        for module in again.modules()
    }
    assert sorted(epsilons - {None}) == pytest.approx([1e-5 * (16 / 24)], rel=1e-12)


@pytest.mark.parametrize("mode", ["fpi", "exact"])
@pytest.mark.parametrize("family", FAMILIES + RMS_FAMILIES)
def test_growth_touches_nothing_else(family: str, mode: Any) -> None:
    """Oracle: the state before: old weights, configuration, dtype, training mode, torch's random
    numbers.
    """
    old = network(family, tie_word_embeddings=False).float().train()
    weights, random = copy.deepcopy(old.state_dict()), torch.random.get_rng_state()
    new, _ = grow(old, 3, 24, mode=mode, calibration=TOKENS)
    assert torch.equal(random, torch.random.get_rng_state())
    assert all(torch.equal(weight, old.state_dict()[name]) for name, weight in weights.items())
    assert old.training and new.training and new.dtype == torch.float32
    sizes = {"hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size"}
    sizes |= {
        "n_embd",
        "n_layer",
        "n_head",
        "layer_norm_eps",
        "layer_norm_epsilon",
        "norm_eps",
        "rms_norm_eps",
    }
    sizes |= {"num_key_value_heads", "layer_types", "no_rope_layers"}
    before, after = old.config.to_dict(), new.config.to_dict()
    assert {key for key in before if before[key] != after[key]} <= sizes
    if family != "gpt2":
        assert after["intermediate_size"] == 3 * 24


def test_errors_say_what_is_possible() -> None:
    """Oracle: the words a user needs: the bad value, what is possible instead."""
    old = network("gpt2")
    for arguments, message in (
        ((1, 16), "L2_D16 to L1_D16: neither size may fall"),
        ((2, 12), "L2_D16 to L2_D12"),
        ((2, 22), "L2_D22: .* multiple of 4,"),
    ):
        with pytest.raises(ConfigError, match=message):
            grow(old, *arguments)
    with pytest.raises(ConfigError, match=r"\(transformer\.h\.0\.crossattention"):
        grow(network("gpt2", add_cross_attention=True), 3, 16)
