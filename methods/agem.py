"""A-GEM: averaged gradient episodic memory (Chaudhry et al. 2019).

Take it to prevent forgetting by gradients only. Compared with replay it gives little.

"Efficient lifelong learning with A-GEM", arXiv 1812.00420.

Each step also computes the mean gradient r of a batch from the memory of all earlier domains. If
the gradient g of the new domain conflicts with r (g.r < 0), the step uses g - (g.r / r.r) r
instead. To first order, this does not change the loss on the memory. The records hold the share of
steps with a conflict (the paper: 0.1%).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from benchmark.training.method import LifelongMethod, Multiple, Phase, Stage

if TYPE_CHECKING:
    from torch import Tensor

    from benchmark.training.learner import Batch, Learner


@dataclass
class AGEM(LifelongMethod):
    title = "A-GEM"
    needs_full_weights = True
    may_equal_naive = True  # if no gradients conflict
    search_space: ClassVar = {"reference": (0.25, 0.5, 1.0)}

    reference: Multiple = 1.0  # sequences from memory for r, as a share of the batch

    def phases(self, stage: Stage) -> Sequence[Phase]:
        return [Phase("adapt", memory_batch=self.reference)]

    def adjust_gradients(self, learner: Learner, memory: Sequence[Batch]) -> None:
        if not memory:  # the memory is empty
            return
        gradient = learner.gradients()
        learner.accumulate(memory)
        conflicts = project(gradient, learner.gradients())
        for parameter, part in zip(learner.parameters, gradient, strict=True):
            parameter.grad = part
        steps = learner.metrics.get("steps", 0) + 1
        share = learner.metrics.get("conflicts", 0.0)
        learner.record(steps=steps, conflicts=share + (conflicts - share) / steps)


def project(gradient: Sequence[Tensor], memory_gradient: Sequence[Tensor]) -> bool:
    """Project `gradient` in place if it conflicts with the memory's. Returns whether it does."""
    product = compute_inner_product(gradient, memory_gradient)
    norm = compute_inner_product(memory_gradient, memory_gradient) if product < 0 else 0.0
    if norm > 0:  # it is 0 if the squares of a small gradient underflow
        for g, r in zip(gradient, memory_gradient, strict=True):
            g.sub_(r, alpha=product / norm)
    return product < 0


def compute_inner_product(first: Sequence[Tensor], second: Sequence[Tensor]) -> float:
    import torch

    products = [torch.sum(a * b) for a, b in zip(first, second, strict=True)]
    return float(torch.stack(products).sum())
