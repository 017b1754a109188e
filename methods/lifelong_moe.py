"""Lifelong-MoE: a new expert for each domain, older ones frozen, the previous model distilled.

Take it where parameters may grow and the cost of a token may not.

Chen et al. 2023, "Lifelong language pretraining with distribution-specialized experts", arXiv
2305.12281. At each new domain every layer that has experts gets one more, a copy; the older experts
and their rows of the router stay as they are, while the new ones and all that the experts share
(theta_d) learn from

    L(x) = -log p(x) + lambda KL(p_before(x) || p(x)),

with p_before of the model that the stage before left, frozen, on the text of the new domain:
nothing is replayed. It is learning without forgetting (Li and Hoiem 2016), and keeps the router
where it was. The mixture is that of benchmark/models/kinds/experts.py.

The paper begins with a mixture of many experts, adds several at once, and balances their loads by a
further loss. Here the first stage is Naive's, whose feed-forward networks become the first experts,
and nothing asks for balance: a new expert is there for its domain.
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

    distillation: NotNegative = 1.0  # lambda: weight of the model before (the default is ours)

    teacher: Any = field(default=None, init=False)  # the model that the stage before left

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
