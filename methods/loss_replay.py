"""Replay by loss: of many memory sequences those with the largest loss are learnt.

Take it if memory is large and few of its sequences may be learnt, or copy it for your own choice.

Each step draws c B sequences from memory, besides a batch of B new ones. Over all processes, it
keeps the k = q c B sequences with the largest mean negative log-likelihood under the current model.
The loss is one mean over new and kept sequences, as in ER. With g the mean gradient of the new
sequences, and m that of the kept ones, the step's gradient is

    (B g + k m) / (B + k).

Hazard et al. 2025 ("SuRe", arXiv 2511.22367) choose what to store by the same surprise. Here only
the suite's memory is stored, and sequences are ranked again in each step, as in online batch
selection (Loshchilov and Hutter 2015, arXiv 1511.06343). Computing the losses is charged. This file
is an example of a choice among all memory sequences, because `loss` sees only a part of a batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from benchmark.training.method import LifelongMethod, Multiple, Phase, Share, Stage

if TYPE_CHECKING:
    from torch import Tensor

    from benchmark.training.learner import Batch, Learner


@dataclass
class LossReplay(LifelongMethod):
    title = "Replay by loss"
    group = "controls"
    version = 2  # B is the batch size, also if c B is no whole number
    needs_full_weights = True
    search_space: ClassVar = {"candidates": (0.5, 1.0), "kept": (0.1, 0.25, 0.5)}

    candidates: Multiple = 0.5  # c: memory sequences of a step, as a share of the batch
    kept: Share = 0.25  # q: share of these sequences that is learnt, at least one

    def phases(self, stage: Stage) -> Sequence[Phase]:
        return [Phase("adapt", memory_batch=self.candidates)]

    def adjust_gradients(self, learner: Learner, memory: Sequence[Batch]) -> None:
        if not memory:  # the memory is empty
            return
        import torch

        losses = torch.cat([compute_sequence_losses(learner, batch) for batch in memory])
        by_process = learner.world.gather(losses.tolist())
        everything = [loss for part in by_process for loss in part]
        count = max(1, round(self.kept * len(everything)))
        # among ties the first ones, so that each step learns equally many sequences
        order = sorted(range(len(everything)), key=everything.__getitem__, reverse=True)
        begin = sum(len(part) for part in by_process[: learner.world.rank])
        numbers = []
        for sequence in order[:count]:
            number = sequence - begin
            if 0 <= number < len(losses):
                numbers.append(number)
        gradient = learner.gradients()
        learner.accumulate(choose_sequences(memory, sorted(numbers), count))
        share = count / (learner.batch_size + count)
        for parameter, part in zip(learner.parameters, gradient, strict=True):
            if parameter.grad is not None:
                part.lerp_(parameter.grad, share)
            parameter.grad = part


def compute_sequence_losses(learner: Learner, batch: Batch) -> Tensor:
    """The mean negative log-likelihood of each sequence of a batch, (B,), without dropout."""
    import torch
    import torch.nn.functional as F

    from benchmark.devices import evaluating
    from benchmark.models.fast_operators import at_least_fp32

    with torch.no_grad(), evaluating(learner.model), learner.autocast:
        logits = learner.model(batch.tokens, batch.domains, batch.positions)
    losses = F.cross_entropy(
        at_least_fp32(logits).flatten(0, 1), batch.targets.flatten(), reduction="none"
    )
    return losses.view_as(batch.targets).mean(1)


def choose_sequences(batches: Sequence[Batch], numbers: Sequence[int], count: int) -> list[Batch]:
    """The sequences with these numbers, in batches as large as the first of `batches`.

    `count` sequences are chosen by all processes together. If this process has none, it gets the
    first sequence with weight 0, because each process takes part in a step.
    """
    import torch

    size = len(batches[0].tokens)
    selection = []
    for start in range(0, max(1, len(numbers)), size):
        sequences = torch.tensor(numbers[start : start + size] or [0])
        parts: dict[str, Any] = {}
        for name in ("tokens", "domains", "positions", "targets"):
            sequences_of_all = torch.cat([getattr(batch, name) for batch in batches])
            parts[name] = sequences_of_all[sequences.to(sequences_of_all.device)]
        weight = float(bool(numbers))
        selection.append(
            replace(
                batches[0],
                **parts,
                global_size=count,
                memory_sequences=len(sequences),
                weight=weight,
            )
        )
    return selection
