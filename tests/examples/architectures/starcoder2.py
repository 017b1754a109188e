"""An architecture that the project does not have: StarCoder2, with rotary positions, LayerNorms and
biases.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import Tensor
from transformers import Starcoder2Config, Starcoder2ForCausalLM

from benchmark.models.architectures import (
    Architecture,
    Attention,
    FeedForward,
    Layer,
    Network,
    Shape,
    Unrolled,
)


class Starcoder2(Architecture):
    families = (Starcoder2ForCausalLM,)
    widths = ("hidden_size", "num_attention_heads", "num_key_value_heads", "intermediate_size")
    epsilon = "norm_epsilon"

    def make_configuration(self, shape: Shape) -> Starcoder2Config:
        return Starcoder2Config(
            **shape.make_common_keys(),
            num_key_value_heads=shape.heads,
            intermediate_size=4 * shape.hidden_size,
            max_position_embeddings=shape.columns,
            residual_dropout=shape.dropout,
            embedding_dropout=shape.dropout,
            attention_dropout=shape.dropout,
            tie_word_embeddings=True,
        )

    def unroll(self, network: Any, tokens: Tensor, mask: Tensor | None) -> Unrolled:
        body = network.model
        hidden = body.embed_tokens(tokens)
        positions, seen = self.see(network, tokens, mask)
        rotations = body.rotary_emb(hidden, positions)
        layers = [
            partial(layer, position_embeddings=rotations, attention_mask=seen)
            for layer in body.layers
        ]
        return Unrolled(hidden, layers, body.norm)

    def find_modules(self, network: Any) -> Network[Any]:
        body = network.model
        layers = [
            Layer(
                attention=Attention(
                    norm=layer.input_layernorm,
                    query=layer.self_attn.q_proj,
                    key=layer.self_attn.k_proj,
                    value=layer.self_attn.v_proj,
                    output=layer.self_attn.o_proj,
                ),
                ffn=FeedForward(
                    norm=layer.post_attention_layernorm, up=layer.mlp.c_fc, down=layer.mlp.c_proj
                ),
            )
            for layer in body.layers
        ]
        return Network(
            tables=[body.embed_tokens], layers=layers, final_norm=body.norm, decoder=network.lm_head
        )


ARCHITECTURE = Starcoder2()
