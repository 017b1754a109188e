"""Self-generated replay: if no old text is available, the model writes its memory itself.

Take it with a published model whose text is not available.

Marek et al. 2026, "Forgetting in language models: capacity, optimization, and self-generated
replay", arXiv 2605.26097. Before a stage, the previous stage's model pi draws sequences x from its
own distribution, x_t ~ pi(. | x_<t), at temperature 1 from the beginning of a sequence on. The new
model theta learns from the loss

    mean over new sequences of -log theta(x) + lambda mean over drawn sequences of KL(pi || theta),

with the divergence at each position, as in the authors' code ("kl_pre" with generated text). The
authors draw new sequences throughout training. Here a stage draws a memory once and takes its
sequences from there. It draws at its beginning, so that nothing is drawn after the last stage. The
drawing is charged in seconds and FLOPs, but steps and tokens count only batches. Each token costs a
pass over its sequence so far, so drawing long sequences costs more than a stage's training: lower
`sequences`. No text of earlier domains is read.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from benchmark.training.method import (
    OWN,
    AtLeastOne,
    LifelongMethod,
    NotNegative,
    Phase,
    Share,
    Source,
    Stage,
)

if TYPE_CHECKING:
    from torch import Generator, Tensor

    from benchmark.models import LanguageModel
    from benchmark.training.learner import Batch, Learner


@dataclass
class SelfReplay(LifelongMethod):
    title = "Self-generated replay"
    group = "controls"
    causal_only = True
    needs_full_weights = True
    search_space: ClassVar = {"strength": (0.3, 1.0, 3.0), "replay_ratio": (0.1, 0.25, 0.5)}

    replay_ratio: Share = 0.25  # drawn sequences per batch of new ones, as a share of the batch
    strength: NotNegative = 1.0  # lambda
    sequences: AtLeastOne = 128  # that the model draws for a stage
    from_start: bool = False  # in the first stage too: for a published start model

    writer: Any = field(default=None, init=False)  # pi

    def signature(self, stage: Stage) -> dict[str, object]:
        if stage.first and self.from_start:
            return {"method": "self_replay", **self.list_changed_options()}
        return super().signature(stage)

    def start_stage(self, model: LanguageModel, stage: Stage) -> LanguageModel:
        if stage.first and not self.from_start:
            return model
        self.writer = copy.deepcopy(model).eval().requires_grad_(False)
        length = stage.memory_sequences(0).shape[1] - 1
        self.memory = draw_sequences(self.writer, self.sequences, length, stage.seed)
        return model

    def phases(self, stage: Stage) -> Sequence[Phase]:
        if stage.first and not self.from_start:
            return [Phase("adapt")]
        own_sequences = Source(OWN, self.replay_ratio, weight=self.strength)
        return [Phase("adapt", sources=(Source("new"), own_sequences))]

    def make_sequences(self, shape: tuple[int, int], generator: Generator) -> Tensor:
        import torch

        device = generator.device
        numbers = torch.randint(self.sequences, shape[:1], generator=generator, device=device)
        return self.memory.to(device)[numbers]

    def loss(self, learner: Learner, batch: Batch) -> Tensor:
        if batch.source == 0 or self.writer is None:
            return super().loss(learner, batch)
        from benchmark.models.fast_operators import kl_divergence

        theta, pi = (
            model(batch.tokens, batch.domains, batch.positions)
            for model in (learner.model, self.writer)
        )
        return kl_divergence(theta, pi)  # the mean over sequences and positions


def draw_sequences(model: LanguageModel, sequences: int, length: int, seed: int) -> Tensor:
    """Token ids (sequences, length) that a model draws from its own distribution, after `<s>`."""
    import torch

    device = next(model.parameters()).device
    generator = torch.Generator(device).manual_seed(seed)
    tokens = torch.full((sequences, 1), model.vocabulary.special.bos, device=device)
    domains = torch.full((sequences,), len(model.vocabulary.domains) - 1, device=device)
    with torch.no_grad():
        for column in range(length):
            last = torch.full((sequences, 1), column, device=device)
            odds = model(tokens, domains, last)[:, 0].float().softmax(-1)
            column_tokens = odds.multinomial(1, generator=generator)
            tokens = torch.cat([tokens, column_tokens], dim=1)
    return tokens[:, 1:]
