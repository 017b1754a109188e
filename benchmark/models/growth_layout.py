"""Networks as growth sees them: where their weights are, and a larger one to write them into."""

from __future__ import annotations

import copy
from typing import Any

import torch
from transformers import PreTrainedModel

from benchmark.models import architectures
from benchmark.models.architecture import Architecture
from benchmark.models.layout import Network, Place
from benchmark.settings.config import ConfigError


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
        raise ConfigError(f"cannot grow this {type(network).__name__}: it has more than a plain one ({other[0]})")
    return found


def epsilon(network: PreTrainedModel) -> float:
    """The epsilon of the network's norms."""
    return getattr(network.config, architecture_of(network).epsilon)


def enlarged(network: PreTrainedModel, layers: int, hidden_size: int, eps: float) -> PreTrainedModel:
    """A network of the new size like the old one, its weights still to be written; `eps` is that of all norms."""
    architecture = architecture_of(network)
    config = copy.deepcopy(network.config)
    old_size = config.hidden_size
    for key in architecture.widths:
        if getattr(config, key) is not None:  # GPT-2's feed-forward size: None stands for 4 D
            setattr(config, key, getattr(config, key) * hidden_size // old_size)
    config.num_hidden_layers = layers
    setattr(config, architecture.epsilon, eps)
    with torch.random.fork_rng(devices=[]):  # its initial weights are overwritten, so they must not cost random numbers
        family: Any = type(network)
        larger = family(config)
    return larger.to(device=network.device, dtype=network.dtype).train(network.training)
