"""The steps of a stage, and all that they need: the same in the loop, in its warm-up and where they
are timed.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmark.data.sampling import draw_bits
from benchmark.models import LanguageModel, build
from benchmark.models.devices import evaluating, keep_random_numbers, seed_random_numbers
from benchmark.settings.base import ConfigError
from benchmark.settings.suite import RunConfig, Size
from benchmark.training.batch_parts import Draw, check_split
from benchmark.training.clock import count_flops
from benchmark.training.keys import plan_stage
from benchmark.training.learner import Batch, Elapsed, Learner
from benchmark.training.method import (
    OWN,
    LifelongMethod,
    Phase,
    Stage,
    choose_optimizer,
    get_state,
    set_state,
)
from benchmark.training.optimizer import Moments, PhaseOptimizer, find_rate_factors
from benchmark.training.processes import World
from benchmark.training.shards import Shards, take_local_part
from benchmark.training.stream import Stream


def set_training(config: RunConfig, **values: Any) -> RunConfig:
    """The run with other values of its training, which its keys do not know of."""
    return config.model_copy(update={"training": config.training.model_copy(update=values)})


def make_stage(
    config: RunConfig,
    index: int,
    stream: Stream,
    load_previous: Callable[[], LanguageModel] | None = None,
) -> Stage:
    """The stage `index` of a run with all that a method may ask it for.

    `load_previous` gives the model that the stage before was evaluated with; the first stage has
    none.
    """
    model = config.model

    def make_model(size: Size) -> LanguageModel:
        return build(
            model.architecture,
            size.layers,
            size.hidden_size,
            replace(stream.corpus.vocabulary, domains=stage.domains),
            config.data.sequence_length,
            head_size=model.head_size,
            dropout=model.dropout,
            scaled=model.init == "scaled",
            document_mask=config.data.document_mask,
        )

    def previous() -> LanguageModel:
        assert load_previous, (
            "the first stage has no model before it: copy the one that start_stage is given"
        )
        before = load_previous()
        before.add_domains(stage.domains, stage.seed)
        return before.eval()

    rows = partial(stream.draw_memory_text, index)
    stage = replace(
        plan_stage(config, index), build=make_model, memory_rows=rows, previous=previous
    )
    return stage


@dataclass
class StageInputs:
    """All that the steps of a stage work with. `model` is as the previous stage left it, or new,
    until `begin`.
    """

    config: RunConfig
    stage: Stage
    stream: Stream
    method: LifelongMethod
    model: LanguageModel
    world: World
    moments: Moments = field(
        default_factory=dict
    )  # what the stage before has kept of its optimizer

    @property
    def evaluated(self) -> LanguageModel:
        """The model that is evaluated and saved: the trained one, unless the method has another."""
        return self.model if self.method.evaluated is None else self.method.evaluated

    def begin(self) -> None:
        """Let the method make the model that this stage trains, on the device and in training mode.

        The model has met the new domain then.
        """
        self.model.add_domains(self.stage.domains, self.stage.seed)
        self.model = self.method.start_stage(self.model.to(self.world.device).train(), self.stage)
        self.model.to(self.world.device).train()
        if self.method.evaluated is not None:
            self.method.evaluated.to(self.world.device)


Step = tuple[
    list[Batch], list[Batch]
]  # the batch, and the second one, from memory, that the phase asked for


class Loader:
    """`get(step)` is this process's part of the batch in micro-batches, on its device.

    The next step is made in a thread meanwhile, unless the method steers the replay by what it has
    just seen, or makes rows of its own.
    """

    def __init__(self, inputs: StageInputs, phase: Phase, phase_index: int) -> None:
        training, stage, stream, world = (
            inputs.config.training,
            inputs.stage,
            inputs.stream,
            inputs.world,
        )
        self._stream, self._stage, self._index = stream, stage, phase_index
        self._world, self._method = world, inputs.method
        self._micro = training.micro_batch_size or training.batch_size
        self._draws, self._memory = stream.plan_draws(
            phase, phase_index, stage.index, training.batch_size
        )
        draws = (*self._draws, self._memory)
        check_split(draws, training, world.size)
        self.tokens = sum(draw.rows for draw in draws) * stream.length
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="loader")
        self._ahead: tuple[int, Future[Step]] | None = None

    def draw_seed(self, step: int) -> int:
        """The seed of the random numbers that a step itself draws (dropout), different in each
        process.
        """
        return int(
            draw_bits(self._stream.seed, self._stage.index, self._index, step, self._world.rank)
            >> 1
        )

    def get(self, step: int, over: float = 0.0) -> Step:
        ahead, self._ahead = self._ahead, None
        current = ahead[1].result() if ahead and ahead[0] == step else self.compute(step, over)
        own = any(draw.domain == OWN for draw in self._draws)
        if (
            self._method.replay_weights is None
            and self._stream.is_steady(self._stage.index)
            and not own
        ):
            self._ahead = step + 1, self._thread.submit(self.compute, step + 1)
        return current

    def compute(self, step: int, over: float = 0.0) -> Step:
        weights = self._method.replay_weights
        batch = [rows for draw in self._draws for rows in self._make(draw, step, weights, over)]
        return batch, self._make(self._memory, step)

    def _make(
        self, draw: Draw, step: int, weights: Sequence[float] | None = None, over: float = 0.0
    ) -> list[Batch]:
        """This process's rows, in micro-batches: every world-size-th, so that all have their share
        of memory.
        """
        own = self._make_own_rows(draw, step) if draw.domain == OWN else None
        mine = np.arange(self._world.rank, draw.rows, self._world.size)
        passes = [mine[i : i + self._micro] for i in range(0, len(mine), self._micro)]
        batches = [
            self._stream.make_batch(self._stage.index, draw, step, rows, weights, over, own)
            for rows in passes
        ]
        return [batch.to(self._world.device) for batch in batches]

    def _make_own_rows(self, draw: Draw, step: int) -> Tensor:
        """The rows that the method makes for its source: the same in all processes."""
        generator = torch.Generator(self._world.device)
        bits = draw_bits(self._stream.seed, self._stage.index, draw.number, step)
        with torch.no_grad():
            shape = draw.rows, self._stream.length
            return self._method.make_rows(shape, generator.manual_seed(int(bits >> 1)))

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown(cancel_futures=True)


BEFORE = Elapsed()


class Stepper:
    """Takes the steps of one phase, the `number`-th of its stage (from 0). `close` it when the
    phase is over.

    `known`: the moments with which a phase that carries the optimizer on begins. `close` frees what
    the phase froze. Raises ConfigError where the phase would train nothing.
    """

    def __init__(
        self, inputs: StageInputs, phase: Phase, number: int, known: Moments | None = None
    ) -> None:
        self.inputs, self.phase, self.number, self._known = inputs, phase, number, known or {}
        self.method, self.training = inputs.method, inputs.config.training
        if (
            self.training.precision == "fp16" and not phase.trains
        ):  # overflow would leave text unmeasured
            self.training = self.training.model_copy(update={"precision": "fp32"})
        self.shards = Shards(inputs.model, inputs.world) if self.training.shard else None
        self.model = self.shards.model if self.shards else inputs.model
        names = self.model.part_names()
        learns = [(names[name], p) for name, p in self.model.named_parameters() if p.requires_grad]
        of_each = find_rate_factors([name for name, _ in learns], phase.rates, phase.name)
        self._frozen = [p for (_, p), factor in zip(learns, of_each, strict=True) if not factor]
        for parameter in self._frozen:
            parameter.requires_grad_(False)
        self._factors = [factor for factor in of_each if factor]
        self._named = [(name, p) for name, p in learns if p.requires_grad]
        if phase.trains and not self._named:
            raise ConfigError(
                f"phase {phase.name!r} trains nothing: all parameters are frozen: free some, or "
                "declare trains=False"
            )
        self.learner = Learner(
            self.model, self.method.loss, self.training, inputs.world, self.shards
        )
        self._begin()

    def _begin(self) -> None:
        self.loader = Loader(self.inputs, self.phase, self.number)
        self.optimizer = None
        if self.phase.trains:
            kind = choose_optimizer(self.method, self.training)
            self.optimizer = PhaseOptimizer(kind, self._named, self._factors, self.training)
            self.optimizer.carry_on(self._known, self.inputs.model.vocabulary.size)

    def step(self, step: int, learning_rate: float = 0.0, elapsed: Elapsed = BEFORE) -> Tensor:
        """Take the `step`-th step of the phase (from 0).

        Returns this process's mean loss, detached, shape (); 0 in a phase that does not train.
        """
        # dropout: a function of the step, nothing to checkpoint
        seed_random_numbers(self.loader.draw_seed(step), self.inputs.world.device)
        self.learner.elapsed, self.learner.learning_rate, self.learner.overflowed = (
            elapsed,
            learning_rate,
            False,
        )
        batches, memory = self.loader.get(step, elapsed.stage)
        if self.optimizer is None:
            with evaluating(self.learner.model):
                self.method.observe(self.learner, batches)
            return torch.zeros(
                (), device=self.inputs.world.device
            )  # looked at, it waits for the device as a loss does
        loss = self.learner.accumulate(batches)
        self.method.adjust_gradients(self.learner, memory)
        if self.learner.overflowed:
            return loss  # charged like any other
        if self.training.clip:
            torch.nn.utils.clip_grad_norm_(self.learner.parameters, self.training.clip)
        self.optimizer.step(learning_rate)
        self.method.after_step(self.learner)
        return loss

    def warm_up(self) -> float:
        """Take the first step without effect, so that lazy and compiled parts cost no budget.
        Returns its FLOPs.

        Its rate is the peak, so that `check` sees what a method keeps of how far weights move.
        """
        device = self.inputs.world.device
        models = {self.model, self.method.evaluated or self.model}
        tensors = [tensor for each in models for tensor in (*each.parameters(), *each.buffers())]
        for tensor in tensors:
            tensor.grad = None  # of the last step of the phase before
        with keep_random_numbers(device):
            # in main memory: a GPU may have room for a step, and for no more
            saved = [take_local_part(tensor).to("cpu", copy=True) for tensor in tensors]
            state = copy.deepcopy(get_state(self.method))
            rate = self.inputs.stage.learning_rate
            flops = self.count_step_flops(rate)
            if self.training.compile:
                self.step(0, rate)
            set_state(self.method, state)
            with torch.no_grad():
                for tensor, before in zip(tensors, saved, strict=True):
                    take_local_part(tensor).copy_(before)
                    tensor.grad = None
            self.learner.begin()
        self.loader.close()
        self._begin()
        return flops

    def count_step_flops(self, learning_rate: float = 0.0) -> float:
        """Take the first step and count its FLOPs, over all processes.

        Nothing is compiled: the counter sees operators, not kernels.
        """
        learner = self.learner
        if self.training.compile:
            eager = self.training.model_copy(update={"compile": False})
            self.learner = Learner(self.model, self.method.loss, eager, self.inputs.world)
        flops = count_flops(lambda: self.step(0, learning_rate)) * self.inputs.world.size
        self.learner = learner
        return flops

    def gather_moments(self) -> Moments:
        """The optimizer's moments, and of parameters that this phase froze those that it began
        with.
        """
        return {**self._known, **(self.optimizer.gather_moments() if self.optimizer else {})}

    def hold_whole(self, wanted: bool) -> AbstractContextManager[None]:
        """Inside the block, where it is wanted, `inputs.model` is as trained so far, and on the
        device.
        """
        return self.shards.hold_whole() if self.shards and wanted else nullcontext()

    def close(self) -> None:
        """End the thread that makes batches, and let what the phase froze learn again."""
        if self.shards:
            self.shards.bring_back()
        for parameter in self._frozen:
            parameter.requires_grad_(True)
        self.loader.close()


def count_naive_flops(inputs: StageInputs) -> float:
    """The FLOPs of a step of Naive in this stage, over all processes, on a new model of the first
    rung.
    """
    stage, device = inputs.stage, inputs.world.device
    with keep_random_numbers(device):
        model = stage.build(stage.ladder[0]).to(device).train()
        stepper = Stepper(
            replace(inputs, method=LifelongMethod(), model=model, moments={}), Phase("adapt"), 0
        )
        flops = stepper.count_step_flops()
        stepper.close()
    return flops
