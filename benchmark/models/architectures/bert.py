"""BERT: the RoBERTa-style encoder that reproduces the paper's parameter counts (tab:arch; Liu et al. 2019)."""

from __future__ import annotations

from functools import partial
from typing import Any

from transformers import RobertaConfig, RobertaForMaskedLM
from transformers.models.roberta.modeling_roberta import RobertaClassificationHead

from benchmark.models.architecture import Architecture
from benchmark.models.architectures import _bert
from benchmark.models.layout import Network, Place


def _places(network: Any) -> Network[Place]:
    layers = [_bert.post_norm_layer(layer) for layer in network.base_model.encoder.layer]
    head = network.lm_head
    return _bert.places(network, layers, None, (head.dense, head.layer_norm, head.decoder))


ARCHITECTURE = Architecture(
    families=(RobertaForMaskedLM,),
    masked=True,
    post_norm=True,
    widths=_bert.WIDTHS,
    epsilon="layer_norm_eps",
    stack="encoder.layer",
    configuration=lambda shape: RobertaConfig(**_bert.roberta_settings(shape)),
    unroll=partial(_bert.unroll, offset=_bert.POSITION_OFFSET),
    transform=_bert.roberta_transform,
    places=_places,
    classifier=RobertaClassificationHead,
    length=_bert.roberta_length,
    unused=("lm_head.bias",),  # the decoder has a bias of its own where it is not tied
)
