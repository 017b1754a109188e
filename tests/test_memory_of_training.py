"""The estimate of the memory that training needs (`benchmark.instruments.memory`)."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from benchmark.data.tokenizer import Vocabulary
from benchmark.instruments.conformance import make_tiny_config
from benchmark.instruments.memory import GIB, estimate_memory
from benchmark.models import LanguageModel
from benchmark.settings.optimizers import find_optimizer
from benchmark.training.optimizer import PhaseOptimizer

PAGE = Path(__file__).parents[1] / "docs/appendix_memory.md"
# sizes from the models' own config.json
PUBLISHED: dict[str, tuple[str, dict[str, Any]]] = {
    "Gemma 3 1B": (
        "gemma3_text",
        {
            "vocab_size": 262_144,
            "hidden_size": 1152,
            "intermediate_size": 6912,
            "num_hidden_layers": 26,
            "num_attention_heads": 4,
            "num_key_value_heads": 1,
            "head_dim": 256,
        },
    ),
    "Llama 3.2 1B": (
        "llama",
        {
            "vocab_size": 128_256,
            "hidden_size": 2048,
            "intermediate_size": 8192,
            "num_hidden_layers": 16,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "tie_word_embeddings": True,
        },
    ),
    "OLMo 2 1B": (
        "olmo2",
        {
            "vocab_size": 100_352,
            "hidden_size": 2048,
            "intermediate_size": 8192,
            "num_hidden_layers": 16,
            "num_attention_heads": 16,
        },
    ),
    "SmolLM3 3B": (
        "smollm3",
        {
            "vocab_size": 128_256,
            "hidden_size": 2048,
            "intermediate_size": 11_008,
            "num_hidden_layers": 36,
            "num_attention_heads": 16,
            "num_key_value_heads": 4,
            "tie_word_embeddings": True,
        },
    ),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_pages_table_is_computed(name: str) -> None:
    """Oracle: `estimate_memory` for the models' sizes, rounded as on the page."""
    family, sizes = PUBLISHED[name]
    config = AutoConfig.for_model(family, max_position_embeddings=4096, **sizes)
    one, eight = (estimate_memory(config, sequences, 1024) for sequences in (1, 8))
    fixed = one.weights + one.gradients + one.moments
    numbers = [fixed, one.activations, one.total, eight.activations, eight.total]
    cells = [f"{one.parameters:,}", *(f"{number / GIB:.1f}" for number in numbers)]
    [row] = re.findall(rf"^\| {name} \|(.*)\|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert [cell.strip() for cell in row.split("|")] == cells
    if name in ("OLMo 2 1B", "SmolLM3 3B"):  # another page names them with 10% on top
        with_overhead = f"{1.1 * eight.total / GIB:.0f} GiB"
        assert with_overhead in (PAGE.parent / "models.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("family", ["llama", "olmo2", "gpt2"])
def test_it_is_what_a_step_holds(family: str) -> None:
    """Oracle: a real step in fp32: the bytes of the tensors that autograd saves, of the gradients
    and of torch's optimizer, added up.
    """
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = AutoConfig.for_model(
        family, vocab_size=300, pad_token_id=None, max_position_embeddings=32, **sizes
    )
    for name in ("attn_pdrop", "embd_pdrop", "resid_pdrop"):
        setattr(config, name, 0.0)
    expected = estimate_memory(config, 3, 20, precision=torch.float32)
    network = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")
    model = LanguageModel(network, Vocabulary(300)).train()
    named = list(model.named_parameters())
    own = {parameter.untyped_storage().data_ptr() for _, parameter in named}
    kept: dict[int, Any] = {}

    def keep(tensor: Any) -> Any:
        kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    tokens = torch.randint(4, 300, (3, 20))
    columns = torch.arange(20).expand(3, -1).contiguous()
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = model.compute_mean_loss(tokens, tokens[:, 0] * 0, columns, tokens)
    saved = sum(t.untyped_storage().nbytes() for place, t in kept.items() if place not in own)
    assert expected.activations == pytest.approx(saved, rel=0.02)
    loss.backward()
    training = make_tiny_config("naive").training
    optimizer = PhaseOptimizer(find_optimizer("adamw"), named, [1.0] * len(named), training)
    optimizer.step(1e-3)
    moments = [
        value.nbytes
        for state in optimizer.gather_moments().values()
        for value in state.values()
        if value.dim()
    ]
    gradients = [parameter.grad.nbytes for _, parameter in named if parameter.grad is not None]
    assert (expected.gradients, expected.moments) == (sum(gradients), sum(moments))
    assert expected.parameters == sum(parameter.numel() for _, parameter in named)
    assert estimate_memory(config, 3, 20, copies=1).copies == expected.weights
