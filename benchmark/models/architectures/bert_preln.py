"""Pre-LN BERT: as BERT, but what enters attention and feed-forward layers is normalised (Xiong et al. 2020)."""

from __future__ import annotations

from functools import partial
from typing import Any

from transformers import RobertaPreLayerNormConfig, RobertaPreLayerNormForMaskedLM
from transformers.models.roberta.modeling_roberta import RobertaClassificationHead

from benchmark.models.architecture import Architecture
from benchmark.models.architectures import _bert
from benchmark.models.layout import Layer, Network, Place


def _layer(layer: Any) -> Layer[Any]:
    return Layer(
        attention_norm=layer.attention.LayerNorm,
        query=layer.attention.self.query,
        key=layer.attention.self.key,
        value=layer.attention.self.value,
        output=layer.attention.output.dense,
        ffn_norm=layer.intermediate.LayerNorm,
        up=layer.intermediate.dense,
        down=layer.output.dense,
    )


def _places(network: Any) -> Network[Place]:
    body, head = network.base_model, network.lm_head
    layers = [_layer(layer) for layer in body.encoder.layer]
    return _bert.places(network, layers, body.LayerNorm, (head.dense, head.layer_norm, head.decoder))


ARCHITECTURE = Architecture(
    families=(RobertaPreLayerNormForMaskedLM,),
    masked=True,
    post_norm=False,
    widths=_bert.WIDTHS,
    epsilon="layer_norm_eps",
    stack="encoder.layer",
    configuration=lambda shape: RobertaPreLayerNormConfig(**_bert.roberta_settings(shape)),
    unroll=partial(_bert.unroll, offset=_bert.POSITION_OFFSET),
    transform=_bert.roberta_transform,
    places=_places,
    classifier=RobertaClassificationHead,
    length=_bert.roberta_length,
    unused=("lm_head.bias",),  # the decoder has a bias of its own where it is not tied
)
