"""Llama (Touvron et al. 2023, arXiv 2302.13971), and Mistral, Qwen2, Qwen3 and SmolLM3.

Take it for a new decoder, and for most published ones.

The other models add sliding windows, biases, norms of queries and keys, or layers without rotary
positions. New networks have as many key heads as query heads, and a feed-forward layer of four
times the hidden size, as in Llama 3.2. A published checkpoint keeps its own configuration.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, ClassVar

from torch import Tensor
from transformers import (
    LlamaForCausalLM,
    MistralForCausalLM,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen2ForCausalLM,
    Qwen3ForCausalLM,
    SmolLM3ForCausalLM,
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
    families: ClassVar[tuple[type[PreTrainedModel], ...]] = (
        LlamaForCausalLM,
        MistralForCausalLM,
        Qwen2ForCausalLM,
        Qwen3ForCausalLM,
        SmolLM3ForCausalLM,
    )
    rms_norm = True
    layer_keys = ("layer_types", "no_rope_layers")
    widths = ("hidden_size", "num_attention_heads", "num_key_value_heads", "intermediate_size")
    epsilon = "rms_norm_eps"

    def make_configuration(self, shape: Shape) -> PreTrainedConfig:
        family: Any = self.families[0]
        return family.config_class(
            **shape.make_common_keys(),
            intermediate_size=4 * shape.hidden_size,
            max_position_embeddings=shape.columns,
            attention_dropout=shape.dropout,
            tie_word_embeddings=True,
        )

    def unroll(self, network: Any, tokens: Tensor, mask: Tensor | None) -> Unrolled:
        body = network.model
        hidden = body.embed_tokens(tokens)
        positions, full_mask = self.see(network, tokens, mask)
        local_mask = self.see_window(network, positions, full_mask)
        masks = {"full_attention": full_mask, "sliding_attention": local_mask}
        kinds = list_layer_kinds(network.config)
        if hasattr(body.rotary_emb, "layer_types"):  # Gemma 3, OLMo 3: one for each kind of layer
            rotations = {kind: body.rotary_emb(hidden, positions, kind) for kind in set(kinds)}
        else:
            rotations = dict.fromkeys(kinds, body.rotary_emb(hidden, positions))
        layers = [
            partial(layer, position_embeddings=rotations[kind], attention_mask=masks[kind])
            for layer, kind in zip(body.layers, kinds, strict=True)
        ]
        return Unrolled(hidden, layers, body.norm)

    def find_modules(self, network: Any) -> Network[Any]:
        body = network.model
        return Network(
            tables=[body.embed_tokens],
            layers=[self.find_layer_modules(layer) for layer in body.layers],
            final_norm=body.norm,
            decoder=network.lm_head,
        )

    def find_layer_modules(self, layer: Any) -> Layer[Any]:
        return Layer(
            attention=Attention(
                norm=getattr(layer, "input_layernorm", None),
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


def list_layer_kinds(config: Any) -> Sequence[str]:
    """For each layer "full_attention", or "sliding_attention" if it has a window."""
    kinds = getattr(config, "layer_types", None)
    if kinds is not None:
        return kinds
    slides = getattr(config, "sliding_window", None)
    return ["sliding_attention" if slides else "full_attention"] * config.num_hidden_layers


ARCHITECTURE = Llama()
