"""EMA: an exponential moving average of the weights is evaluated, and training ignores it.

Take it for a smoother model at no cost of steps.

Averaging is from Polyak and Juditsky 1992, "Acceleration of stochastic approximation by averaging".
The exponential average is from Tarvainen and Valpola 2017, "Mean teachers are better role models",
arXiv 1703.01780, equation 2. After each step

    mean_t = alpha mean_{t-1} + (1 - alpha) theta_t

The average continues over stages. A budget does not say how many steps it has, so alpha is computed
from a half-life h, a share of a stage's budget: a step that takes the share d of the budget has
alpha = 2^(-d / h).
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from benchmark.training.method import LifelongMethod, Positive, Stage

if TYPE_CHECKING:
    from benchmark.models import LanguageModel
    from benchmark.training.learner import Learner


@dataclass
class EMA(LifelongMethod):
    title = "EMA"
    group = "controls"
    needs_full_weights = True
    acts_first = True  # the first stage, too, evaluates the average
    search_space: ClassVar = {"half_life": (0.1, 0.3, 1.0, 3.0)}
    state = ("before",)

    half_life: Positive = 0.3  # h: of the average, as a share of a stage's budget

    # share of the stage that was over in the step before
    before: float = field(default=0.0, init=False)

    def start_stage(self, model: LanguageModel, stage: Stage) -> LanguageModel:
        self.eval_model = copy.deepcopy(model) if stage.first else stage.previous()
        self.before = 0.0
        return model

    def after_step(self, learner: Learner) -> None:
        import torch

        assert self.eval_model is not None
        alpha = 2 ** ((self.before - learner.elapsed.stage) / self.half_life)
        self.before = learner.elapsed.stage
        with torch.no_grad():
            for mean, weight in zip(
                self.eval_model.parameters(), learner.model.parameters(), strict=True
            ):
                mean.lerp_(weight, 1 - alpha)
