"""Merge: naive training, then interpolation with the weights before it (Wortsman et al. 2022).

Take it to give up some of a new domain for the old ones, after training.

"Robust fine-tuning of zero-shot models", WiSE-FT, arXiv 2109.01903.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from benchmark.training.method import LifelongMethod, Phase, Share, Stage

if TYPE_CHECKING:
    from benchmark.models import LanguageModel
    from benchmark.training.learner import Batch, Learner

MOMENT = 1e-6  # of the budget: a phase takes at least one step, and merging needs only one


@dataclass
class Merge(LifelongMethod):
    title = "Merge"
    group = "controls"
    needs_full_weights = True
    search_space: ClassVar = {"weight": (0.25, 0.5, 0.75)}
    state = ("merged",)

    weight: Share = 0.5  # of the new model. The rest is M_{i-1}'s

    merged: bool = field(default=False, init=False)  # in this stage

    def start_stage(self, model: LanguageModel, stage: Stage) -> LanguageModel:
        self.previous = [p.detach().clone() for p in model.parameters()]
        self.merged = False
        return model

    def phases(self, stage: Stage) -> Sequence[Phase]:
        if stage.first:
            return [Phase("adapt")]
        return [Phase("adapt", share=1 - MOMENT), Phase("merge", share=MOMENT, trains=False)]

    def on_batch(self, learner: Learner, batches: Sequence[Batch]) -> None:
        import torch

        if not self.merged:
            with torch.no_grad():
                for new, old in zip(learner.parameters, self.previous, strict=True):
                    new.lerp_(old, 1 - self.weight)
        self.merged = True
