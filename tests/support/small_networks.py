"""Small networks of every family that can grow, for the tests of growth."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers import PreTrainedModel

FAMILIES = (
    "gpt2",
    "gpt_neox",
    "roberta-prelayernorm",
    "modernbert",
    "roberta",
    "bert",
)  # with LayerNorms
RMS_FAMILIES = (
    "llama",
    "mistral",
    "qwen2",
    "qwen3",
    "smollm3",
    "olmo2",
    "olmo3",
    "gemma3_text",
)
MODULES = {"gemma3_text": "gemma3"}  # transformers' modules whose name is not the family's
CAUSAL, PRE_NORM = FAMILIES[:2], FAMILIES[:4]
TOKENS = torch.randint(4, 23, (6, 9), generator=torch.Generator().manual_seed(5))


def network(
    family: str,
    layers: int = 2,
    width: int = 16,
    eps: float = 1e-5,
    spread: float = 0.3,
    **options: Any,
) -> Any:
    """A network with heads of size 4 in float64, in evaluation mode, with no parameter left at its
    initial value.

    Networks with RMSNorm have two query heads per key head. Heads of Qwen3 and Gemma 3 have size 6.
    SmolLM3's last layer has no rotary positions. OLMo 3 and Gemma 3 have sliding-window attention
    in all layers but the last.
    """
    settings: dict[str, Any] = {
        "vocab_size": 23,
        "pad_token_id": 1,
        "bos_token_id": 0,
        "eos_token_id": 2,
        "hidden_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": width // 4,
        "max_position_embeddings": 12,
    }
    if family == "gpt2":
        settings |= {"layer_norm_epsilon": eps}
    elif family == "modernbert":
        settings |= {"norm_eps": eps, "intermediate_size": 3 * width, "local_attention": 8}
    elif family in RMS_FAMILIES:
        settings |= {
            "rms_norm_eps": eps,
            "intermediate_size": 3 * width,
            "num_key_value_heads": width // 8,
        }
        settings |= {"tie_word_embeddings": True, **make_layer_settings(family, layers)}
    elif family == "gpt_neox":
        settings |= {
            "layer_norm_eps": eps,
            "intermediate_size": 3 * width,
            "tie_word_embeddings": True,
        }
        settings |= {
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 1e4,
                "partial_rotary_factor": 0.5,
            }
        }
    else:
        settings |= {"layer_norm_eps": eps, "intermediate_size": 3 * width}
        settings |= (
            {"type_vocab_size": 2, "hidden_act": "relu"}
            if family == "bert"
            else {"type_vocab_size": 1}
        )
    torch.manual_seed(3)
    config = transformers.AutoConfig.for_model(family, **(settings | options))
    kind: Any = (
        transformers.AutoModelForCausalLM
        if family in (*CAUSAL, *RMS_FAMILIES)
        else transformers.AutoModelForMaskedLM
    )
    model = kind.from_config(config)
    for parameter in model.parameters():
        nn.init.normal_(
            parameter, mean=float(parameter.mean() > 0.5), std=spread
        )  # gains stay around one
    model.config.use_cache = (
        False  # a cache mixes up copies of a layer, which test_fpi_depth makes by hand
    )
    return model.double().eval()


def make_layer_settings(family: str, layers: int) -> dict[str, Any]:
    """Settings of heads and layers that only some families with RMSNorm need."""
    settings: dict[str, Any] = {}
    if family in ("qwen3", "gemma3_text"):
        settings |= {"head_dim": 6}
    if family == "smollm3":
        settings |= {"no_rope_layers": [1] * (layers - 1) + [0]}
    if family in ("olmo3", "gemma3_text"):
        kinds = ["sliding_attention"] * (layers - 1) + ["full_attention"]
        settings |= {"layer_types": kinds, "sliding_window": 5}
    return settings


@contextmanager
def exact_norms() -> Iterator[None]:
    """Let transformers' RMSNorms compute in the network's dtype, not always in single precision."""

    def forward(self: Any, hidden: Tensor) -> Tensor:
        return nn.functional.rms_norm(hidden, self.weight.shape, self.weight, self.variance_epsilon)

    def forward_of_gemma(self: Any, hidden: Tensor) -> Tensor:
        return nn.functional.rms_norm(hidden, self.weight.shape, 1 + self.weight, self.eps)

    modules = []
    for family in RMS_FAMILIES:
        name = MODULES.get(family, family)
        modules.append(getattr(getattr(transformers.models, name), f"modeling_{name}"))
    norms = [
        value
        for module in modules
        for name, value in vars(module).items()
        if name.endswith("RMSNorm")
    ]
    originals = [norm.forward for norm in norms]
    try:
        for norm in norms:
            norm.forward = forward_of_gemma if "Gemma" in norm.__name__ else forward
        yield
    finally:
        for norm, original in zip(norms, originals, strict=True):
            norm.forward = original


def equal_gains(model: Any) -> None:
    """Make gains equal, so that the mean of a LayerNorm's output is the same for all tokens."""
    for module in model.base_model.modules():
        if isinstance(module, nn.LayerNorm):
            nn.init.constant_(module.weight, 0.7)


def difference(old: PreTrainedModel, new: PreTrainedModel) -> float:
    """Largest difference of the logits, after a check that the old logits vary (std above 0.3)."""
    with torch.no_grad():
        before, after = old(TOKENS).logits, new(TOKENS).logits
    assert before.std() > 0.3
    return float((before - after).abs().max())
