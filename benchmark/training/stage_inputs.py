"""What a stage is trained from."""

from __future__ import annotations

from dataclasses import dataclass

from benchmark.models import LanguageModel
from benchmark.models.prompts import meet
from benchmark.settings.config import RunConfig
from benchmark.training.method import LifelongMethod, Stage
from benchmark.training.processes import World
from benchmark.training.stream import Stream


@dataclass
class StageInputs:
    """All that the steps of a stage work with. `model` is as the previous stage left it, or new, until `begin`."""

    config: RunConfig
    stage: Stage
    stream: Stream
    method: LifelongMethod
    model: LanguageModel
    world: World

    def begin(self) -> None:
        """Let the method make the model that this stage trains, on the device and in training mode.

        The model has met the new domain then.
        """
        meet(self.model, self.stage.domains, self.stage.seed)
        self.model = self.method.start_stage(self.model.to(self.world.device).train(), self.stage)
        self.model.to(self.world.device).train()
