"""ER: experience replay (Chaudhry et al. 2019, "On tiny episodic memories in continual learning").

Take it first: plain replay is what any other method has to beat.

A fixed share of every batch comes from the memory of earlier domains. The loss is one mean over the
batch.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from benchmark.training.method import LifelongMethod, Phase, Share, Stage


@dataclass
class ER(LifelongMethod):
    title = "ER"
    search_space: ClassVar = {"replay_ratio": (0.1, 0.2, 0.3, 0.5, 0.7)}

    replay_ratio: Share = 0.1  # share of each batch from memory (the paper: 9:1)

    def phases(self, stage: Stage) -> Sequence[Phase]:
        return [Phase("adapt", memory=self.replay_ratio)]
