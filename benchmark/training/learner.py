"""The model in training, as a method sees it: one objective, one backward pass.

torch.compile, DistributedDataParallel, mixed precision and gradient accumulation are applied here.
With or without them, a method sees the gradient of the whole batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from benchmark.devices import autocast, send
from benchmark.models import LanguageModel
from benchmark.settings.base import ConfigError
from benchmark.settings.suite import Training
from benchmark.training.processes import World
from benchmark.training.shards import Shards


@dataclass(kw_only=True)
class Batch:
    """Sequences as the stream makes them and methods see them.

    Shapes: B sequences, N text tokens per sequence (`Data.text_length`), K predicted positions per
    sequence.
    """

    tokens: Tensor  # (B, 1+N) int64, `<s>` first. For BERT they are corrupted
    domains: Tensor  # (B,) int64, index in the stream of each sequence's domain
    positions: Tensor  # (B, K) int64, columns of `tokens` whose hidden state predicts a target
    targets: Tensor  # (B, K) int64
    global_size: int  # sequences of the whole batch, over all micro-batches and processes
    memory_sequences: int  # sequences of this micro-batch from the memory. They come last
    source: int = 0  # index in `Phase.sources`, if a step has several batches
    weight: float = 1.0  # of its mean loss in the step's loss

    def to(self, device: torch.device) -> Batch:
        tensors: dict[str, Any] = {}
        for name, value in vars(self).items():
            if isinstance(value, Tensor):
                tensors[name] = send(value, device)
        return replace(self, **tensors)


@dataclass(frozen=True)
class Elapsed:
    """The share of the budget that is spent at the middle of a step, 0 to 1.

    Learning rates are a function of this share.
    """

    phase: float = 0.0
    stage: float = 0.0
    stream: float = 0.0  # of all stages' budget: see Stage.stream_info


class Objective(nn.Module):
    """A method's loss as a module, so that compile and DDP wrap model, loss and teacher."""

    def __init__(
        self, loss: Callable[[Batch], Tensor], model: LanguageModel, autocast: torch.autocast
    ) -> None:
        super().__init__()
        self.model = model
        self._loss = loss
        self._autocast = autocast

    def forward(self, batch: Batch) -> Tensor:
        with self._autocast:
            return self._loss(batch)


def _check_loss(loss: object) -> None:
    if not isinstance(loss, Tensor) or loss.shape or not loss.requires_grad:
        raise ConfigError(
            f"the method's `loss` returned {loss!r}: let it return a tensor of shape () with a "
            "gradient, the mean over the batch's sequences"
        )


class Learner:
    """The trainer of one phase.

    It is built after `start_stage`, so that DDP sees the new shape and the trainable parameters.
    `loss` is the method's function of this learner and a batch. It returns the mean over the
    batch's sequences, a scalar.

    Attributes:
        model: the model that is trained.
        named_parameters, parameters: what the phase trains, in the model's order.
        world: the processes that train together. `world.add_up` and `world.total` sum over them.
        autocast: the context for a method's own forward passes. In fp16 training it is fp32,
            because only `accumulate` scales the loss.
        batch_size: the suite's sequences per step, over all processes.
        elapsed: how much of the budget is spent at the current step.
        learning_rate: the current step's, before the factors of `Phase.lr_multipliers`.
        overflowed: whether a gradient of the current step was not finite in fp16. If so, all are 0.
    """

    def __init__(
        self,
        model: LanguageModel,
        loss: Callable[[Learner, Batch], Tensor],
        training: Training,
        world: World,
        shards: Shards | None = None,
    ) -> None:
        self.model = model
        self.world = world
        self.batch_size = training.batch_size
        self.elapsed = Elapsed()
        self.learning_rate = 0.0
        self.overflowed = False
        self.named_parameters = [
            (name, p) for name, p in model.named_parameters() if p.requires_grad
        ]
        self.parameters = [parameter for _, parameter in self.named_parameters]
        assert training.precision != "auto", "a run decides it once, for all of its stages"
        self.in_fp16 = training.precision == "fp16"
        self.autocast = autocast(world.device, "fp32" if self.in_fp16 else training.precision)
        in_training = autocast(world.device, training.precision)
        objective: nn.Module = Objective(lambda batch: loss(self, batch), model, in_training)
        if world.size > 1 and not shards:
            objective = DistributedDataParallel(objective)
        self.objective: Callable[[Batch], Tensor] = objective
        if shards:
            self.objective = lambda batch: shards(partial(objective, batch))
        elif training.compile:
            backend = training.compile if isinstance(training.compile, str) else "inductor"
            self.objective = torch.compile(objective, backend=backend)
        self._no_sync: Callable[[], AbstractContextManager[None]] | None = None
        if isinstance(objective, DistributedDataParallel):
            self._no_sync = objective.no_sync
        self.begin()

    def begin(self) -> None:
        """Reset the metrics and the scale of the loss."""
        self.metrics: dict[str, float] = {}
        self.scaler = torch.amp.GradScaler(self.world.device.type, enabled=self.in_fp16)

    def language_model_loss(self, batch: Batch) -> Tensor:
        """Mean cross-entropy of the targets, natural logarithm."""
        return self.model.compute_mean_loss(
            batch.tokens, batch.domains, batch.positions, batch.targets
        )

    def accumulate(self, batches: Sequence[Batch]) -> Tensor:
        """Set every `parameter.grad` to the gradient of the mean loss, over all processes.

        With several sources, the loss is the sum of each source's mean loss times its weight.
        Returns this process's loss, detached, shape (). Its mean over processes is the whole loss.
        Raises ConfigError if the method's loss is no tensor of shape () with a gradient.
        """
        for parameter in self.parameters:
            parameter.grad = None
        losses = []
        for number, batch in enumerate(batches):
            # each batch counts by its sequences. DDP averages, hence the factor `world.size`
            share = len(batch.tokens) * self.world.size / batch.global_size
            factor = share * batch.weight
            # gradients add up, and DDP exchanges the sums once, in the last backward pass
            exchange: AbstractContextManager[None] = nullcontext()
            if self._no_sync and number < len(batches) - 1:
                exchange = self._no_sync()
            with exchange:
                mean_loss = self.objective(batch)
                _check_loss(mean_loss)
                loss = mean_loss * factor
                self.scaler.scale(loss).backward()
            losses.append(loss.detach())
        if self.in_fp16:
            self._unscale()
        return torch.stack(losses).sum()

    def _unscale(self) -> None:
        """Divide the gradients by the scale of the loss.

        If one is not finite, all become 0, and the scale falls. Only the device knows that, so this
        waits for the device. All processes find the same, because their gradients are the same.
        """
        old_scale = self.scaler.get_scale()
        # GradScaler reaches gradients only through an optimizer, and unscales each one only once
        self.scaler.unscale_(torch.optim.SGD(self.parameters))
        self.scaler.update()
        if self.scaler.get_scale() < old_scale:
            for parameter in self.parameters:
                if parameter.grad is not None:
                    parameter.grad = torch.zeros_like(parameter.grad)
            if not self.overflowed:  # a step that accumulates more than once is counted once
                skipped = self.metrics.get("skipped_steps", 0)
                self.metrics["skipped_steps"] = skipped + 1
            self.overflowed = True

    def gradients(self) -> list[Tensor]:
        """Copies of the gradients, in the order of `parameters`."""
        copies = []
        for parameter in self.parameters:
            if parameter.grad is None:
                copies.append(torch.zeros_like(parameter))
            else:
                copies.append(parameter.grad.clone())
        return copies

    def record(self, **values: float) -> None:
        """Record numbers of this method, e.g. how often A-GEM projected.

        They are written with each evaluation.
        """
        self.metrics.update(values)


# How far training is

Part = tuple[float, float]  # where a part of the stream begins and ends, in the budget's unit


def measure_elapsed(
    spent: float, step_cost: float, phase: Part, stage: Part, stream: Part
) -> Elapsed:
    """The share of each part that is spent at the middle of a step.

    The step begins at `spent` and costs `step_cost`. All count from the current stage's beginning.
    """
    shares = []
    for begin, end in (phase, stage, stream):
        length = max(end - begin, step_cost) or 1.0  # a budget may be shorter than a step
        share = (spent + step_cost / 2 - begin) / length
        shares.append(min(max(share, 0.0), 1.0))
    return Elapsed(phase=shares[0], stage=shares[1], stream=shares[2])
