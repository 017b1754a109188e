"""Lifelong-MoE: a new expert for each domain, older ones frozen, the previous model distilled.

Take it where parameters may grow and the cost of a token may not.

Chen et al. 2023, "Lifelong language pretraining with distribution-specialized experts", arXiv
2305.12281. For each new domain, every layer with experts gets one more, a copy. The older experts
and their rows of the router are frozen. The new ones, and all weights that the experts share
(theta_d), learn from

    L(x) = -log p(x) + lambda KL(p_before(x) || p(x)).

p_before is the previous stage's model, frozen, on the text of the new domain. Nothing is replayed.
This is learning without forgetting (Li and Hoiem 2016), and keeps the router close to its earlier
choices. The mixture is described in benchmark/models/kinds/experts.py.

The paper begins with a mixture of many experts, adds several at once, and balances their loads by a
further loss. Here the first stage is Naive's, and its feed-forward networks become the first
experts. No loss balances the experts, because a new expert is meant for its domain.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from benchmark.training.method import LifelongMethod, NotNegative, Stage

if TYPE_CHECKING:
    from torch import Tensor

    from benchmark.models import LanguageModel
    from benchmark.training.learner import Batch, Learner


@dataclass
class LifelongMoE(LifelongMethod):
    title = "Lifelong-MoE"
    group = "controls"
    needs_full_weights = True
    search_space: ClassVar = {"distillation": (0.1, 0.3, 1.0, 3.0)}

    distillation: NotNegative = 1.0  # lambda: weight of the KL term (the default is ours)

    teacher: Any = field(default=None, init=False)  # the previous stage's model

    def start_stage(self, model: LanguageModel, stage: Stage) -> LanguageModel:
        if stage.first:
            return model
        from benchmark.models.kinds.experts import ExpertModel

        self.teacher = stage.previous().to(next(model.parameters()).device).requires_grad_(False)
        grown = model if isinstance(model, ExpertModel) else ExpertModel(model)
        grown.add()
        return grown

    def loss(self, learner: Learner, batch: Batch) -> Tensor:
        if self.teacher is None:
            return super().loss(learner, batch)
        from benchmark.models.fast_operators import cross_entropy, kl_divergence

        logits = learner.model(batch.tokens, batch.domains, batch.positions)
        teacher_logits = self.teacher(batch.tokens, batch.domains, batch.positions)
        divergence = kl_divergence(logits, teacher_logits)
        return cross_entropy(logits, batch.targets) + self.distillation * divergence
