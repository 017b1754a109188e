"""Networks as growth sees them: where their weights are, and a larger one to write them into."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from benchmark.models import architectures
from benchmark.models.architecture import Architecture
from benchmark.models.growth_width import Heads
from benchmark.models.layout import Affine, Layer, Network, Place, Recipe
from benchmark.models.weight_files import WeightFiles
from benchmark.settings.base import ConfigError


def architecture_of(network: PreTrainedModel) -> Architecture:
    """Raises ConfigError for what is no language model of a known architecture."""
    architecture = architectures.of(network.config.model_type)
    if type(network) not in architecture.families:
        names = ", ".join(family.__name__ for family in architecture.families)
        raise ConfigError(f"cannot grow a {type(network).__name__}; can grow: {names}")
    return architecture


def places(network: PreTrainedModel) -> Network[Place]:
    """Where everything stands. Raises ConfigError for a network with other parts than a known language model's."""
    architecture = architecture_of(network)
    found = architecture.places(network)
    known = {id(parameter) for place in found.parts() for parameter in place.module.parameters()}
    other = [
        name
        for name, parameter in network.named_parameters()
        if id(parameter) not in known and name not in architecture.unused
    ]
    if other:
        raise ConfigError(
            f"cannot grow this {type(network).__name__}: it has more than a plain one ({other[0]}): take another "
            "method's"
        )
    return found


def placed(layers: Iterable[Layer[Recipe]], new: Sequence[Layer[Place]]) -> Iterator[tuple[Place, Affine]]:
    """The weights of layers, one after the other, and where they belong."""
    for layer, into in zip(layers, new, strict=True):
        norm = into.attention.norm
        if norm is not None and layer.attention.norm is None:  # a copy of ModernBERT's first layer
            yield norm, Affine(torch.ones(norm.shape), torch.zeros(norm.shape))
            into.attention.norm = None
        for place, recipe in zip(into.parts(), layer.parts(), strict=True):
            yield place, recipe()


def epsilon(network: PreTrainedModel) -> float:
    """The epsilon of the network's norms."""
    return getattr(network.config, architecture_of(network).epsilon)


def heads(config: Any) -> Heads:
    """The attention heads of a network of this configuration."""
    groups = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return Heads(size, groups, config.num_attention_heads // groups)


def width_step(config: Any) -> int:
    """What the hidden size of a larger network is a multiple of: heads, or groups of them, are copied whole."""
    return config.hidden_size // math.gcd(config.hidden_size, heads(config).groups)


def enlarged(
    network: PreTrainedModel, sources: Sequence[int], hidden_size: int, eps: float, files: WeightFiles | None = None
) -> PreTrainedModel:
    """A network of the new size like the old one, its weights still to be written; `eps` is that of all norms.

    `sources`: of each new layer the old one whose kind it has. `files`: where its weights lie, if not in memory.
    """
    architecture = architecture_of(network)
    config = copy.deepcopy(network.config)
    old_size = config.hidden_size
    for key in architecture.widths:
        if getattr(config, key, None) is not None:  # GPT-2's feed-forward size: None stands for 4 D
            setattr(config, key, getattr(config, key) * hidden_size // old_size)
    config.num_hidden_layers = len(sources)
    if getattr(config, "layer_types", None) is not None:  # which of them attend locally
        config.layer_types = [config.layer_types[source] for source in sources]
    setattr(config, architecture.epsilon, eps)
    family: Any = type(network)
    with torch.device("meta"):  # its initial weights would be overwritten: drawing them takes as long as the growth
        larger = family(config)
    larger.to(dtype=network.dtype).train(network.training)
    for name, buffer in network.named_buffers():  # rotations and the like, which no size changes
        owner, _, key = name.rpartition(".")
        larger.get_submodule(owner)._buffers[key] = buffer.clone()
    if files:
        files.hold(larger)
    else:
        _hold(larger, network.device)
    return larger


def _hold(network: PreTrainedModel, device: torch.device) -> None:
    """Give the parameters of a network without weights memory, tied ones the same. What is never written to is 0."""
    held: dict[Tensor, nn.Parameter] = {}
    for module in network.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                if parameter not in held:
                    held[parameter] = nn.Parameter(torch.zeros_like(parameter, device=device))
                module._parameters[name] = held[parameter]
