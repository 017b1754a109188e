"""A method for tests of launching: training that a file can slow, trip or kill in its second stage.

The tests put it among the methods of a copy of the code. The weights are those of the method
without it.
"""

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from benchmark.models import LanguageModel
from benchmark.training.learner import Batch, Learner
from benchmark.training.method import LifelongMethod, Stage


class Paced:
    """What it adds to a method. Each call of the loss in the second stage also adds a byte to
    `log`.
    """

    group = "controls"
    gate: str  # a file: "slow", "slow SECONDS", "trip RANK" or "die"; without it nothing is special
    log: str  # a file

    def start_stage(self, model: LanguageModel, stage: Stage) -> LanguageModel:
        self.watching = not stage.first
        model = super().start_stage(model, stage)  # type: ignore[misc]
        return model

    def loss(self, learner: Learner, batch: Batch) -> Tensor:
        if self.watching:
            self._obey(learner.world.rank)
            if self.log:
                with open(self.log, "ab") as file:
                    file.write(b".")
        loss: Tensor = super().loss(learner, batch)  # type: ignore[misc]
        return loss

    def _obey(self, rank: int) -> None:
        if not os.path.exists(self.gate):
            return
        what, *more = Path(self.gate).read_text().split()
        if what == "slow":
            time.sleep(float(more[0]) if more else 0.2)
        elif what == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        elif rank == int(more[0]):
            raise RuntimeError(f"tripped over {self.gate}")


@dataclass
class PacedNaive(Paced, LifelongMethod):  # type: ignore[misc]
    title = "Paced"

    gate: str = ""
    log: str = ""
