"""The families of decoders that are published today, made small with transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.support.published_models import save_tokenizer
from tests.support.small_networks import network

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
    "Llama 3": ("llama", {"rope_parameters": LLAMA_3}),
    "Mistral": ("mistral", {"sliding_window": 6}),  # rows are three times as long
    "Qwen3": ("qwen3", {}),
    "SmolLM3": ("smollm3", {}),
    "OLMo 2": ("olmo2", {"tie_word_embeddings": False}),
    "OLMo 3": ("olmo3", {"tie_word_embeddings": False}),
    "Gemma 3": ("gemma3_text", {}),
}


def published(folder: Path, family: str, **changed: Any) -> Path:
    """Save a model of two layers from `network`, and a tokenizer. Returns the folder.

    The model's embedding has seven rows more than the tokenizer has tokens.
    """
    model_type, settings = FAMILIES[family]
    bpe = save_tokenizer(folder, {"bos_token": END, "eos_token": END})
    end = bpe.token_to_id(END)
    sizes = {"vocab_size": bpe.get_vocab_size() + 7, "max_position_embeddings": 40}
    special = {"bos_token_id": end, "eos_token_id": end, "pad_token_id": end}
    made = network(model_type, width=32, spread=0.2, **(sizes | special | settings | changed))
    made.float().save_pretrained(folder)
    return folder
