"""OLMo 2 (OLMo team 2025, arXiv 2501.00656) and OLMo 3, whose layers may have a window.

Take it to begin with a model whose text and recipe are public.

Attention and FFN read the residual stream without a norm, and their outputs are normalised. A norm
of queries or keys spans all heads.
"""

from __future__ import annotations

from typing import Any

from transformers import Olmo2ForCausalLM, Olmo3ForCausalLM

from benchmark.models.architectures import Layer
from benchmark.models.architectures.llama import Llama


class Olmo(Llama):
    families = (Olmo2ForCausalLM, Olmo3ForCausalLM)
    norms_all_heads = True

    def find_layer_modules(self, layer: Any) -> Layer[Any]:
        modules = super().find_layer_modules(layer)
        modules.attention.output_norm = layer.post_attention_layernorm
        modules.ffn.norm = None  # Llama's has the name that attention's output norm has here
        modules.ffn.output_norm = layer.post_feedforward_layernorm
        return modules


ARCHITECTURE = Olmo()
