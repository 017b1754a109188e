"""Replay whose memory rows learn from the previous stage's model too, for Logit-KD and DER++."""

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
    """ER (one mean loss over all rows), and on its memory rows a further term.

    The term is with a frozen teacher, M_{i-1}.
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
        rows = batch.memory_rows
        if self.teacher is None or not rows:
            return loss
        tokens = batch.tokens[-rows:]
        domains = batch.domains[-rows:]
        positions = batch.positions[-rows:]
        teacher = self.teacher(tokens, domains, positions)
        # the mean over all rows: a micro-batch's memory rows weigh as much as they are many
        return loss + rows / len(batch.tokens) * self.beyond_er(
            logits[-rows:], teacher, batch.targets[-rows:]
        )

    def beyond_er(self, student: Tensor, teacher: Tensor, targets: Tensor) -> Tensor:
        """The mean over memory rows of the term added to their cross-entropy.

        Logits (B, K, V), targets (B, K) of the memory rows alone.
        """
        raise NotImplementedError
