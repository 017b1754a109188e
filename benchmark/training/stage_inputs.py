"""What a stage is trained from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from benchmark.models import LanguageModel, build
from benchmark.models.prompts import meet
from benchmark.settings.config import RunConfig
from benchmark.settings.model_settings import Size
from benchmark.training.method import LifelongMethod, Stage
from benchmark.training.optimization import Moments
from benchmark.training.processes import World
from benchmark.training.stage_keys import stage_of
from benchmark.training.step_times import StageTimes
from benchmark.training.stream import Stream


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
        )

    def memory_rows(rows: int) -> Tensor:
        return stream.memory_text(index, rows)

    def previous() -> LanguageModel:
        if load_previous is None:
            raise ValueError("the first stage has no model before it: copy the one that start_stage is given")
        before = load_previous()
        meet(before, stage.domains, stage.seed)
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
        meet(self.model, self.stage.domains, self.stage.seed)
        self.model = self.method.start_stage(self.model.to(self.world.device).train(), self.stage)
        self.model.to(self.world.device).train()
        if self.method.evaluated is not None:
            self.method.evaluated.to(self.world.device)
