"""BERT as first published (Devlin et al. 2019): segments, positions from 0, a pooled first token for classification."""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import Tensor, nn
from transformers import BertConfig, BertForMaskedLM
from transformers.models.bert.modeling_bert import BertPooler

from benchmark.models.architecture import Architecture, Shape
from benchmark.models.architectures import _bert
from benchmark.models.layout import Network, Place


class ClassificationHead(nn.Module):
    """The pooler and the classifier of transformers' BertForSequenceClassification: (B, T, D) to (B, C)."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.pooler = BertPooler(config)
        share = config.classifier_dropout
        self.dropout = nn.Dropout(config.hidden_dropout_prob if share is None else share)
        self.classifier = nn.Linear(config.hidden_size, config.num_labels)

    def forward(self, hidden: Tensor) -> Tensor:
        return self.classifier(self.dropout(self.pooler(hidden)))


def _configuration(shape: Shape) -> BertConfig:
    return BertConfig(**_bert.settings(shape), max_position_embeddings=shape.columns)


def _places(network: Any) -> Network[Place]:
    layers = [_bert.post_norm_layer(layer) for layer in network.base_model.encoder.layer]
    transform, decoder = network.cls.predictions.transform, network.cls.predictions.decoder
    return _bert.places(network, layers, None, (transform.dense, transform.LayerNorm, decoder))


ARCHITECTURE = Architecture(
    families=(BertForMaskedLM,),
    masked=True,
    post_norm=True,
    widths=_bert.WIDTHS,
    epsilon="layer_norm_eps",
    stack="encoder.layer",
    configuration=_configuration,
    unroll=partial(_bert.unroll, offset=0),
    transform=lambda network, hidden: network.cls.predictions.transform(hidden),
    places=_places,
    classifier=ClassificationHead,
    unused=("cls.predictions.bias",),  # the decoder has a bias of its own where it is not tied
    activation=lambda network: network.cls.predictions.transform.transform_act_fn,
)
