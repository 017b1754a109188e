"""BERT: the RoBERTa-style encoder that reproduces the paper's parameter counts.

Take it for the paper's rows of BERT.

See tab:arch and Liu et al. 2019.
"""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar

import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel, RobertaConfig, RobertaForMaskedLM
from transformers.models.roberta.modeling_roberta import RobertaClassificationHead

from benchmark.data.tokenizer import PAD
from benchmark.models.architectures import (
    Architecture,
    Attention,
    FeedForward,
    Layer,
    Network,
    Shape,
    Unrolled,
)


class Bert(Architecture):
    families: ClassVar[tuple[type[PreTrainedModel], ...]] = (RobertaForMaskedLM,)
    masked = True
    post_norm = True
    stack = "encoder.layer"
    unused = ("lm_head.bias",)  # an untied decoder has its own bias
    offset = PAD + 1  # RoBERTa's first position

    def make_configuration(self, shape: Shape) -> PreTrainedConfig:
        return RobertaConfig(**self.make_keys(shape), type_vocab_size=1, layer_norm_eps=1e-5)

    def make_keys(self, shape: Shape) -> dict[str, Any]:
        """The part of a configuration that is the same in all kinds of BERT."""
        return {
            **shape.make_common_keys(),
            "max_position_embeddings": shape.columns + self.offset,
            "intermediate_size": 4 * shape.hidden_size,
            "hidden_dropout_prob": shape.dropout,
            "attention_probs_dropout_prob": shape.dropout,
        }

    def unroll(self, network: Any, tokens: Tensor, mask: Tensor | None) -> Unrolled:
        body = network.base_model
        positions, attention_mask = self.see(network, tokens, mask)
        embedded = body.embeddings(tokens, position_ids=positions + self.offset)
        layers = [partial(layer, attention_mask=attention_mask) for layer in body.encoder.layer]
        return Unrolled(embedded, layers, getattr(body, "LayerNorm", nn.Identity()))

    def find_modules(self, network: Any) -> Network[Any]:
        head = network.lm_head
        return self.find_network_modules(network, head.dense, head.layer_norm, head.decoder)

    def compute_decoder_inputs(self, network: Any, hidden: Tensor) -> Tensor:
        head = network.lm_head
        return head.layer_norm(F.gelu(head.dense(hidden)))

    def find_network_modules(
        self, network: Any, head: Any, head_norm: Any, decoder: Any
    ) -> Network[Any]:
        """The modules of a network.

        The modules of the LM head are given, because they differ between kinds of BERT.
        """
        body = network.base_model
        tables = [
            getattr(body.embeddings, f"{kind}_embeddings")
            for kind in ("word", "position", "token_type")
        ]
        layers = [self.find_layer_modules(layer) for layer in body.encoder.layer]
        return Network(
            tables=tables,
            embedding_norm=body.embeddings.LayerNorm,
            layers=layers,
            final_norm=getattr(body, "LayerNorm", None),
            head=head,
            head_norm=head_norm,
            decoder=decoder,
        )

    def find_layer_modules(self, layer: Any) -> Layer[Any]:
        attention_norm, ffn_norm = self.find_layer_norms(layer)
        return Layer(
            attention=Attention(
                norm=attention_norm,
                query=layer.attention.self.query,
                key=layer.attention.self.key,
                value=layer.attention.self.value,
                output=layer.attention.output.dense,
            ),
            ffn=FeedForward(norm=ffn_norm, up=layer.intermediate.dense, down=layer.output.dense),
        )

    def find_layer_norms(self, layer: Any) -> tuple[nn.Module, nn.Module]:
        """The norms of a layer's attention and of its FFN."""
        return layer.attention.output.LayerNorm, layer.output.LayerNorm

    def make_classifier(self, config: Any) -> nn.Module:
        return RobertaClassificationHead(config)

    def count_positions(self, config: Any) -> int:
        return config.max_position_embeddings - self.offset


ARCHITECTURE = Bert()
