"""Replay with distillation from the previous stage's model, for Logit-KD and DER++."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import TYPE_CHECKING

from benchmark.training.method import LifelongMethod, Phase, Stage

if TYPE_CHECKING:
    from torch import Tensor

    from benchmark.models import LanguageModel
    from benchmark.training.learner import Batch, Learner


class Distillation(LifelongMethod):
    """ER (one mean loss over all sequences) with a further loss term on memory sequences.

    The term compares the model with a frozen teacher, the previous stage's model M_{i-1}.
    """

    replay_ratio: float  # option of the subclasses
    teacher: LanguageModel | None = None

    def start_stage(self, model: LanguageModel, stage: Stage) -> LanguageModel:
        self.teacher = None if stage.first else copy.deepcopy(model).eval().requires_grad_(False)
        return model

    def phases(self, stage: Stage) -> Sequence[Phase]:
        return [Phase("adapt", memory=self.replay_ratio)]

    def loss(self, learner: Learner, batch: Batch) -> Tensor:
        from benchmark.models.fast_operators import cross_entropy

        logits = learner.model(batch.tokens, batch.domains, batch.positions)
        loss = cross_entropy(logits, batch.targets)
        sequences = batch.memory_sequences
        if self.teacher is None or not sequences:
            return loss
        tokens = batch.tokens[-sequences:]
        domains = batch.domains[-sequences:]
        positions = batch.positions[-sequences:]
        teacher = self.teacher(tokens, domains, positions)
        # a mean over all sequences: the term's weight is the share of memory sequences
        return loss + sequences / len(batch.tokens) * self.beyond_er(
            logits[-sequences:], teacher, batch.targets[-sequences:]
        )

    def beyond_er(self, student: Tensor, teacher: Tensor, targets: Tensor) -> Tensor:
        """The mean over memory sequences of the term that is added to their cross-entropy.

        Logits (B, K, V) and targets (B, K) are those of the memory sequences only.
        """
        raise NotImplementedError
