"""BERT as first published (Devlin et al. 2019).

Take it to begin with a published BERT.

It has segments, positions from 0, and a pooled first token for classification.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from transformers import BertConfig, BertForMaskedLM
from transformers.models.bert.modeling_bert import BertPooler

from benchmark.models.architectures import Network, Shape
from benchmark.models.architectures.bert import Bert


class OriginalBert(Bert):
    families = (BertForMaskedLM,)
    unused = ("cls.predictions.bias",)  # an untied decoder has its own bias
    offset = 0

    def make_configuration(self, shape: Shape) -> BertConfig:
        return BertConfig(**self.make_keys(shape))

    def find_modules(self, network: Any) -> Network[Any]:
        head = network.cls.predictions
        return self.find_network_modules(
            network, head.transform.dense, head.transform.LayerNorm, head.decoder
        )

    def compute_decoder_inputs(self, network: Any, hidden: Tensor) -> Tensor:
        return network.cls.predictions.transform(hidden)

    def find_activation(self, network: Any) -> Callable[[Tensor], Tensor]:
        return network.cls.predictions.transform.transform_act_fn

    def make_classifier(self, config: Any) -> nn.Module:
        """The pooler and the classifier of transformers' BertForSequenceClassification.

        They map (B, T, D) to (B, C).
        """
        share = config.classifier_dropout
        parts = {
            "pooler": BertPooler(config),
            "dropout": nn.Dropout(config.hidden_dropout_prob if share is None else share),
            "classifier": nn.Linear(config.hidden_size, config.num_labels),
        }
        return nn.Sequential(OrderedDict(parts))


ARCHITECTURE = OriginalBert()
