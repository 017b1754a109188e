"""DAS: soft masks over the gradients of units that earlier domains need (Ke et al. 2023).

Take it if no old text may be kept, and the network has units to spare for later domains.

arXiv 2302.03241.

The importance I_j of unit j of a linear map y = W x + b is the sensitivity of a domain's loss L to
a factor g_j = 1 on y_j,

    I_j = |tanh(norm(dL / dg_j))|,    dL / dg_j = sum_i W_ji dL / dW_ji + b_j dL / db_j.

Here norm normalises over the units of the map (mean 0, standard deviation 1). Over several domains,
the largest I_j counts. Training multiplies the gradients of W_j and b_j by 1 - I_j. The paper's
code (ContinualLM) masks in this way. Here it is done for the outputs of all linear maps, and not
for whole heads. The paper's other loss, a contrast of masked and whole representations, is left
out. So is its proxy for the knowledge of a published model: here the first domain is measured like
all others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from benchmark.training.method import LifelongMethod, PartOfStage, Phase, Stage

if TYPE_CHECKING:
    from benchmark.training.learner import Batch, Learner


@dataclass
class DAS(LifelongMethod):
    title = "DAS (masks)"
    group = "controls"
    needs_full_weights = True
    search_space: ClassVar = {"share": (0.02, 0.05, 0.1)}
    state = ("importance", "total")

    share: PartOfStage = 0.05  # of the budget, to measure the previous domain

    # I over all earlier domains, one tensor per linear map
    importance: list[Any] = field(default_factory=list, init=False)
    # dL / dg of the previous domain, summed over batches
    total: list[Any] = field(default_factory=list, init=False)

    def phases(self, stage: Stage) -> Sequence[Phase]:
        if stage.first or not self.share:
            return [Phase("adapt")]
        measure = Phase("importance", share=self.share, domain="previous", trains=False)
        return [measure, Phase("adapt", share=1 - self.share)]

    def on_batch(self, learner: Learner, batches: Sequence[Batch]) -> None:
        from benchmark.models.kinds.lora import list_linear_maps

        learner.accumulate(batches)
        sums = []
        for module in list_linear_maps(learner.model):
            units = (
                (module.weight * module.weight.grad).detach().sum(1 - find_output_dimension(module))
            )
            sums.append(
                units if module.bias is None else units + (module.bias * module.bias.grad).detach()
            )
        self.total = (
            [old + new for old, new in zip(self.total, sums, strict=True)] if self.total else sums
        )

    def adjust_gradients(self, learner: Learner, memory: Sequence[Batch]) -> None:
        import torch

        from benchmark.models.kinds.lora import list_linear_maps

        if self.total:  # the first step after the importance phase
            new = [((total - total.mean()) / total.std()).tanh().abs() for total in self.total]
            self.importance = [
                torch.maximum(*pair) for pair in zip(self.importance or new, new, strict=True)
            ]
            self.total = []
        if not self.importance:
            return
        for module, importance in zip(
            list_linear_maps(learner.model), self.importance, strict=True
        ):
            module.weight.grad.mul_((1 - importance).unsqueeze(1 - find_output_dimension(module)))
            if module.bias is not None:
                module.bias.grad.mul_(1 - importance)


def find_output_dimension(module: object) -> int:
    """The output dimension of a linear map's weight: 1 in transformers' Conv1D, otherwise 0."""
    from transformers.pytorch_utils import Conv1D

    return int(isinstance(module, Conv1D))
