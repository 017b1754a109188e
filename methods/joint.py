"""Joint: continued training on all text of all domains so far, the upper bound of replay.

Take it as the upper bound of what replay can keep.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from benchmark.training.method import LifelongMethod, Phase, Stage


@dataclass
class Joint(LifelongMethod):
    title = "Joint"
    group = "controls"

    def phases(self, stage: Stage) -> Sequence[Phase]:
        return [Phase("adapt") if stage.first else Phase("adapt", domain="seen")]
