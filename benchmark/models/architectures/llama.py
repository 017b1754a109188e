"""Llama (Touvron et al. 2023, arXiv 2302.13971), and Mistral, Qwen2 and Qwen3.

Those three add windows, biases, or norms of queries and keys. New networks have as many key heads
as query heads and a feed-forward layer of four times the hidden size, as Llama 3.2's. A published
checkpoint keeps what its configuration says.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import Tensor
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralForCausalLM,
    Qwen2ForCausalLM,
    Qwen3ForCausalLM,
)

from benchmark.models.architectures import (
    Architecture,
    Attention,
    FeedForward,
    Layer,
    Network,
    Shape,
    Unrolled,
)


class Llama(Architecture):
    families = (LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM)
    rms_norm = True
    widths = ("hidden_size", "num_attention_heads", "num_key_value_heads", "intermediate_size")
    epsilon = "rms_norm_eps"

    def make_configuration(self, shape: Shape) -> LlamaConfig:
        return LlamaConfig(
            **shape.make_common_keys(),
            intermediate_size=4 * shape.hidden_size,
            max_position_embeddings=shape.columns,
            attention_dropout=shape.dropout,
            tie_word_embeddings=True,
        )

    def unroll(self, network: Any, tokens: Tensor, mask: Tensor | None) -> Unrolled:
        body = network.model
        hidden = body.embed_tokens(tokens)
        positions, attention_mask = self.see(network, tokens, mask)
        rotations = body.rotary_emb(hidden, positions)
        layers = [
            partial(layer, position_embeddings=rotations, attention_mask=attention_mask)
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
                    query_norm=getattr(layer.self_attn, "q_norm", None),
                    key_norm=getattr(layer.self_attn, "k_norm", None),
                ),
                ffn=FeedForward(
                    norm=layer.post_attention_layernorm,
                    up=layer.mlp.up_proj,
                    down=layer.mlp.down_proj,
                    gate=layer.mlp.gate_proj,
                ),
            )
            for layer in body.layers
        ]
        return Network(
            tables=[body.embed_tokens], layers=layers, final_norm=body.norm, decoder=network.lm_head
        )

    def count_positions(self, config: Any) -> int:
        """Up to the window of attention, where there is one: no mask cuts it out here."""
        positions = config.max_position_embeddings
        window = getattr(config, "sliding_window", None)
        return min(positions, window or positions)


ARCHITECTURE = Llama()
