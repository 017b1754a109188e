"""Rewarm: re-warmed and re-decayed learning rate with a little replay (Ibrahim et al. 2024).

Take it for a published model whose learning rate has decayed: the plain recipe of today.

The learning rate is warmed up again for each domain and decayed along a cosine to a tenth of its
peak. The first stage is Naive's, with the suite's schedule, so that all methods start from the same
model.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from benchmark.training.method import LifelongMethod, Phase, Share, Stage


@dataclass
class Rewarm(LifelongMethod):
    title = "Rewarm"
    group = "controls"
    search_space: ClassVar = {"replay_ratio": (0.05, 0.1, 0.2)}

    replay_ratio: Share = 0.05  # share of each batch from memory (Ibrahim et al.: 5%)

    def phases(self, stage: Stage) -> Sequence[Phase]:
        return [
            Phase("adapt")
            if stage.first
            else Phase("adapt", memory=self.replay_ratio, schedule="cosine")
        ]
