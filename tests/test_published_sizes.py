"""Published models are counted as their authors count them: every part of an architecture is there, and once."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import PreTrainedConfig
from transformers.models.auto import CONFIG_MAPPING

from benchmark.data.tokenizer import Vocabulary
from benchmark.models import LanguageModel, architectures
from benchmark.models.architectures import parts_of
from benchmark.models.growth import places


def shape(model_type: str, layers: int, hidden: int, heads: int, inner: int, vocabulary: int, **more: Any) -> Any:
    """The configuration; `more`: key heads, ties and what else differs from transformers' defaults."""
    names = {"layers": "num_hidden_layers", "hidden": "hidden_size", "heads": "num_attention_heads"}
    sizes = dict(zip(names.values(), (layers, hidden, heads), strict=True))
    inner_key = "n_inner" if model_type == "gpt2" else "intermediate_size"
    kind: Any = CONFIG_MAPPING[model_type]
    return kind(**sizes, **{inner_key: inner}, vocab_size=vocabulary, **more)


ROBERTA = {"max_position_embeddings": 514, "type_vocab_size": 1}

# (parameters, configuration): of the weights as released on the Hugging Face hub, tied ones once
PUBLISHED: dict[str, tuple[int, Any]] = {
    "gpt2": (124_439_808, shape("gpt2", 12, 768, 12, 3072, 50257)),
    "FacebookAI/roberta-base": (124_697_433, shape("roberta", 12, 768, 12, 3072, 50265, **ROBERTA)),
    "google-bert/bert-base-uncased": (109_514_298, shape("bert", 12, 768, 12, 3072, 30522)),
    # the embeddings, and what Pythia's model cards print without them: 18,915,328, 85,056,000, 805,736,448
    "EleutherAI/pythia-70m": (70_426_624, shape("gpt_neox", 6, 512, 8, 2048, 50304)),
    "EleutherAI/pythia-160m": (162_322_944, shape("gpt_neox", 12, 768, 12, 3072, 50304)),
    "EleutherAI/pythia-1b": (1_011_781_632, shape("gpt_neox", 16, 2048, 8, 8192, 50304)),
    "TinyLlama/TinyLlama_v1.1": (1_100_048_384, shape("llama", 22, 2048, 32, 5632, 32000, num_key_value_heads=4)),
    "meta-llama/Llama-2-7b-hf": (6_738_415_616, shape("llama", 32, 4096, 32, 11008, 32000)),
    "meta-llama/Llama-3.2-1B": (
        1_235_814_400,
        shape("llama", 16, 2048, 32, 8192, 128256, num_key_value_heads=8, tie_word_embeddings=True),
    ),
    "mistralai/Mistral-7B-v0.1": (7_241_732_096, shape("mistral", 32, 4096, 32, 14336, 32000, num_key_value_heads=8)),
    "Qwen/Qwen2.5-0.5B": (
        494_032_768,
        shape("qwen2", 24, 896, 14, 4864, 151936, num_key_value_heads=2, tie_word_embeddings=True),
    ),
    "Qwen/Qwen3-0.6B": (
        596_049_920,
        shape("qwen3", 28, 1024, 16, 3072, 151936, num_key_value_heads=8, head_dim=128, tie_word_embeddings=True),
    ),
    # 149 million in its model card
    "answerdotai/ModernBERT-base": (149_655_232, shape("modernbert", 22, 768, 12, 1152, 50368)),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_are_those_published(name: str) -> None:
    """Oracle: the published number, transformers' own count, and the sum over the places that growth knows."""
    published, config = PUBLISHED[name]
    family: Any = architectures.of(config.model_type).family(config.model_type)
    with torch.device("meta"):  # shapes only
        network = family(config)
    model = LanguageModel(network, Vocabulary(config.vocab_size))
    assert isinstance(config, PreTrainedConfig)
    assert model.parameters_count == network.num_parameters() == published
    modules = {id(place.module): place.module for place in parts_of(places(network))}
    parameters = {id(p): p.numel() for module in modules.values() for p in module.parameters()}
    assert sum(parameters.values()) == published
