"""DER++: dark experience replay (Buzzega et al. 2020).

Take it if little text is replayed, and old logits say more than its tokens.

The loss of a memory sequence is beta CE + alpha MSE(logits, stored logits). V logits for each token
of a memory of 200 million tokens fit on no disk. So the previous stage's model computes the logits
again. It is the newest model that was trained on the sequence's domain or a later one. The squared
error is averaged over the vocabulary, as in the authors' code. Both terms use the same memory
sequences. In the paper each term draws its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from benchmark.training.method import NotNegative, Share
from methods._distillation import Distillation

if TYPE_CHECKING:
    from torch import Tensor


@dataclass
class DERpp(Distillation):
    title = "DER++"
    group = "controls"
    search_space: ClassVar = {"alpha": (0.1, 0.5, 1.0), "beta": (0.5, 1.0, 2.0)}

    replay_ratio: Share = 0.1  # share of each batch from memory, as ER's
    alpha: NotNegative = 0.5  # weight of the squared error between logits
    beta: NotNegative = 1.0  # weight of the cross-entropy. ER has alpha 0 and beta 1

    def beyond_er(self, student: Tensor, teacher: Tensor, targets: Tensor) -> Tensor:
        import torch.nn.functional as F

        from benchmark.models.fast_operators import at_least_fp32, cross_entropy

        error = F.mse_loss(at_least_fp32(student), at_least_fp32(teacher))
        return self.alpha * error + (self.beta - 1) * cross_entropy(student, targets)
