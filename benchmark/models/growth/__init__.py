"""Growing a language model in width and depth.

The mode `fpi` is the paper's. `exact` keeps the model's function. `aki` is `fpi` with new units
from the layer above.
"""

from __future__ import annotations

import copy as copying
import math
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from typing import Any, Literal

import torch
from torch import Tensor
from transformers import PreTrainedModel

from benchmark.devices import evaluating
from benchmark.ledger.records import GrowthRecord
from benchmark.models import architectures
from benchmark.models.architectures import Affine, Architecture, Layer, Network, Place, list_parts
from benchmark.models.growth.exact import Exact, Fit, Padding, fit_head, silence_copies
from benchmark.models.growth.width import Aki, Copy, Fpi, Heads, Width, plan_layers
from benchmark.settings.base import ConfigError

Mode = Literal["exact", "fpi", "aki"]
_CALIBRATION_STATES = 4096  # enough to fit the head's extra units. More only costs time


@torch.no_grad()
def grow(
    network: PreTrainedModel,
    layers: int,
    hidden_size: int,
    *,
    mode: Mode = "exact",
    noise: float = 0.0,
    copy: Copy = "new",
    copied: Sequence[int] = (),
    seed: int = 0,
    calibration: Tensor | None = None,
) -> tuple[PreTrainedModel, GrowthRecord]:
    """A larger copy of a language model of a known architecture.

    The given network is not changed. Heads keep their size, and the FFN keeps its multiple of the
    hidden size. Dropout, dtype, device and the rest of the configuration stay the same. torch's
    global random state is neither used nor changed.

    Args:
        layers, hidden_size: the new size.
        mode: "exact" keeps the function if the architecture allows it, and comes close if not.
            "fpi" is the paper's width expansion with plain copies of layers. "aki" is "fpi" with
            new units from the layer above.
        noise: standard deviation of the noise on split units (fpi only), as a share of the
            matrix's standard deviation in a new network of the old size
            (`architectures.find_initial_std`).
        copy: which layers to copy: "new" draws layers that were never copied, "first" and "last"
            always copy that layer, "stack" puts the whole stack on top of itself.
        copied: layers of `network` that were copied before (`copied` in the GrowthRecord of its
            last growth).
        calibration: (B, T) token ids, masked as in training. Exact growth of a BERT fits the LM
            head's extra units to them, unless the new width is a whole multiple of the old one.

    Raises ConfigError if the network cannot be grown to this size, and says what is possible.
    """
    _check_size(network, layers, hidden_size)
    generator = torch.Generator().manual_seed(seed)
    sources, is_copy, copied_now = plan_layers(
        network.config.num_hidden_layers, layers, copy, copied, generator
    )
    width = _make_width(network, hidden_size, generator, mode, noise, calibration)
    epsilon = read_epsilon(network) * width.variance
    larger = build_larger(network, sources, hidden_size, epsilon)
    old = find_places(network)
    new = find_places(larger)
    wide = width.widen_layers(old.layers, sources)
    if mode == "exact":
        wide = silence_copies(wide, is_copy, find_architecture(network).post_norm)
    for place, weights in chain(place_layers(wide, new.layers), width.widen_ends(old, new)):
        place.write(weights)

    return larger, GrowthRecord(
        layer_sources=sources,
        layer_is_copy=is_copy,
        head_sources=width.head_sources,
        copied=copied_now,
    )


def _make_width(
    network: PreTrainedModel,
    hidden_size: int,
    generator: torch.Generator,
    mode: Mode,
    noise: float,
    calibration: Tensor | None,
) -> Width:
    config = network.config
    sizes: dict[str, Any] = {
        "old": config.hidden_size,
        "new": hidden_size,
        "heads": read_heads(config),
        "generator": generator,
    }
    if mode == "fpi":
        return Fpi(**sizes, noise=noise, config=config)
    if mode == "aki":
        return Aki(**sizes)
    architecture = find_architecture(network)
    if architecture.rms_norm:
        return Padding(**sizes, tied=config.tie_word_embeddings)
    fit = _make_fit(network, hidden_size, calibration)
    return Exact(**sizes, post_norm=architecture.post_norm, fit=fit)


def _make_fit(network: PreTrainedModel, hidden_size: int, rows: Tensor | None) -> Fit | None:
    """The function that fits the LM head's extra units to the states of token ids (B, T).

    Returns None if there are no token ids, no LM head, or no extra units.
    """
    if rows is None or find_places(network).head is None:
        return None
    if hidden_size % network.config.hidden_size == 0:
        return None
    count = -(-_CALIBRATION_STATES // rows.shape[1])
    tokens = rows[:count].to(network.device)
    with evaluating(network):
        states = network.base_model(tokens).last_hidden_state.flatten(0, 1)
    activation = find_architecture(network).find_activation(network)
    return partial(fit_head, states.double().cpu(), activation, read_epsilon(network))


def _check_size(network: PreTrainedModel, layers: int, hidden_size: int) -> None:
    config = network.config
    step = find_width_step(config)
    is_smaller = layers < config.num_hidden_layers or hidden_size < config.hidden_size
    copies_nothing = layers > 0 and config.num_hidden_layers == 0
    if is_smaller or copies_nothing or hidden_size % step:
        raise ConfigError(
            f"cannot grow L{config.num_hidden_layers}_D{config.hidden_size} to "
            f"L{layers}_D{hidden_size}: neither size may fall, a network without layers has none "
            f"to copy, and the hidden size must be a multiple of {step}, what a head takes, or the "
            "heads that share a key's"
        )


def find_architecture(network: PreTrainedModel) -> Architecture:
    """The architecture of a network. Raises ConfigError for an unknown one."""
    return architectures.find(network.config.model_type)


def find_places(network: PreTrainedModel) -> Network[Place]:
    """Where the weights of a network are.

    Raises ConfigError for a parameter that a plain network of its architecture does not have.
    """
    architecture = find_architecture(network)
    places = architecture.find_places(network)
    placed: set[int] = set()
    for place in list_parts(places):
        placed.update(map(id, place.module.parameters()))
    for name, parameter in network.named_parameters():
        if id(parameter) not in placed and name not in architecture.unused:
            raise ConfigError(
                f"cannot grow this {type(network).__name__}: it has more than a plain one "
                f"({name}): take another method's"
            )
    return places


def place_layers(
    layers: Iterable[Layer[Affine]], new: Sequence[Layer[Place]]
) -> Iterator[tuple[Place, Affine]]:
    """The weights of layers, one after the other, each with the place where it belongs."""
    for layer, place in zip(layers, new, strict=True):
        norm = place.attention.norm
        if norm is not None and layer.attention.norm is None:  # a copy of ModernBERT's first layer
            yield norm, Affine(torch.ones(norm.shape), torch.zeros(norm.shape))
            place.attention.norm = None
        yield from zip(list_parts(place), list_parts(layer), strict=True)


def read_epsilon(network: PreTrainedModel) -> float:
    return getattr(network.config, find_architecture(network).epsilon)


def read_heads(config: Any) -> Heads:
    """The attention heads of a network of this configuration."""
    heads = config.num_attention_heads
    key_heads = getattr(config, "num_key_value_heads", None) or heads
    size = getattr(config, "head_dim", None) or config.hidden_size // heads
    norms_all = architectures.find(config.model_type).norms_all_heads
    return Heads(
        size=size, key_heads=key_heads, ratio=heads // key_heads, normed_together=norms_all
    )


def find_width_step(config: Any) -> int:
    """The number whose multiples a larger network may have as its hidden size.

    A head is copied whole, and query heads that share a key head are copied together.
    """
    return config.hidden_size // math.gcd(config.hidden_size, read_heads(config).key_heads)


def build_larger(
    network: PreTrainedModel, sources: Sequence[int], hidden_size: int, eps: float
) -> PreTrainedModel:
    """A network like the old one, of the new size, with all parameters zero.

    `sources` has for each new layer the old layer whose kind it gets. All norms get the epsilon
    `eps`.
    """
    architecture = find_architecture(network)
    config = copying.deepcopy(network.config)
    old_size = config.hidden_size
    for key in architecture.widths:
        if getattr(config, key, None) is not None:  # GPT-2's feed-forward size: None stands for 4 D
            setattr(config, key, getattr(config, key) * hidden_size // old_size)
    config.num_hidden_layers = len(sources)
    for key in architecture.layer_keys:  # for example which layers attend locally
        if getattr(config, key, None) is not None:
            setattr(config, key, [getattr(config, key)[source] for source in sources])
    setattr(config, architecture.epsilon, eps)
    family: Any = type(network)
    # without initial weights: they would be overwritten, and drawing them takes as long as growth
    with torch.device("meta"):
        larger = family(config)
    larger.to(network.dtype).to_empty(device=network.device).train(network.training)
    larger.tie_weights()
    for parameter in larger.parameters():
        parameter.zero_()
    for name, buffer in network.named_buffers():  # for example of rotary positions
        owner, _, key = name.rpartition(".")
        larger.get_submodule(owner)._buffers[key] = buffer.clone()
    architecture.set_buffers(larger)
    return larger
