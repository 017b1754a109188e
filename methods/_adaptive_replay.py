"""Adaptive replay, as in ELLE's code: earlier domains are replayed by how fast their loss falls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from benchmark.training.method import Count, LifelongMethod, Stage

if TYPE_CHECKING:
    from torch import Tensor

    from benchmark.models import LanguageModel
    from benchmark.training.learner import Batch, Learner

FLOOR = 0.1  # of the largest weight, so that every domain's loss stays known


class AdaptiveReplay(LifelongMethod):
    """Weighs the earlier domains anew after each interval.

    An interval is `adaptive` steps, or more until each domain was replayed. The released code looks
    at validation losses; here the rows that are trained on anyway tell, at no further cost.
    """

    state: ClassVar[tuple[str, ...]] = ("replay_weights", "steps", "seen", "before")
    adaptive: Count  # option of the subclasses; 0: memory rows are uniform over domains

    steps: int = 0  # of this interval
    # in this interval: the summed losses of each earlier domain's rows, then their numbers
    seen: Sequence[float] = ()
    before: Sequence[float] = ()  # mean losses of the interval before

    def start_stage(self, model: LanguageModel, stage: Stage) -> LanguageModel:
        import torch

        if self.adaptive and not stage.first:
            self.replay_weights = [1.0] * stage.index
            self.steps = 0
            self.seen = [0.0] * 2 * stage.index
            self.before = []
            device = next(model.parameters()).device
            self._domains = torch.arange(stage.index, device=device)
            self._tally = torch.zeros(2, stage.index, device=device)  # of this process and step
        return model

    def loss(self, learner: Learner, batch: Batch) -> Tensor:
        if self.replay_weights is None:
            return super().loss(learner, batch)
        import torch
        import torch.nn.functional as F

        from benchmark.models.fast_operators import at_least_fp32

        logits = at_least_fp32(learner.model(batch.tokens, batch.domains, batch.positions))
        predictions = F.cross_entropy(
            logits.flatten(0, 1), batch.targets.flatten(), reduction="none"
        )
        losses = predictions.view_as(batch.targets).mean(1)
        is_of_domain = batch.domains.unsqueeze(1) == self._domains
        self._tally += torch.stack(
            [(is_of_domain * losses.detach().unsqueeze(1)).sum(0), is_of_domain.sum(0)]
        )
        return losses.mean()

    def adjust_gradients(self, learner: Learner, memory: Sequence[Batch]) -> None:
        if self.replay_weights is None:
            return
        step = learner.world.total(*self._tally.flatten().tolist())
        self._tally.zero_()
        self.seen = [old + new for old, new in zip(self.seen, step, strict=True)]
        self.steps += 1
        losses = self.seen[: len(self._domains)]
        rows = self.seen[len(self._domains) :]
        if self.steps >= self.adaptive and min(rows) > 0:
            means = [loss / count for loss, count in zip(losses, rows, strict=True)]
            if self.before:
                self.replay_weights = weigh_by_fall(self.before, means, rows)
            self.steps = 0
            self.seen = [0.0] * len(self.seen)
            self.before = means


def weigh_by_fall(
    old_losses: Sequence[float], new_losses: Sequence[float], rows: Sequence[float]
) -> list[float]:
    """How likely a memory row shall be of each earlier domain.

    `old_losses` and `new_losses` are the mean losses of a domain's rows in the last two intervals,
    `rows` how many there were in the later one. A domain weighs as much as its loss fell per
    replayed row; one whose loss rose is being forgotten and weighs as much as the fastest; without
    a fall anywhere all weigh the same.
    """
    falls = [
        (old - new) / count for old, new, count in zip(old_losses, new_losses, rows, strict=True)
    ]
    fastest = max(falls)
    if fastest <= 0:
        return [1.0] * len(falls)
    weights = []
    for fall in falls:
        positive_fall = fall if fall > 0 else fastest
        weights.append(max(positive_fall, FLOOR * fastest) / fastest)
    return weights
