"""One view of the weights of BERT, RoBERTa, pre-LN RoBERTa and GPT-2, so that growth is written once.

Matrices are (out, in), as in nn.Linear, whatever the architecture stores: GPT-2's Conv1D is transposed and its fused
q/k/v matrix counts as three. Shapes: D hidden size, F feed-forward size, V vocabulary.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import (
    BertForMaskedLM,
    GPT2LMHeadModel,
    PreTrainedModel,
    RobertaForMaskedLM,
    RobertaPreLayerNormForMaskedLM,
)
from transformers.pytorch_utils import Conv1D

from benchmark.settings.config import ConfigError

FAMILIES = (BertForMaskedLM, RobertaForMaskedLM, RobertaPreLayerNormForMaskedLM, GPT2LMHeadModel)

T = TypeVar("T")
U = TypeVar("U")


@dataclass
class Layer(Generic[T]):
    """A transformer layer. A pre-LN layer normalises what enters attention and FFN, a post-LN layer their sums."""

    attention_norm: T
    query: T
    key: T
    value: T
    output: T
    ffn_norm: T
    up: T  # (F, D)
    down: T  # (D, F)

    def map(self, function: Callable[[T], U]) -> Layer[U]:
        return Layer(*(function(part) for part in self.parts()))

    def parts(self) -> Iterator[T]:
        return (getattr(self, field.name) for field in fields(self))


@dataclass
class Network(Generic[T]):
    """A language model with an LM head, from input to output. What an architecture does not have is None."""

    tables: list[T]  # (rows, D): embeddings of tokens, positions and, in BERT, types
    embedding_norm: T | None
    layers: list[Layer[T]]
    final_norm: T | None  # pre-LN: of the residual
    head: T | None  # BERT: dense, GELU, then
    head_norm: T | None
    decoder: T  # (V, D)

    def map(self, function: Callable[[T], U]) -> Network[U]:
        def optional(part: T | None) -> U | None:
            return None if part is None else function(part)

        return Network(
            [function(table) for table in self.tables],
            optional(self.embedding_norm),
            [layer.map(function) for layer in self.layers],
            optional(self.final_norm),
            optional(self.head),
            optional(self.head_norm),
            function(self.decoder),
        )

    def parts(self) -> Iterator[T]:
        ends = [*self.tables, self.embedding_norm, self.final_norm, self.head, self.head_norm, self.decoder]
        yield from (part for part in ends if part is not None)
        for layer in self.layers:
            yield from layer.parts()


@dataclass
class Affine:
    """Weight (out, in) and bias (out) of a linear map, (D) and (D) of a LayerNorm, (rows, D) and (0) of a table.

    The bias is empty where there is none.
    """

    weight: Tensor
    bias: Tensor


@dataclass(frozen=True)
class Place:
    """Where an Affine stands in a network. `part` counts the thirds of GPT-2's fused q/k/v."""

    module: nn.Module
    part: int | None = None

    def read(self) -> Affine:
        """A copy in float64, so that sums over many copies cost no precision."""
        weight, bias = self._views()
        return Affine(weight.double().cpu().clone(), bias.double().cpu().clone())

    @torch.no_grad()
    def write(self, affine: Affine) -> None:
        weight, bias = self._views()
        weight.copy_(affine.weight)
        bias.copy_(affine.bias)

    def _views(self) -> tuple[Tensor, Tensor]:
        module: Any = self.module
        weight, bias = module.weight.detach(), getattr(module, "bias", None)
        bias = weight.new_empty(0) if bias is None else bias.detach()
        if isinstance(module, Conv1D):
            weight = weight.T
        if self.part is not None:
            weight, bias = weight.chunk(3)[self.part], bias.chunk(3)[self.part]
        return weight, bias


def places(network: PreTrainedModel) -> Network[Place]:
    """Where everything stands. Raises ConfigError for a network with other parts than a known language model's."""
    if not isinstance(network, FAMILIES):
        names = ", ".join(family.__name__ for family in FAMILIES)
        raise ConfigError(f"cannot grow a {type(network).__name__}; can grow: {names}")
    found = _gpt(network) if isinstance(network, GPT2LMHeadModel) else _bert(network)
    known = {id(parameter) for place in found.parts() for parameter in place.module.parameters()}
    # BERT's decoder reads its bias from a second name of the same parameter
    other = [
        name
        for name, parameter in network.named_parameters()
        if id(parameter) not in known and name not in ("lm_head.bias", "cls.predictions.bias")
    ]
    if other:
        raise ConfigError(f"cannot grow this {type(network).__name__}: it has more than a plain one ({other[0]})")
    return found


def is_post_norm(network: PreTrainedModel) -> bool:
    """Whether the residual itself is normalised."""
    return isinstance(network, BertForMaskedLM | RobertaForMaskedLM)


def enlarged(network: PreTrainedModel, layers: int, hidden_size: int, eps: float) -> PreTrainedModel:
    """A network of the new size like the old one, its weights still to be written; `eps` is that of all LayerNorms."""
    config = copy.deepcopy(network.config)
    old_size = config.hidden_size
    config.num_attention_heads = hidden_size * config.num_attention_heads // old_size
    config.num_hidden_layers = layers
    config.hidden_size = hidden_size
    inner, epsilon = (
        ("n_inner", "layer_norm_epsilon") if config.model_type == "gpt2" else ("intermediate_size", "layer_norm_eps")
    )
    if getattr(config, inner) is not None:  # GPT-2: None stands for 4 D
        setattr(config, inner, getattr(config, inner) * hidden_size // old_size)
    setattr(config, epsilon, eps)
    with torch.random.fork_rng(devices=[]):  # its initial weights are overwritten, so they must not cost random numbers
        family: Any = type(network)
        larger = family(config)
    return larger.to(device=network.device, dtype=network.dtype).train(network.training)


def epsilon(network: PreTrainedModel) -> float:
    """The epsilon of the network's LayerNorms."""
    config = network.config
    return config.layer_norm_epsilon if config.model_type == "gpt2" else config.layer_norm_eps


def head_activation(network: PreTrainedModel) -> Callable[[Tensor], Tensor]:
    """The activation of BERT's LM head."""
    return network.cls.predictions.transform.transform_act_fn if isinstance(network, BertForMaskedLM) else F.gelu


def _bert(network: Any) -> Network[Place]:
    body = network.base_model
    pre_norm = isinstance(network, RobertaPreLayerNormForMaskedLM)
    if isinstance(network, BertForMaskedLM):
        transform = network.cls.predictions.transform
        head, head_norm, decoder = transform.dense, transform.LayerNorm, network.cls.predictions.decoder
    else:
        head, head_norm, decoder = network.lm_head.dense, network.lm_head.layer_norm, network.lm_head.decoder
    tables = body.embeddings
    places = Network[Any](
        [tables.word_embeddings, tables.position_embeddings, tables.token_type_embeddings],
        tables.LayerNorm,
        [
            Layer[Any](
                layer.attention.LayerNorm if pre_norm else layer.attention.output.LayerNorm,
                layer.attention.self.query,
                layer.attention.self.key,
                layer.attention.self.value,
                layer.attention.output.dense,
                layer.intermediate.LayerNorm if pre_norm else layer.output.LayerNorm,
                layer.intermediate.dense,
                layer.output.dense,
            )
            for layer in body.encoder.layer
        ],
        body.LayerNorm if pre_norm else None,
        head,
        head_norm,
        decoder,
    )
    return places.map(Place)


def _gpt(network: Any) -> Network[Place]:
    body = network.transformer
    layers = [
        Layer(
            Place(block.ln_1),
            Place(block.attn.c_attn, 0),
            Place(block.attn.c_attn, 1),
            Place(block.attn.c_attn, 2),
            Place(block.attn.c_proj),
            Place(block.ln_2),
            Place(block.mlp.c_fc),
            Place(block.mlp.c_proj),
        )
        for block in body.h
    ]
    return Network(
        [Place(body.wte), Place(body.wpe)], None, layers, Place(body.ln_f), None, None, Place(network.lm_head)
    )
