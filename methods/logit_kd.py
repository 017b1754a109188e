"""Logit-KD: replay with distillation of the previous model's logits (Jin et al. 2022).

Take it if replay still forgets, and you can pay for a second forward pass.

Distillation is that of Hinton et al. 2015. As in ER, memory sequences are a share of each batch. ER
trains them by their cross-entropy CE. Logit-KD trains them by (1 - r) CE + r T^2 KL(teacher ||
student) at the predicted positions, with both distributions softened by the temperature T. The
teacher is the previous stage's model. Sequences of the new domain keep their cross-entropy, so r =
0 is ER.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from benchmark.training.method import Positive, Share
from methods._distillation import Distillation

if TYPE_CHECKING:
    from torch import Tensor


@dataclass
class LogitKD(Distillation):
    title = "Logit-KD"
    search_space: ClassVar = {
        "replay_ratio": (0.1, 0.2, 0.3, 0.5, 0.7),
        "distillation": (0.25, 0.5, 1.0),
        "temperature": (1.0, 2.0),
    }

    replay_ratio: Share = 0.1  # share of each batch from memory (the paper: 9:1)
    distillation: Share = 0.5  # r: the teacher's share of a memory sequence's loss
    temperature: Positive = 2.0  # T, of teacher and student

    def beyond_er(self, student: Tensor, teacher: Tensor, targets: Tensor) -> Tensor:
        from benchmark.models.fast_operators import cross_entropy, kl_divergence

        divergence = kl_divergence(student, teacher, self.temperature)
        return self.distillation * (
            self.temperature**2 * divergence - cross_entropy(student, targets)
        )
