"""The families of decoders that are published today, made small with transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM

from tests.support.published_models import save_tokenizer

WINDOW = 6  # rows are three times as long
LAYER_TYPES = ["sliding_attention", "full_attention"]
END = "<|endoftext|>"
LLAMA_3 = {
    "rope_type": "llama3",
    "rope_theta": 500_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "Llama 3": ("llama", {"rope_parameters": LLAMA_3, "num_key_value_heads": 2}),
    "Mistral": ("mistral", {"sliding_window": WINDOW, "num_key_value_heads": 2}),
    "Qwen3": ("qwen3", {"head_dim": 12, "tie_word_embeddings": True}),
    "SmolLM3": ("smollm3", {"no_rope_layers": [1, 0], "num_key_value_heads": 2}),
    "OLMo 2": ("olmo2", {}),
    "OLMo 3": ("olmo3", {"sliding_window": WINDOW, "layer_types": LAYER_TYPES}),
    "Gemma 3": (
        "gemma3_text",
        {
            "sliding_window": WINDOW,
            "layer_types": LAYER_TYPES,
            "head_dim": 12,
            "query_pre_attn_scalar": 20,
            "num_key_value_heads": 2,
        },
    ),
}


def published(folder: Path, family: str, **changed: Any) -> Path:
    """A model of two layers with random weights, none of which has its initial value.

    Its embedding has seven rows more than the tokenizer has tokens.
    """
    torch.manual_seed(0)
    model_type, settings = FAMILIES[family]
    bpe = save_tokenizer(folder, {"bos_token": END, "eos_token": END})
    end = bpe.token_to_id(END)
    sizes = {
        "vocab_size": bpe.get_vocab_size() + 7,
        "num_hidden_layers": 2,
        "hidden_size": 32,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "intermediate_size": 64,
        "max_position_embeddings": 40,
        "bos_token_id": end,
        "eos_token_id": end,
        "pad_token_id": end,
    }
    config = transformers.AutoConfig.for_model(model_type, **(sizes | settings | changed))
    network = AutoModelForCausalLM.from_config(config)
    for parameter in network.parameters():
        parameter.data.add_(0.2 * torch.randn_like(parameter))
    network.save_pretrained(folder)
    return folder
