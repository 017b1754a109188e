"""Keeps a learned map of the last hidden states near the previous model's last hidden states
(FitNets, Romero et al. 2015).
"""

from dataclasses import dataclass

from benchmark.training.method import LifelongMethod, NotNegative


@dataclass
class FeatureDistillation(LifelongMethod):
    title = "Feature distillation"

    strength: NotNegative = 0.1  # weight of the mean squared distance to the teacher's states

    def start_stage(self, model, stage):
        import torch

        self.teacher = None if stage.first else stage.previous().to(next(model.parameters()).device)
        if self.teacher is not None:  # the map learns with the model and is gone after the stage
            model.projection = torch.nn.Linear(model.hidden_size, self.teacher.hidden_size)
        return model

    def loss(self, learner, batch):
        from benchmark.models.fast_operators import cross_entropy

        hidden = learner.model.hidden(batch.tokens, batch.domains)
        loss = cross_entropy(learner.model.predict(hidden, batch.positions), batch.targets)
        if self.teacher is None:
            return loss
        target = self.teacher.hidden(batch.tokens, batch.domains).detach()
        return loss + self.strength * (learner.model.projection(hidden) - target).square().mean()
