"""ModernBERT (Warner et al. 2024, arXiv 2412.13663).

Take it for a fast encoder with long sequences.

It has rotary positions, gated feed-forward layers and local attention. Two of three layers attend
to their neighbourhood only. Norms and most linear maps have no bias. The first layer's attention
has no norm, because the embeddings are normalised already.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor, nn
from transformers import ModernBertConfig, ModernBertForMaskedLM
from transformers.models.modernbert.modeling_modernbert import ModernBertPredictionHead

from benchmark.data.tokenizer import BOS, EOS
from benchmark.models.architectures import (
    Architecture,
    Attention,
    FeedForward,
    Layer,
    Network,
    Shape,
    Unrolled,
    split,
)


class FirstTokenHead(nn.Module):
    """The head and the classifier of transformers' ModernBertForSequenceClassification.

    They map (B, T, D) to (B, C).
    """

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.head = ModernBertPredictionHead(config)
        self.drop = nn.Dropout(config.classifier_dropout)
        self.classifier = nn.Linear(config.hidden_size, config.num_labels)

    def forward(self, hidden: Tensor) -> Tensor:
        return self.classifier(self.drop(self.head(hidden[:, 0])))


class ModernBert(Architecture):
    families = (ModernBertForMaskedLM,)
    masked = True
    epsilon = "norm_eps"

    def make_configuration(self, shape: Shape) -> ModernBertConfig:
        return ModernBertConfig(
            **shape.make_common_keys(),
            cls_token_id=BOS,
            sep_token_id=EOS,
            intermediate_size=4 * shape.hidden_size,
            max_position_embeddings=shape.columns,
            attention_dropout=shape.dropout,
            embedding_dropout=shape.dropout,
            mlp_dropout=shape.dropout,
        )

    def unroll(self, network: Any, tokens: Tensor, mask: Tensor | None) -> Unrolled:
        body = network.model
        config = network.config
        hidden = body.embeddings(tokens)
        positions, full_mask = self.see(network, tokens, mask)
        # the window counts the tokens on each side, but a decoder's counts the token itself too
        distances = (positions.unsqueeze(2) - positions.unsqueeze(1)).abs()
        local_mask = distances.unsqueeze(1) <= config.sliding_window
        if full_mask is not None:
            local_mask = local_mask & full_mask
        masks = {"full_attention": full_mask, "sliding_attention": local_mask}
        kinds = set(config.layer_types)
        rotations = {kind: body.rotary_emb(hidden, positions, kind) for kind in kinds}
        layers = []
        for layer in body.layers:
            kind = layer.attention_type
            layers.append(
                partial(layer, position_embeddings=rotations[kind], attention_mask=masks[kind])
            )
        return Unrolled(hidden, layers, body.final_norm)

    def find_modules(self, network: Any) -> Network[Any]:
        body = network.model
        head = network.head
        return Network(
            tables=[body.embeddings.tok_embeddings],
            embedding_norm=body.embeddings.norm,
            layers=[_find_layer_modules(layer) for layer in body.layers],
            final_norm=body.final_norm,
            head=head.dense,
            head_norm=head.norm,
            decoder=network.decoder,
        )

    def compute_decoder_inputs(self, network: Any, hidden: Tensor) -> Tensor:
        return network.head(hidden)

    def find_activation(self, network: Any) -> Callable[[Tensor], Tensor]:
        return network.head.act

    def make_classifier(self, config: Any) -> nn.Module:
        return FirstTokenHead(config)


def _find_layer_modules(layer: Any) -> Layer[Any]:
    query, key, value = split(layer.attn.Wqkv, 3)
    up, gate = split(layer.mlp.Wi, 2)
    return Layer(
        attention=Attention(
            norm=None if isinstance(layer.attn_norm, nn.Identity) else layer.attn_norm,
            query=query,
            key=key,
            value=value,
            output=layer.attn.Wo,
        ),
        ffn=FeedForward(norm=layer.mlp_norm, up=up, down=layer.mlp.Wo, gate=gate),
    )


ARCHITECTURE = ModernBert()
