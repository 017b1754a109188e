"""MER: meta-experience replay (Riemer et al. 2019), with Reptile's step between batches.

Take it as ER with aligned gradients, at nearly ER's cost.

arXiv 1810.11910. Batches are ER's. After every k steps of the optimizer, the weights are moved back
towards theta_0, the weights before these steps,

    theta <- theta_0 + gamma (theta_k - theta_0).

This is Reptile's step (Nichol et al. 2018, arXiv 1803.02999). To first order, it also makes the
gradients of the k batches, which contain memory sequences, point the same way. Abbes et al. 2025
(arXiv 2508.01908) pre-train language models in this way, and it costs hardly more than ER. k is
small here because stages have few steps. k = 1 is ER with gamma times its rate. Steps after the
last multiple of k are kept as they are, because a stage may end with any step.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from benchmark.training.method import AtLeastOne, Share, Stage
from methods.er import ER

if TYPE_CHECKING:
    from benchmark.models import LanguageModel
    from benchmark.training.learner import Learner


@dataclass
class MER(ER):
    title = "MER"
    group = "controls"
    needs_full_weights = True
    search_space: ClassVar = {
        "replay_ratio": (0.1, 0.25, 0.5),
        "gamma": (0.3, 0.5, 0.8),
        "steps": (5, 10, 20),
    }
    state = ("taken", "begin")

    replay_ratio: Share = 0.25  # share of each batch from memory (Abbes et al.: a quarter or half)
    gamma: Share = 0.5  # share of the change in k steps that is kept
    steps: AtLeastOne = 10  # k: of the optimizer, after which the weights are moved back

    taken: int = field(default=0, init=False)  # steps in this stage
    # theta_0, in the order of `learner.parameters`
    begin: list[Any] = field(default_factory=list, init=False)

    def start_stage(self, model: LanguageModel, stage: Stage) -> LanguageModel:
        self.taken = 0
        self.begin = []
        if not stage.first:
            self.begin = [p.detach().clone() for p in model.parameters() if p.requires_grad]
        return model

    def after_step(self, learner: Learner) -> None:
        import torch

        self.taken += 1
        if self.begin and self.taken % self.steps == 0:
            with torch.no_grad():
                for weight, begin in zip(learner.parameters, self.begin, strict=True):
                    weight.lerp_(begin, 1 - self.gamma)
                    begin.copy_(weight)
