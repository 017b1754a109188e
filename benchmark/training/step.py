"""One training step, the same in the loop, in its warm-up and where steps are timed."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from benchmark.models.devices import kept_random_numbers, seed_random_numbers
from benchmark.settings.base import ConfigError
from benchmark.training.learner import Elapsed, Learner
from benchmark.training.method import Phase, get_state, set_state
from benchmark.training.optimization import Moments, carry_on, factors, moments, new_optimizer, set_rate
from benchmark.training.stage_inputs import Loader, StageInputs

_BACKENDS = ("flash_attention", "efficient_attention", "cudnn_attention", "flash_attention_for_cpu")


def count_flops(run: Callable[[], Any]) -> float:
    """What calling `run` costs. Nothing in it may be compiled: the counter sees operators, not kernels."""
    counter = FlopCounterMode(display=False, custom_mapping=_attention_formulas())
    with counter:
        run()
    return float(counter.get_total_flops())


def _attention(query: torch.Size, key: torch.Size, value: torch.Size, *_: Any, **__: Any) -> int:
    """Scores and their product with the values; shapes (B, H, T, D / H)."""
    rows, heads, length, size = query
    return 2 * rows * heads * length * key[2] * (size + value[3])


def _attention_backward(grad: torch.Size, *shapes: Any, **_: Any) -> int:
    return 2 * _attention(*shapes[:3])


def _attention_formulas() -> dict[Any, Callable[..., int]]:
    names = [f"_scaled_dot_product_{backend}" for backend in _BACKENDS]
    return {
        getattr(torch.ops.aten, name + suffix): formula
        for name in names
        for suffix, formula in (("", _attention), ("_backward", _attention_backward))
    }


BEFORE = Elapsed()


class Stepper:
    """Takes the steps of one phase, the `number`-th of its stage (from 0). `close` it when the phase is over.

    `known` is what a phase that carries the optimizer on begins with. What it freezes learns again after `close`.
    Raises ConfigError where the phase would train nothing.
    """

    def __init__(self, inputs: StageInputs, phase: Phase, number: int, known: Moments | None = None) -> None:
        self.inputs, self.phase, self.number, self._known = inputs, phase, number, known or {}
        self.method, self.training = inputs.method, inputs.config.training
        names = inputs.model.part_names()
        learns = [(names[name], p) for name, p in inputs.model.named_parameters() if p.requires_grad]
        of_each = factors([name for name, _ in learns], phase.rates, phase.name)
        self._frozen = [p for (_, p), factor in zip(learns, of_each, strict=True) if not factor]
        for parameter in self._frozen:
            parameter.requires_grad_(False)
        self._factors = [factor for factor in of_each if factor]
        self._named = [(name, p) for name, p in learns if p.requires_grad]
        if phase.trains and not self._named:
            raise ConfigError(
                f"phase {phase.name!r} trains nothing: all parameters are frozen: free some, or declare trains=False"
            )
        self.learner = Learner(inputs.model, self.method.loss, self.training, inputs.world)
        self._begin()

    def _begin(self) -> None:
        self.loader = Loader(self.inputs, self.phase, self.number)
        self.optimizer = None
        if self.phase.trains:
            self.optimizer = new_optimizer(self.learner.parameters, self.training, self._factors)
            self.fresh = carry_on(self.optimizer, self._named, self._known, self.inputs.model.vocabulary.size)

    def step(self, step: int, learning_rate: float = 0.0, elapsed: Elapsed = BEFORE) -> Tensor:
        """Take the `step`-th step of the phase (from 0).

        Returns this process's mean loss, detached, shape (); 0 in a phase that does not train.
        """
        # dropout: a function of the step, nothing to checkpoint
        seed_random_numbers(self.loader.seed(step), self.inputs.world.device)
        self.learner.elapsed = elapsed
        batches, memory = self.loader.get(step)
        if self.optimizer is None:
            self.method.observe(self.learner, batches)
            return torch.zeros((), device=self.inputs.world.device)  # looked at, it waits for the device as a loss does
        loss = self.learner.accumulate(batches)
        self.method.adjust_gradients(self.learner, memory)
        self.update(self.optimizer, learning_rate)
        self.method.after_step(self.learner)
        return loss

    def update(self, optimizer: torch.optim.Optimizer, learning_rate: float) -> None:
        """Move the weights along their gradients."""
        if self.training.clip:
            torch.nn.utils.clip_grad_norm_(self.learner.parameters, self.training.clip)
        set_rate(optimizer, learning_rate)
        optimizer.step()

    def warm_up(self) -> float:
        """Take the first step without effect, so that what is lazy or compiled costs no budget. Returns its FLOPs."""
        model, device = self.inputs.model, self.inputs.world.device
        models = {model, self.inputs.evaluated}
        tensors = [tensor for one in models for tensor in (*one.parameters(), *one.buffers())]
        for tensor in tensors:
            tensor.grad = None  # of the last step of the phase before
        with kept_random_numbers(device):
            # in main memory: a GPU may have room for a step, and for no more
            saved = [tensor.detach().to("cpu", copy=True) for tensor in tensors]
            state = copy.deepcopy(get_state(self.method))
            flops = self.flops()
            if self.training.compile:
                self.step(0)
            set_state(self.method, state)
            with torch.no_grad():
                for tensor, before in zip(tensors, saved, strict=True):
                    tensor.copy_(before)
                    tensor.grad = None
            self.learner.metrics = {}
        self.loader.close()
        self._begin()
        return flops

    def flops(self) -> float:
        """Take the first step and count its FLOPs, over all processes.

        Nothing is compiled: the counter sees operators, not kernels.
        """
        learner = self.learner
        if self.training.compile:
            eager = self.training.model_copy(update={"compile": False})
            self.learner = Learner(self.inputs.model, self.method.loss, eager, self.inputs.world)
        flops = count_flops(lambda: self.step(0)) * self.inputs.world.size
        self.learner = learner
        return flops

    def moments(self) -> Moments:
        """What the optimizer remembers, and of parameters that this phase froze what it had carried on."""
        return {**self._known, **(moments(self.optimizer, self._named) if self.optimizer else {})}

    def close(self) -> None:
        """End the thread that makes batches, and let what the phase froze learn again."""
        for parameter in self._frozen:
            parameter.requires_grad_(True)
        self.loader.close()
