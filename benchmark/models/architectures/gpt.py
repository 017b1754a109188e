"""GPT: GPT-2's decoder (Radford et al. 2019), with learned positions.

Take it for the paper's rows of GPT, and the smallest runs.

The paper's parameter counts leave out the position embeddings.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel

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


class Gpt(Architecture):
    families = (GPT2LMHeadModel,)
    widths = ("n_embd", "n_head", "n_inner")
    epsilon = "layer_norm_epsilon"
    stack = "h"

    def make_configuration(self, shape: Shape) -> GPT2Config:
        return GPT2Config(
            **shape.make_common_keys(),
            n_positions=shape.columns,
            resid_pdrop=shape.dropout,
            embd_pdrop=shape.dropout,
            attn_pdrop=shape.dropout,
            activation_function="gelu_pytorch_tanh",  # GPT-2's, in one operator
        )

    def unroll(self, network: Any, tokens: Tensor, mask: Tensor | None) -> Unrolled:
        # GPT2Model.forward is not used: it looks for packed sequences in the position ids. This
        # costs a synchronisation per step and, under torch.compile, the fast causal kernels.
        body = network.transformer
        positions, attention_mask = self.see(network, tokens, mask)
        layers = [partial(layer, attention_mask=attention_mask) for layer in body.h]
        hidden = body.drop(body.wte(tokens) + body.wpe(positions))
        return Unrolled(hidden, layers, body.ln_f)

    def find_modules(self, network: Any) -> Network[Any]:
        body = network.transformer
        layers = []
        for block in body.h:
            query, key, value = split(block.attn.c_attn, 3)
            layers.append(
                Layer(
                    attention=Attention(
                        norm=block.ln_1, query=query, key=key, value=value, output=block.attn.c_proj
                    ),
                    ffn=FeedForward(norm=block.ln_2, up=block.mlp.c_fc, down=block.mlp.c_proj),
                )
            )
        return Network(
            tables=[body.wte, body.wpe],
            layers=layers,
            final_norm=body.ln_f,
            decoder=network.lm_head,
        )


ARCHITECTURE = Gpt()
