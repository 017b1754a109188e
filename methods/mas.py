"""MAS: memory aware synapses (Aljundi et al. 2018).

Take it instead of EWC to measure importance without targets.

Like EWC, but a weight is important if it changes the model's output. Targets are not used. The
importance of a domain is the mean over sequences of |d ||F(x)||^2 / d theta|, where F(x) are the
logits at the sequence's predicted positions and the squared L2 norm is averaged over these
positions. Importances are summed over domains. The penalty is lambda sum_k Omega_k (theta_k -
theta*_k)^2, without 1/2, as in the paper and the authors' code.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from benchmark.training.method import NotNegative, PartOfStage
from methods._consolidation import Consolidation, add_sequences

if TYPE_CHECKING:
    from torch import Tensor

    from benchmark.training.learner import Batch, Learner


@dataclass
class MAS(Consolidation):
    title = "MAS"
    search_space: ClassVar = {"strength": (1e-7, 1e-6, 1e-5, 1e-4), "share": (0.05, 0.1)}
    pull = 2.0

    strength: NotNegative = 1e-6  # lambda. With 0 it measures nothing and equals Naive
    share: PartOfStage = 0.05  # of a stage's budget, to measure the previous domain's importances

    def measure(self, learner: Learner, batches: Sequence[Batch], total: Sequence[Tensor]) -> int:
        add_sequences(
            learner, batches, compute_squared_norm, total, lambda gradients: gradients.abs_()
        )
        return batches[0].global_size


def compute_squared_norm(logits: Tensor, targets: Tensor) -> Tensor:
    """The squared norm of logits (B, K, V), averaged over the B K positions."""
    from benchmark.models.fast_operators import at_least_fp32

    return at_least_fp32(logits).square().sum(-1).mean()
