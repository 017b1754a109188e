"""Gemma 3's models of text (Gemma team 2025, arXiv 2503.19786).

Take it to begin with Gemma 3 of 270 million or 1 billion parameters.

Inputs and outputs of attention and FFN are normalised. A norm multiplies by 1 plus its weight. The
residual stream begins with the embeddings times the square root of the hidden size. Five of six
layers have a sliding window, and rotary embeddings with a base of their own.
"""

from __future__ import annotations

from typing import Any

from transformers import Gemma3ForCausalLM, Gemma3TextConfig, PreTrainedConfig
from transformers.models.gemma3.modeling_gemma3 import Gemma3RMSNorm

from benchmark.models.architectures import Layer, Network, Place, Shape, map_parts
from benchmark.models.architectures.llama import Llama
from benchmark.settings.base import ConfigError


class Gemma(Llama):
    families = (Gemma3ForCausalLM,)

    def make_configuration(self, shape: Shape) -> PreTrainedConfig:
        head_size = shape.hidden_size // shape.heads
        return Gemma3TextConfig(
            **shape.make_common_keys(),
            num_key_value_heads=shape.heads,
            head_dim=head_size,
            query_pre_attn_scalar=head_size,
            intermediate_size=4 * shape.hidden_size,
            max_position_embeddings=shape.columns,
            attention_dropout=shape.dropout,
        )

    def check(self, config: Any) -> None:
        for key in ("final_logit_softcapping", "attn_logit_softcapping"):
            if getattr(config, key) is not None:
                raise ConfigError(
                    f"{key} = {getattr(config, key)}: logits with a soft cap are not computed "
                    "here; take a model without one, as Gemma 3 is"
                )
        if config.use_bidirectional_attention:
            raise ConfigError(
                "use_bidirectional_attention = true: this model predicts no next token; take the "
                "one that it was made from"
            )

    def set_buffers(self, network: Any) -> None:
        embeddings = network.model.embed_tokens
        embeddings.embed_scale.fill_(embeddings.scalar_embed_scale)

    def find_modules(self, network: Any) -> Network[Any]:
        """The modules of a network.

        The embeddings' scale is the square root of the hidden size. A tied decoder has the same
        weight, so it gets the same scale, and the final norm the inverse. The logits stay the same.
        """
        body = network.model
        scale = body.embed_tokens.scalar_embed_scale
        tied_scale = scale if network.config.tie_word_embeddings else 1.0
        return Network(
            tables=[Place(body.embed_tokens, scale=scale)],
            layers=[self.find_layer_modules(layer) for layer in body.layers],
            final_norm=Place(body.norm, scale=1 / tied_scale, offset=1.0),
            decoder=Place(network.lm_head, scale=tied_scale),
        )

    def find_layer_modules(self, layer: Any) -> Layer[Any]:
        modules = super().find_layer_modules(layer)
        modules.attention.output_norm = layer.post_attention_layernorm
        modules.ffn.norm = layer.pre_feedforward_layernorm
        modules.ffn.output_norm = layer.post_feedforward_layernorm
        return map_parts(modules, _find_place)


def _find_place(module: Any) -> Place:
    """The place of a module's weight. A norm multiplies by 1 plus its weight."""
    return Place(module, offset=1.0 if isinstance(module, Gemma3RMSNorm) else 0.0)


ARCHITECTURE = Gemma()
