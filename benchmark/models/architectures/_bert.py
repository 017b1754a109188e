"""What the kinds of BERT have in common."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmark.data.vocabulary import PAD
from benchmark.models.architecture import Shape, Unrolled
from benchmark.models.layout import Layer, Network, Place

WIDTHS = ("hidden_size", "num_attention_heads", "intermediate_size")
POSITION_OFFSET = PAD + 1  # RoBERTa numbers positions from here


def settings(shape: Shape) -> dict[str, Any]:
    """Of a configuration, but for its number of positions."""
    return {
        **shape.common(),
        "intermediate_size": 4 * shape.hidden_size,
        "hidden_dropout_prob": shape.dropout,
        "attention_probs_dropout_prob": shape.dropout,
    }


def roberta_settings(shape: Shape) -> dict[str, Any]:
    positions = shape.columns + POSITION_OFFSET
    return {**settings(shape), "max_position_embeddings": positions, "type_vocab_size": 1, "layer_norm_eps": 1e-5}


def roberta_length(config: Any) -> int:
    return config.max_position_embeddings - POSITION_OFFSET


def roberta_transform(network: Any, hidden: Tensor) -> Tensor:
    """What RoBERTa's LM head does before its decoder."""
    return network.lm_head.layer_norm(F.gelu(network.lm_head.dense(hidden)))


def unroll(network: Any, tokens: Tensor, mask: Tensor | None, offset: int) -> Unrolled:
    body = network.base_model
    columns = torch.arange(tokens.shape[1], device=tokens.device).unsqueeze(0)
    embedded = body.embeddings(tokens, position_ids=columns + offset)
    attended = None if mask is None else mask[:, None, None, :].expand(-1, -1, tokens.shape[1], -1)
    layers = [partial(layer, attention_mask=attended) for layer in body.encoder.layer]
    return Unrolled(embedded, layers, getattr(body, "LayerNorm", nn.Identity()))


def post_norm_layer(layer: Any) -> Layer[Any]:
    return Layer(
        attention_norm=layer.attention.output.LayerNorm,
        query=layer.attention.self.query,
        key=layer.attention.self.key,
        value=layer.attention.self.value,
        output=layer.attention.output.dense,
        ffn_norm=layer.output.LayerNorm,
        up=layer.intermediate.dense,
        down=layer.output.dense,
    )


def places(network: Any, layers: list[Layer[Any]], final_norm: Any, head: tuple[Any, Any, Any]) -> Network[Place]:
    """`head`: the LM head's linear map, its norm, and the decoder."""
    tables = network.base_model.embeddings
    embeddings = [tables.word_embeddings, tables.position_embeddings, tables.token_type_embeddings]
    return Network[Any](embeddings, tables.LayerNorm, layers, final_norm, *head).map(Place)
