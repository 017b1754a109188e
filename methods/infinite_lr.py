"""Infinite learning rate: a constant rate, annealed in a branch per stage (Ibrahim et al. 2024).

Take it where nobody knows how long the stream will be.

"Simple and scalable strategies to continually pre-train large language models", arXiv 2403.08763,
section 7.4. The rate warms up once, falls to a constant, and stays there through all stages. Before
each evaluation a branch is annealed. The next stage continues from where the branch began, with the
optimizer's state from there. Warm-up ends at step N_wu, cooldown at N_cd, and the anneal goes from
N_ann to N_end. At step n the rate is

    warm-up   eta = eta_max n / N_wu
    cooldown  eta = eta_const + (eta_max - eta_const) / 2 (1 + cos(pi (n - N_wu) / (N_cd - N_wu)))
    constant  eta = eta_const
    anneal    eta = eta_const (eta_min / eta_const)^((n - N_ann) / (N_end - N_ann))

Here n and N count the spent part of a stage's budget. Only the first stage has warm-up and
cooldown. Rates are shares of the peak. The anneal is a branch at the end of each stage, and is
charged to the stage's budget. Defaults of shares and rates are ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from benchmark.settings.schedules import Piece, Schedule
from benchmark.training.method import LifelongMethod, PartOfStage, Phase, Positive, Share, Stage


@dataclass
class InfiniteLR(LifelongMethod):
    title = "Infinite LR"
    group = "controls"
    acts_first = True  # the first stage, too, has its own schedule
    search_space: ClassVar = {
        "replay_ratio": (0.01, 0.05, 0.1, 0.25, 0.5),
        "constant": (0.25, 0.5),
        "anneal": (0.1, 0.2),
    }

    replay_ratio: Share = 0.05  # share of each batch from memory
    warmup: PartOfStage = 0.01  # share of the first stage until the peak
    cooldown: PartOfStage = 0.6  # share of the first stage until the constant rate
    constant: Positive = 0.5  # eta_const, as a share of the peak
    minimum: Positive = 0.1  # eta_min, as a share of the peak
    anneal: PartOfStage = 0.15  # share of each stage for the branch whose end is evaluated

    def __post_init__(self) -> None:
        if not 0 < self.anneal < 1 - self.cooldown < 1 - self.warmup:
            raise ValueError(
                f"warmup {self.warmup}, cooldown {self.cooldown} and anneal {self.anneal}: let "
                "cooldown end after warmup, and leave something between it and anneal"
            )

    def phases(self, stage: Stage) -> Sequence[Phase]:
        steady = Piece(1.0, self.constant)
        warm = (Piece(self.warmup, 1.0), Piece(self.cooldown, self.constant, "cosine"), steady)
        adapt = (
            Schedule(warm, over="stage")
            if stage.first
            else Schedule((steady,), begin=self.constant)
        )
        down = Schedule((Piece(1.0, self.minimum, "exponential"),), begin=self.constant)
        return [
            Phase(
                "adapt",
                1 - self.anneal,
                memory=self.replay_ratio,
                schedule=adapt,
                optimizer="carry",
            ),
            Phase(
                "anneal",
                self.anneal,
                memory=self.replay_ratio,
                schedule=down,
                optimizer="carry",
                discard_after=True,
            ),
        ]
