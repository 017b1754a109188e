"""Soup: a model for each domain, and the average of their weights (branch, train, merge).

Take it where domains are trained apart and one model is to serve all.

In Branch-Train-Merge (Li et al. 2022, arXiv 2208.03306), the model of domain n begins as the
average of the earlier models, is trained only on its domain, and then joins the average. The
evaluated model is the uniform soup of all models (Wortsman et al. 2022, "Model soups", arXiv
2203.05482),

    soup_n = 1/n (theta_1 + ... + theta_n) = soup_{n-1} + 1/n (theta_n - soup_{n-1}),

so only the soup and the newest model are kept. theta_1 is Naive's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmark.training.method import LifelongMethod, Stage

if TYPE_CHECKING:
    from benchmark.models import LanguageModel
    from benchmark.training.learner import Learner


@dataclass
class Soup(LifelongMethod):
    title = "Soup"
    group = "controls"
    needs_full_weights = True

    def start_stage(self, model: LanguageModel, stage: Stage) -> LanguageModel:
        if stage.first:
            return model
        self.eval_model = stage.previous()
        model.load_state_dict(self.eval_model.state_dict())
        self.branch = [parameter.detach().clone() for parameter in model.parameters()]
        self.domains = len(stage.domains)
        return model

    def after_step(self, learner: Learner) -> None:
        import torch

        if self.eval_model is None:
            return
        with torch.no_grad():
            for mean, old, new in zip(
                self.eval_model.parameters(), self.branch, learner.model.parameters(), strict=True
            ):
                mean.copy_(old).lerp_(new, 1 / self.domains)
