"""EWC: elastic weight consolidation (Kirkpatrick et al. 2017), online (Schwarz et al. 2018).

Take it if no old text may be kept, and weights may stay close to their old values.

The online form is from "Progress & compress".

A penalty keeps the weights near theta*, the weights at the end of the previous stage: (lambda/2)
sum_k F*_k (theta_k - theta*_k)^2. F* is the diagonal Fisher information of all earlier domains:
after domain i it is gamma times F* after domain i-1, plus F_i.

F_i is the empirical Fisher information, at the true targets: the mean over sequences of the squared
gradient of the sequence's loss (the mean cross-entropy of its predictions). Many libraries square
the gradient of the mean over a batch instead. That is as cheap as training, but gradients of
opposite sign cancel before they are squared, so it shrinks as the batch grows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from benchmark.training.method import NotNegative, PartOfStage, Share
from methods._consolidation import Consolidation, add_sequences

if TYPE_CHECKING:
    from torch import Tensor

    from benchmark.training.learner import Batch, Learner


@dataclass
class EWC(Consolidation):
    title = "EWC"
    search_space: ClassVar = {"strength": (0.1, 1.0, 10.0, 100.0), "share": (0.05, 0.1)}

    strength: NotNegative = 1.0  # lambda. With 0 it measures nothing and equals Naive
    decay: Share = 0.9  # gamma: factor of earlier Fisher information
    share: PartOfStage = 0.05  # of a stage's budget, to measure the previous domain's F_i

    def measure(self, learner: Learner, batches: Sequence[Batch], total: Sequence[Tensor]) -> int:
        from benchmark.models.fast_operators import cross_entropy

        add_sequences(learner, batches, cross_entropy, total, lambda gradients: gradients.square_())
        return batches[0].global_size
