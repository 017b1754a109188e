"""A method for tests of launching: a file can slow its second stage down, make it fail, or kill it.

The tests copy the code and put this file among the methods of the copy. The weights equal those of
the method without the mixin `Paced`.
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
    """A mixin: after the first stage, each call of the loss obeys the file `gate`, then adds a byte
    to `log`.
    """

    group = "controls"
    gate: str  # a file with "slow", "slow SECONDS", "trip RANK" or "die". It may be missing
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
