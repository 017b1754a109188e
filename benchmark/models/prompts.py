"""The rows of the vocabulary that stand for domains: one for each that a model has met, so they come one by one.

Nothing else of a model depends on how many there are: no softmax contains them, and new ones are drawn apart from all
other weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from benchmark.models.devices import kept_random_numbers
from benchmark.models.transformer import LanguageModel


def meet(model: LanguageModel, domains: Sequence[str], seed: int) -> None:
    """Let `model` have a prompt row for each of `domains`, which begin with those that it has met or are fewer.

    New rows are drawn as the model's other embeddings were, by `seed` alone; torch's generator is left as it was.
    Rows of domains that are not named are dropped.
    """
    before = model.vocabulary
    known = min(len(before.domains), len(domains))
    if before.domains[:known] != tuple(domains[:known]):
        raise ValueError(f"a model that met {', '.join(before.domains)} cannot go on with {', '.join(domains)}")
    if before.domains == tuple(domains):
        return
    model.vocabulary = replace(before, domains=tuple(domains))
    trainable = next(model.network.get_input_embeddings().parameters()).requires_grad
    with kept_random_numbers(next(model.parameters()).device):
        torch.manual_seed(seed)
        model.network.resize_token_embeddings(model.vocabulary.size, mean_resizing=False)
    for part in (model.network.get_input_embeddings(), model.network.get_output_embeddings()):
        part.requires_grad_(trainable)
        part.zero_grad()  # a gradient left from before has fewer rows
    model.set_network(model.network)
