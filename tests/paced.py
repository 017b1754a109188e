"""A method for tests of launching: naive training that a file can slow, trip or kill in its second stage.

The tests put it among the methods of a copy of the code. The weights are those of naive training.
"""

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from benchmark.method import LifelongMethod


@dataclass
class Paced(LifelongMethod):
    title = "Paced"
    group = "controls"

    gate: str  # a file: "slow", "trip RANK" or "die"; without it there is nothing special

    def start_stage(self, model, stage):
        self.watching = not stage.first
        return model

    def loss(self, learner, batch):
        if self.watching and os.path.exists(self.gate):
            what, *ranks = Path(self.gate).read_text().split()
            if what == "slow":
                time.sleep(0.2)
            elif what == "die":
                os.kill(os.getpid(), signal.SIGKILL)
            elif learner.world.rank == int(ranks[0]):
                raise RuntimeError(f"tripped over {self.gate}")
        return super().loss(learner, batch)
