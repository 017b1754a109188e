"""GPT-NeoX (Black et al. 2022, arXiv 2204.06745) and Pythia.

Take it to begin with Pythia, whose text and checkpoints are public.

They have rotary positions, and compute attention and feed-forward layer in parallel.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

from benchmark.models.architectures import (
    Architecture,
    Attention,
    FeedForward,
    Layer,
    Network,
    Place,
    Shape,
    Unrolled,
)


class GptNeoX(Architecture):
    families = (GPTNeoXForCausalLM,)

    def make_configuration(self, shape: Shape) -> GPTNeoXConfig:
        return GPTNeoXConfig(
            **shape.make_common_keys(),
            intermediate_size=4 * shape.hidden_size,
            max_position_embeddings=shape.columns,
            attention_dropout=shape.dropout,
            hidden_dropout=shape.dropout,
            tie_word_embeddings=True,
        )

    def unroll(self, network: Any, tokens: Tensor, mask: Tensor | None) -> Unrolled:
        body = network.gpt_neox
        hidden = body.emb_dropout(body.embed_in(tokens))
        positions, attention_mask = self.see(network, tokens, mask)
        rotations = body.rotary_emb(hidden, positions)
        layers = [
            partial(layer, position_embeddings=rotations, attention_mask=attention_mask)
            for layer in body.layers
        ]
        return Unrolled(hidden, layers, body.final_layer_norm)

    def find_modules(self, network: Any) -> Network[Any]:
        body = network.gpt_neox
        heads = network.config.num_attention_heads
        layers = []
        for layer in body.layers:
            # the rows are query, key and value of the first head, then of the second, and so on
            fused = layer.attention.query_key_value
            rows = torch.arange(len(fused.weight)).view(heads, 3, -1)
            places = [Place(fused, rows[:, part].flatten()) for part in range(3)]
            query, key, value = places
            layers.append(
                Layer(
                    attention=Attention(
                        norm=layer.input_layernorm,
                        query=query,
                        key=key,
                        value=value,
                        output=layer.attention.dense,
                    ),
                    ffn=FeedForward(
                        norm=layer.post_attention_layernorm,
                        up=layer.mlp.dense_h_to_4h,
                        down=layer.mlp.dense_4h_to_h,
                    ),
                )
            )
        return Network(
            tables=[body.embed_in],
            layers=layers,
            final_norm=body.final_layer_norm,
            decoder=network.lm_head,
        )


ARCHITECTURE = GptNeoX()
