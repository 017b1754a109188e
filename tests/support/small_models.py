"""Small models for tests of models: a vocabulary of words, rows of tokens, models of each kind."""

from __future__ import annotations

from typing import Any

import torch
from tokenizers import Tokenizer, models
from torch import Tensor

from benchmark.data.tokenizer import SPECIAL_TOKENS, Vocabulary
from benchmark.models import LanguageModel, build
from benchmark.models.kinds.experts import ExpertModel
from benchmark.models.kinds.lora import LoraModel
from benchmark.models.kinds.progressive import Kind, ProgressiveModel

VOCABULARY = Vocabulary(40, ("web", "news", "reviews", "biology"))


def rows(count: int = 4) -> tuple[Tensor, Tensor]:
    """Tokens (count, 11), and three positions to predict at in each row."""
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(4, VOCABULARY.text, (count, 11), generator=generator)
    return tokens, torch.stack([torch.randperm(11, generator=generator)[:3] for _ in range(count)])


def of(domain: int, count: int = 4) -> Tensor:
    """The index `domain` for each of `count` rows."""
    return torch.full((count,), domain)


def tokenizer() -> Tokenizer:
    words = [*SPECIAL_TOKENS, *(f"w{i}" for i in range(len(SPECIAL_TOKENS), VOCABULARY.text))]
    tokenizer = Tokenizer(models.WordLevel({word: place for place, word in enumerate(words)}))
    tokenizer.add_special_tokens(list(SPECIAL_TOKENS))
    return tokenizer


def plain(architecture: str, dropout: float = 0.1, layers: int = 2) -> LanguageModel:
    """A language model with weights from torch's generator in its present state."""
    return build(
        architecture, layers, 32, VOCABULARY, sequence_length=12, head_size=16, dropout=dropout
    )


def large(
    architecture: str, layers: int = 2, width: int = 32, prompts: bool = True
) -> LanguageModel:
    """A model with weights so large that what it attends to changes its logits."""
    torch.manual_seed(0)
    model = build(architecture, layers, width, VOCABULARY, 20, head_size=16, prompts=prompts)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.data.normal_(std=0.3)
    return model.eval()


def progressive(
    architecture: str, columns: int = 3, dropout: float = 0.1, kind: Kind = "linear"
) -> ProgressiveModel:
    torch.manual_seed(0)
    model = ProgressiveModel.add_column(
        plain(architecture, dropout), plain(architecture, dropout), kind
    )
    for _ in range(columns - 2):
        model = ProgressiveModel.add_column(model, plain(architecture, dropout), kind)
    # biases start at 0 and norms at 1, where a test would not notice if they were missing
    for parameter in model.parameters():
        parameter.data += 0.05 * torch.randn_like(parameter)
    return model


def adapted(architecture: str, domains: int = 2, dropout: float = 0.1) -> LoraModel:
    """A model with random adapters for the second domain and the `domains` - 1 after it."""
    torch.manual_seed(0)
    model = LoraModel(plain(architecture, dropout))
    for _ in range(domains):
        model.add(rank=3)
    for parameter in model.adapters.parameters():
        parameter.data.normal_(std=0.2)
    return model


def mixture(model: LanguageModel, experts: int) -> Any:
    """`model` with so many experts, all different, and routers that tell tokens apart."""
    grown = ExpertModel(model)
    for _ in range(experts - 1):
        grown.add()
    for parameter in (*grown.experts.parameters(), *grown.routers.parameters()):
        parameter.data += 0.3 * torch.randn_like(parameter)
    return grown
