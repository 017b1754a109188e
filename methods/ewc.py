"""EWC: elastic weight consolidation (Kirkpatrick et al. 2017), online (Schwarz et al. 2018).

Take it where no old text may be kept and the weights may hold still.

The online form is that of "Progress & compress".

A penalty holds weights near theta*, those of the previous stage's end, by the diagonal Fisher
information F* of all earlier domains: (lambda/2) sum_k F*_k (theta_k - theta*_k)^2 with F* of
domain i = gamma F* of domain i-1 + F_i.

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

    strength: NotNegative = 1.0  # lambda; 0 measures nothing and is Naive
    decay: Share = 0.9  # gamma: of earlier Fisher information when a domain is added
    share: PartOfStage = 0.05  # of a stage's budget, for the Fisher information of the domain left

    def measure(self, learner: Learner, batches: Sequence[Batch], total: Sequence[Tensor]) -> int:
        from benchmark.models.fast_operators import cross_entropy

        add_sequences(learner, batches, cross_entropy, total, lambda gradients: gradients.square_())
        return batches[0].global_size
