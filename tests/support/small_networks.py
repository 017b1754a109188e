"""Small networks of every family that can grow, for the tests of growth."""

from __future__ import annotations

from typing import Any

import torch
from transformers import (
    BertConfig,
    BertForMaskedLM,
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedModel,
    RobertaConfig,
    RobertaForMaskedLM,
    RobertaPreLayerNormConfig,
    RobertaPreLayerNormForMaskedLM,
)

FAMILIES = ("gpt2", "roberta-prelayernorm", "roberta", "bert")
PRE_NORM = FAMILIES[:2]
TOKENS = torch.randint(4, 23, (6, 9), generator=torch.Generator().manual_seed(5))


def network(
    family: str, layers: int = 2, width: int = 16, eps: float = 1e-5, spread: float = 0.3, **options: Any
) -> Any:
    """A network with heads of size 4 in float64, in evaluation mode, with no parameter left at its initial value."""
    common = {"vocab_size": 23, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2} | options
    sizes = {"hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": width // 4}
    torch.manual_seed(3)
    if family == "gpt2":
        config = GPT2Config(n_positions=12, layer_norm_epsilon=eps, **sizes, **common)
        model: Any = GPT2LMHeadModel(config)
    else:
        bert = common | sizes | {"layer_norm_eps": eps, "max_position_embeddings": 12, "intermediate_size": 3 * width}
        if family == "bert":
            model = BertForMaskedLM(BertConfig(type_vocab_size=2, hidden_act="relu", **bert))
        elif family == "roberta":
            model = RobertaForMaskedLM(RobertaConfig(type_vocab_size=1, **bert))
        else:
            model = RobertaPreLayerNormForMaskedLM(RobertaPreLayerNormConfig(type_vocab_size=1, **bert))
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, mean=float(parameter.mean() > 0.5), std=spread)  # gains stay around one
    model.config.use_cache = False  # a cache mixes up copies of a layer, which test_fpi_depth makes by hand
    return model.double().eval()


def equal_gains(model: Any) -> None:
    """Make the mean of a LayerNorm's output the same for all tokens."""
    for module in model.base_model.modules():
        if isinstance(module, torch.nn.LayerNorm):
            torch.nn.init.constant_(module.weight, 0.7)


def difference(old: PreTrainedModel, new: PreTrainedModel) -> float:
    """Largest difference of the logits, of which there is a spread of several units."""
    with torch.no_grad():
        before, after = old(TOKENS).logits, new(TOKENS).logits
    assert before.std() > 0.3
    return (before - after).abs().max().item()
