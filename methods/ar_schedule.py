"""AR schedule: a cosine for each domain, with peaks on one long cosine (TiC-LM, Li et al. 2025).

Take it for a long stream of dated text under one schedule.

arXiv 2504.02107. It is the autoregressive meta-schedule of Roth et al. 2024 (arXiv 2408.14471). If
stage n has the budget T_n, and S_n = T_1 + ... + T_{n-1} is spent before it, its peak is the value
at S_n of a cosine over S_n + T_n:

    eta_n = eta_min + (eta_max - eta_min) / 2 (1 + cos(pi S_n / (S_n + T_n))).

From there the rate decays to eta_min along a cosine of its own. The stream's length need not be
known. TiC-LM takes half of each batch from memory, and then comes close to training from scratch.
The first stage is Naive's, with the suite's schedule, so that all methods start from the same
model. eta_min is the same as in the schedule "cosine".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from benchmark.settings.schedules import FLOOR, Piece, Schedule
from benchmark.training.method import LifelongMethod, PartOfStage, Phase, Share, Stage


@dataclass
class ARSchedule(LifelongMethod):
    title = "AR schedule"
    group = "controls"
    search_space: ClassVar = {"replay_ratio": (0.1, 0.25, 0.5)}

    replay_ratio: Share = 0.5  # share of each batch from memory (TiC-LM: half)
    warmup: PartOfStage = 0.1  # share of a stage that warms up (Roth et al.: a tenth)

    def phases(self, stage: Stage) -> Sequence[Phase]:
        if stage.first:
            return [Phase("adapt")]
        long = Schedule((Piece(1.0, FLOOR, "cosine"),), begin=1.0)
        peak = long.at(stage.spent / (stage.spent + stage.budget))
        schedule = Schedule((Piece(self.warmup, peak), Piece(1.0, FLOOR, "cosine")))
        return [Phase("adapt", memory=self.replay_ratio, schedule=schedule)]
