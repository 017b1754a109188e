"""A quadratic penalty on weights that matter to earlier domains: the common part of EWC and MAS."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, ClassVar

from benchmark.training.method import LifelongMethod, Phase, Share, Stage

if TYPE_CHECKING:
    from torch import Tensor, nn

    from benchmark.models import LanguageModel
    from benchmark.training.learner import Batch, Learner


class Consolidation(LifelongMethod):
    """Adds half of `pull * strength * sum_k importance_k (theta_k - anchor_k)^2` to the loss.

    The anchor is the weights at the end of the previous stage. A stage first measures how much each
    weight matters to the previous domain, without dropout, and adds this to `decay` times the
    earlier importance. The penalty's gradient is added after the loss's gradient has been
    synchronised. So it needs no graph and is the same in every process.
    """

    state = ("importance", "total", "count")
    needs_full_weights = True
    pull: ClassVar[float] = 1.0
    decay: Share = 1.0
    strength: float  # options of the subclasses
    share: float

    importance: Sequence[Tensor] = ()  # of all earlier domains, in the order of learner.parameters
    total: Sequence[Tensor] = ()  # sum over `count` samples of the previous domain
    count: int = 0
    anchor: Sequence[Tensor] = ()

    def start_stage(self, model: LanguageModel, stage: Stage) -> LanguageModel:
        self.anchor = [p.detach().clone() for p in model.parameters() if p.requires_grad]
        pairs = zip(self.importance, self.anchor, strict=True) if self.importance else ()
        self.importance = [_fit_to_shape(weight, importance) for importance, weight in pairs]
        return model

    def phases(self, stage: Stage) -> Sequence[Phase]:
        if stage.first or not self.strength:  # nothing to measure
            return [Phase("adapt")]
        return [
            Phase("importance", share=self.share, domain="previous", trains=False),
            Phase("adapt", share=1 - self.share),
        ]

    def on_batch(self, learner: Learner, batches: Sequence[Batch]) -> None:
        import torch

        if not self.total:
            self.total = [torch.zeros_like(p) for p in learner.parameters]
        is_single = learner.world.size == 1
        part = self.total if is_single else [torch.zeros_like(p) for p in learner.parameters]
        self.count += self.measure(learner, batches, part)
        if not is_single:
            learner.world.add_up(part)
            for total, new in zip(self.total, part, strict=True):
                total.add_(new)

    def measure(self, learner: Learner, batches: Sequence[Batch], total: Sequence[Tensor]) -> int:
        """Add the importances from this process's part of the step's samples to `total`.

        Returns the number of samples of all processes.
        """
        raise NotImplementedError

    def adjust_gradients(self, learner: Learner, memory: Sequence[Batch]) -> None:
        if self.count:  # the first step after the importance phase
            importances: Sequence[Tensor | float] = self.importance or [0.0] * len(self.total)
            self.importance = [
                self.decay * old + new / self.count
                for old, new in zip(importances, self.total, strict=True)
            ]
            self.total = ()
            self.count = 0
        if not self.importance:
            return
        for p, importance, anchor in zip(
            learner.parameters, self.importance, self.anchor, strict=True
        ):
            if p.grad is not None:
                p.grad.addcmul_(importance, p.detach() - anchor, value=self.pull * self.strength)


def _fit_to_shape(weight: Tensor, importance: Tensor) -> Tensor:
    """Importances fitted to a weight that has gained or lost rows, such as those of prompts.

    New rows have importance 0.
    """
    fitted = weight.new_zeros(weight.shape)
    fitted[: len(importance)] = importance[: len(weight)]
    return fitted


def add_sequences(
    learner: Learner,
    batches: Sequence[Batch],
    output: Callable[[Tensor, Tensor], Tensor],
    total: Sequence[Tensor],
    importance: Callable[[Tensor], Tensor],
) -> None:
    """Add the importances from this process's sequences to `total`, one tensor per parameter.

    `output` maps logits (B, K, V) and targets (B, K) to the mean over sequences of a scalar. The
    gradient of each sequence's scalar is taken. `importance` maps gradients to importances,
    elementwise, and may overwrite them.
    """
    from benchmark.models.row_gradients import compute_row_gradients

    totals = dict(zip(learner.parameters, total, strict=True))

    def take(parameter: nn.Parameter, part: slice, gradients: Tensor) -> None:
        totals[parameter][part].add_(importance(gradients).sum(0))

    for batch in batches:

        def loss(batch: Batch = batch) -> Tensor:
            with learner.autocast:
                logits = learner.model(batch.tokens, batch.domains, batch.positions)
                return output(logits, batch.targets) * len(batch.tokens)

        compute_row_gradients(learner.model, len(batch.tokens), loss, take)
