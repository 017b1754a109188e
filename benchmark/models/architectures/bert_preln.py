"""Pre-LN BERT: as BERT, but the inputs of attention and feed-forward layers are normalised.

Take it for an encoder whose growth in depth is exact.

See Xiong et al. 2020.
"""

from __future__ import annotations

from typing import Any

from torch import nn
from transformers import RobertaPreLayerNormConfig, RobertaPreLayerNormForMaskedLM

from benchmark.models.architectures import Shape
from benchmark.models.architectures.bert import Bert


class PreNormBert(Bert):
    families = (RobertaPreLayerNormForMaskedLM,)
    post_norm = False

    def make_configuration(self, shape: Shape) -> RobertaPreLayerNormConfig:
        return RobertaPreLayerNormConfig(
            **self.make_keys(shape), type_vocab_size=1, layer_norm_eps=1e-5
        )

    def find_layer_norms(self, layer: Any) -> tuple[nn.Module, nn.Module]:
        return layer.attention.LayerNorm, layer.intermediate.LayerNorm


ARCHITECTURE = PreNormBert()
