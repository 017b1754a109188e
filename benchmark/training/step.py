"""The steps of a stage, and all that they need.

The loop, its warm-up and `run_all.py speed` use the same steps.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmark.data.sampling import draw_bits
from benchmark.devices import evaluating, keep_random_numbers, seed_random_numbers
from benchmark.models import LanguageModel, build
from benchmark.settings.base import ConfigError
from benchmark.settings.suite import RunConfig, Size
from benchmark.training.batch_parts import Draw, check_split
from benchmark.training.clock import count_flops
from benchmark.training.declaration import plan_stage
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
from benchmark.training.optimizer import (
    Moments,
    PhaseOptimizer,
    find_linear_maps,
    find_rate_factors,
    find_width_factors,
)
from benchmark.training.processes import World
from benchmark.training.shards import Shards, take_local_part
from benchmark.training.stream import Stream


def set_training(config: RunConfig, **values: Any) -> RunConfig:
    """A copy of a run's settings with other values of `training`, not for computing keys."""
    return config.model_copy(update={"training": config.training.model_copy(update=values)})


def make_stage(
    config: RunConfig,
    index: int,
    stream: Stream,
    load_previous: Callable[[], LanguageModel] | None = None,
) -> Stage:
    """Stage `index` of a run, with its functions that make models and text for the method.

    `load_previous` loads the model with which the stage before was evaluated. The first stage has
    none.
    """
    settings = config.model
    plan = plan_stage(config, index)

    def make_model(size: Size) -> LanguageModel:
        vocabulary = replace(stream.corpus.vocabulary, domains=plan.domains)
        return build(
            settings.architecture,
            size.layers,
            size.hidden_size,
            vocabulary,
            config.data.sequence_length,
            head_size=settings.head_size,
            dropout=settings.dropout,
            scaled=settings.init == "scaled",
            document_mask=config.data.document_mask,
        )

    def previous() -> LanguageModel:
        assert load_previous, (
            "the first stage has no model before it: copy the one that start_stage is given"
        )
        model = load_previous()
        model.add_domains(plan.domains, plan.seed)
        return model.eval()

    draw_memory = partial(stream.draw_memory_text, index)
    return replace(plan, build=make_model, memory_sequences=draw_memory, previous=previous)


@dataclass
class StageInputs:
    """All that the steps of a stage work with.

    Until `begin`, `model` is as the previous stage left it, or new.
    """

    config: RunConfig
    stage: Stage
    stream: Stream
    method: LifelongMethod
    model: LanguageModel
    world: World
    # the optimizer's moments that the stage before saved
    moments: Moments = field(default_factory=dict)

    @property
    def eval_model(self) -> LanguageModel:
        """The model that is evaluated and saved: the trained one, unless the method has another."""
        return self.model if self.method.eval_model is None else self.method.eval_model

    def begin(self) -> None:
        """Let the method make the model that this stage trains, on the device and in training mode.

        Before that, the new domain is added to the model. Raises ConfigError if the method returns
        no model.
        """
        self.model.add_domains(self.stage.domains, self.stage.seed)
        model = self.method.start_stage(self.model.to(self.world.device).train(), self.stage)
        if not isinstance(model, LanguageModel):
            raise ConfigError(
                f"{type(self.method).__name__}.start_stage returned a {type(model).__name__}: "
                "let it return the model to train, a LanguageModel"
            )
        self.model = model.to(self.world.device).train()
        if self.method.eval_model is not None:
            self.method.eval_model.to(self.world.device)


# micro-batches of the batch, and of the second batch from memory (`Phase.memory_batch`)
Step = tuple[list[Batch], list[Batch]]


class Loader:
    """Makes this process's part of each step's batch, in micro-batches on its device.

    `get(step)` returns this part. Meanwhile a thread makes the next step's part, unless the method
    makes sequences itself.
    """

    def __init__(self, inputs: StageInputs, phase: Phase, phase_index: int) -> None:
        training = inputs.config.training
        self._stream = inputs.stream
        self._stage = inputs.stage
        self._phase_index = phase_index
        self._world = inputs.world
        self._method = inputs.method
        self._micro_batch_size = training.micro_batch_size or training.batch_size
        self._draws, self._memory_draw = self._stream.plan_draws(
            phase, phase_index, self._stage.index, training.batch_size
        )
        draws = (*self._draws, self._memory_draw)
        check_split(draws, training, self._world.size)
        sequences = sum(draw.sequences for draw in draws)
        self.tokens = sequences * self._stream.length
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="loader")
        self._next: tuple[int, Future[Step]] | None = None

    def draw_seed(self, step: int) -> int:
        """The seed of the random numbers that a step itself draws (dropout).

        It is different in each process.
        """
        seed = self._stream.seed
        rank = self._world.rank
        bits = draw_bits(seed, self._stage.index, self._phase_index, step, rank)
        return int(bits >> 1)

    def get(self, step: int) -> Step:
        prepared_step, future = self._next or (-1, None)
        self._next = None
        current = future.result() if future and prepared_step == step else self.compute(step)
        has_own_sequences = any(draw.domain == OWN for draw in self._draws)
        if not has_own_sequences:
            next_step = step + 1
            self._next = (next_step, self._thread.submit(self.compute, next_step))
        return current

    def compute(self, step: int) -> Step:
        batch: list[Batch] = []
        for draw in self._draws:
            batch += self._make(draw, step)
        return batch, self._make(self._memory_draw, step)

    def _make(self, draw: Draw, step: int) -> list[Batch]:
        """This process's sequences, in micro-batches.

        These are every `world.size`-th one of the draw, so that each process has its share of
        memory.
        """
        own_sequences = self._make_own_sequences(draw, step) if draw.domain == OWN else None
        local_sequences = np.arange(self._world.rank, draw.sequences, self._world.size)
        batches = []
        for start in range(0, len(local_sequences), self._micro_batch_size):
            sequences = local_sequences[start : start + self._micro_batch_size]
            batch = self._stream.make_batch(self._stage.index, draw, step, sequences, own_sequences)
            batches.append(batch)
        return [batch.to(self._world.device) for batch in batches]

    def _make_own_sequences(self, draw: Draw, step: int) -> Tensor:
        """The sequences that the method makes for its source: the same in all processes."""
        generator = torch.Generator(self._world.device)
        bits = draw_bits(self._stream.seed, self._stage.index, draw.number, step)
        generator.manual_seed(int(bits >> 1))
        shape = (draw.sequences, self._stream.length)
        with torch.no_grad():
            return self._method.make_sequences(shape, generator)

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown(cancel_futures=True)


START = Elapsed()


class Stepper:
    """Takes the steps of one phase, the `number`-th of its stage (from 0).

    A phase with `optimizer="carry"` begins with `moments`. Call `close` when the phase is over: it
    makes parameters that the phase froze trainable again. Raises ConfigError if the phase would
    train nothing.
    """

    def __init__(
        self, inputs: StageInputs, phase: Phase, number: int, moments: Moments | None = None
    ) -> None:
        self.inputs = inputs
        self.phase = phase
        self.number = number
        self._first_moments = moments or {}
        self.method = inputs.method
        self.training = inputs.config.training
        if self.training.precision == "fp16" and not phase.trains:
            # an overflow would set gradients to 0, so that `on_batch` misses some text
            self.training = self.training.model_copy(update={"precision": "fp32"})
        self.shards: Shards | None = None
        self.model = inputs.model
        if self.training.shard:
            self.shards = Shards(inputs.model, inputs.world)
            self.model = self.shards.model
        names = self.model.map_parameter_names()
        trainable = []
        for name, parameter in self.model.named_parameters():
            if parameter.requires_grad:
                trainable.append((names[name], parameter))
        trainable_names = [name for name, _ in trainable]
        factors = find_rate_factors(trainable_names, phase.lr_multipliers, phase.name)
        parameters = [parameter for _, parameter in trainable]
        width_factors = find_width_factors(self.model, parameters, self.training)
        self._frozen: list[torch.nn.Parameter] = []
        self._factors: list[float] = []
        self._named: list[tuple[str, torch.nn.Parameter]] = []
        for (name, parameter), factor, width_factor in zip(
            trainable, factors, width_factors, strict=True
        ):
            if factor:
                self._factors.append(factor * width_factor)
                self._named.append((name, parameter))
            else:
                self._frozen.append(parameter)
        for parameter in self._frozen:
            parameter.requires_grad_(False)
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
        """Make the loader and the optimizer as they are before the first step.

        `warm_up` calls this again, to undo what its step did to them.
        """
        self.loader = Loader(self.inputs, self.phase, self.number)
        self.optimizer = None
        if self.phase.trains:
            kind = choose_optimizer(self.method, self.training)
            linear_maps = find_linear_maps(self.model)
            self.optimizer = PhaseOptimizer(
                kind, self._named, self._factors, self.training, linear_maps
            )
            self.optimizer.load_moments(self._first_moments, self.inputs.model.vocabulary.size)

    def step(self, step: int, learning_rate: float = 0.0, elapsed: Elapsed = START) -> Tensor:
        """Take the `step`-th step of the phase (from 0).

        Returns this process's mean loss, detached, shape (), or 0 in a phase that does not train.
        """
        # for dropout: a function of the step, so that no generator's state is checkpointed
        seed_random_numbers(self.loader.draw_seed(step), self.inputs.world.device)
        self.learner.elapsed = elapsed
        self.learner.learning_rate = learning_rate
        self.learner.overflowed = False
        batches, memory = self.loader.get(step)
        if self.optimizer is None:
            with evaluating(self.learner.model):
                self.method.on_batch(self.learner, batches)
            # on the device, so that reading it waits for the device, as reading a loss does
            return torch.zeros((), device=self.inputs.world.device)
        loss = self.learner.accumulate(batches)
        self.method.adjust_gradients(self.learner, memory)
        if self.learner.overflowed:
            return loss  # charged like any other step
        if self.training.max_grad_norm:
            torch.nn.utils.clip_grad_norm_(self.learner.parameters, self.training.max_grad_norm)
        self.optimizer.step(learning_rate)
        self.method.after_step(self.learner)
        return loss

    def warm_up(self) -> float:
        """Take the first step without effect, and return its FLOPs.

        So lazy and compiled parts cost no budget. The learning rate is the peak: weights move, so
        that `check` sees whether a method keeps a trace of their moves.
        """
        device = self.inputs.world.device
        models = {self.model, self.method.eval_model or self.model}
        tensors: list[Tensor] = []
        for model in models:
            tensors += [*model.parameters(), *model.buffers()]
        for tensor in tensors:
            tensor.grad = None  # left from the last step of the phase before
        with keep_random_numbers(device):
            # in main memory, because a GPU may have no room for copies besides a step
            saved = [take_local_part(tensor).to("cpu", copy=True) for tensor in tensors]
            state = copy.deepcopy(get_state(self.method))
            rate = self.inputs.stage.learning_rate
            flops = self.count_step_flops(rate)
            if self.training.compile:  # the counted step was not compiled
                self.step(0, rate)
            set_state(self.method, state)
            with torch.no_grad():
                for tensor, values in zip(tensors, saved, strict=True):
                    take_local_part(tensor).copy_(values)
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
        world = self.inputs.world
        if self.training.compile:
            eager = self.training.model_copy(update={"compile": False})
            self.learner = Learner(self.model, self.method.loss, eager, world)
        flops = count_flops(lambda: self.step(0, learning_rate))
        self.learner = learner
        return flops * world.size

    def gather_moments(self) -> Moments:
        """The optimizer's moments.

        Parameters that this phase froze keep the moments with which it began.
        """
        if not self.optimizer:
            return dict(self._first_moments)
        return {**self._first_moments, **self.optimizer.gather_moments()}

    def unshard_temporarily(self, is_asked_for: bool) -> AbstractContextManager[None]:
        """Inside the block, if asked for, `inputs.model` is as trained so far, on the device.

        Without shards it always is.
        """
        if self.shards and is_asked_for:
            return self.shards.unshard_temporarily()
        return nullcontext()

    def close(self) -> None:
        """End the loader's thread, bring back a sharded model, and unfreeze parameters."""
        if self.shards:
            self.shards.bring_back()
        for parameter in self._frozen:
            parameter.requires_grad_(True)
        self.loader.close()


def count_naive_flops(inputs: StageInputs) -> float:
    """The FLOPs of a step of Naive in this stage, over all processes.

    They are measured with a new model of the first size.
    """
    stage = inputs.stage
    device = inputs.world.device
    with keep_random_numbers(device):
        model = stage.build(stage.ladder[0])
        model.to(device).train()
        naive = replace(inputs, method=LifelongMethod(), model=model, moments={})
        stepper = Stepper(naive, Phase("adapt"), 0)
        flops = stepper.count_step_flops()
        stepper.close()
    return flops
