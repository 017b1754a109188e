"""AR schedule: a cosine for each domain, with peaks on one long cosine (TiC-LM, Li et al. 2025).

Take it for a long stream of dated text under one schedule.

arXiv 2504.02107. The autoregressive meta-schedule of Roth et al. 2024 (arXiv 2408.14471): stage n,
of budget T_n, peaks where a cosine over all budgets so far and its own would stand when it begins,
with S_n = T_1 + ... + T_{n-1},

    eta_n = eta_min + (eta_max - eta_min) / 2 (1 + cos(pi S_n / (S_n + T_n))),

and decays from there to eta_min along a cosine of its own. It need not know the stream's length.
TiC-LM has half of each batch from memory, which there comes close to training anew. The first stage
is Naive's, with the suite's schedule, so that all methods start from the same model. eta_min is
that of the schedule "cosine".
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
