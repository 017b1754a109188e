"""What a stage is trained from."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from torch import Tensor

from benchmark.models import LanguageModel, build
from benchmark.settings.base import ConfigError
from benchmark.settings.suite import RunConfig, Size
from benchmark.training.keys import stage_of
from benchmark.training.learner import Batch
from benchmark.training.method import LifelongMethod, Phase, Stage
from benchmark.training.optimization import Moments
from benchmark.training.processes import World
from benchmark.training.random_numbers import random_bits
from benchmark.training.step_times import StageTimes
from benchmark.training.stream import SOURCES, Stream


def with_training(config: RunConfig, **values: Any) -> RunConfig:
    """The run with other values of its training, which its keys do not know of."""
    return config.model_copy(update={"training": config.training.model_copy(update=values)})


def trainable_stage(
    config: RunConfig, index: int, stream: Stream, load_previous: Callable[[], LanguageModel] | None = None
) -> Stage:
    """The stage `index` of a run with all that a method may ask it for.

    `load_previous` gives the model that the stage before was evaluated with; the first stage has none.
    """
    model = config.model

    def new_model(size: Size) -> LanguageModel:
        return build(
            model.architecture,
            size.layers,
            size.hidden_size,
            replace(stream.corpus.vocabulary, domains=stage.domains),
            config.data.sequence_length,
            head_size=model.head_size,
            dropout=model.dropout,
            scaled=model.init == "scaled",
        )

    def memory_rows(rows: int) -> Tensor:
        return stream.memory_text(index, rows)

    def previous() -> LanguageModel:
        if load_previous is None:
            raise ValueError("the first stage has no model before it: copy the one that start_stage is given")
        before = load_previous()
        before.meet(stage.domains, stage.seed)
        return before.eval()

    stage = replace(stage_of(config, index), build=new_model, memory_rows=memory_rows, previous=previous)
    return stage


@dataclass
class StageInputs:
    """All that the steps of a stage work with. `model` is as the previous stage left it, or new, until `begin`."""

    config: RunConfig
    stage: Stage
    stream: Stream
    method: LifelongMethod
    model: LanguageModel
    world: World
    moments: Moments = field(default_factory=dict)  # what the stage before has kept of its optimizer
    times: StageTimes | None = field(default=None, init=False)  # on the machine that a run's budget names, if it does

    @property
    def evaluated(self) -> LanguageModel:
        """The model that is evaluated and saved: the trained one, unless the method has another."""
        return self.model if self.method.evaluated is None else self.method.evaluated

    def begin(self) -> None:
        """Let the method make the model that this stage trains, on the device and in training mode.

        The model has met the new domain then.
        """
        self.model.meet(self.stage.domains, self.stage.seed)
        self.model = self.method.start_stage(self.model.to(self.world.device).train(), self.stage)
        self.model.to(self.world.device).train()
        if self.method.evaluated is not None:
            self.method.evaluated.to(self.world.device)


Step = tuple[list[Batch], list[Batch]]  # the batch, and the second one, from memory, that the phase asked for


class Loader:
    """`get(step)` is this process's part of the batch in micro-batches, on its device.

    The next step is made in a thread meanwhile, unless the method steers the replay by what it has just seen.
    """

    def __init__(self, inputs: StageInputs, phase: Phase, phase_index: int) -> None:
        training, stage, stream, world = inputs.config.training, inputs.stage, inputs.stream, inputs.world
        if training.batch_size % world.size:
            raise ConfigError(
                f"training.batch_size {training.batch_size} cannot be split over {world.size} processes: change one of "
                "them"
            )
        self._stream, self._stage, self._phase, self._phase_index = stream, stage, phase, phase_index
        self._batch_size, self._world, self._method = training.batch_size, world, inputs.method
        self._micro = training.micro_batch_size or training.batch_size
        self._memory_rows = stream.memory_batch_size(phase, stage.index, training.batch_size)
        self._source_rows = [stream.source_batch_size(one, stage.index, training.batch_size) for one in phase.sources]
        each = zip(phase.sources, self._source_rows, strict=True)
        counts = {"memory": self._memory_rows, **{f"source {source.domain!r}": count for source, count in each}}
        for what, count in counts.items():
            if 0 < count < world.size:
                raise ConfigError(
                    f"{count} rows of {what} cannot be split over {world.size} processes: give more of them, or fewer "
                    "processes"
                )
        rows = sum(self._source_rows) if phase.sources else training.batch_size  # of a step, over all processes
        self.tokens = (rows + self._memory_rows) * stream.length
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="loader")
        self._ahead: tuple[int, Future[Step]] | None = None

    def seed(self, step: int) -> int:
        """The seed of the random numbers that a step itself draws (dropout), different in each process."""
        return int(random_bits(self._stream.seed, self._stage.index, self._phase_index, step, self._world.rank) >> 1)

    def get(self, step: int) -> Step:
        ahead, self._ahead = self._ahead, None
        current = ahead[1].result() if ahead and ahead[0] == step else self.compute(step)
        if self._method.replay_weights is None:
            self._ahead = step + 1, self._thread.submit(self.compute, step + 1)
        return current

    def compute(self, step: int) -> Step:
        stage, stream, index, weights = self._stage.index, self._stream, self._phase_index, self._method.replay_weights
        batch = [
            stream.source_batch(stage, source, SOURCES * number + index, step, count, rows, weights)
            for number, (source, count) in enumerate(zip(self._phase.sources, self._source_rows, strict=True))
            for rows in self._micro_batches(count)
        ] or [
            stream.batch(stage, self._phase, index, step, self._batch_size, rows, weights)
            for rows in self._micro_batches(self._batch_size)
        ]
        memory = [
            stream.memory_batch(stage, self._phase, index, step, self._memory_rows, rows)
            for rows in self._micro_batches(self._memory_rows)
        ]
        device = self._world.device
        return [part.to(device) for part in batch], [part.to(device) for part in memory]

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown(cancel_futures=True)

    def _micro_batches(self, rows: int) -> list[np.ndarray]:
        """This process's rows: every world-size-th, so that all have their share of new and memory rows."""
        mine = np.arange(self._world.rank, rows, self._world.size)
        return [mine[i : i + self._micro] for i in range(0, len(mine), self._micro)]
