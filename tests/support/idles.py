"""A method with nothing beside it: what is in the module of a method is compared before and after each question."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from benchmark.training.method import LifelongMethod, Phase, Stage


@dataclass
class Idles(LifelongMethod):
    """Has a phase that computes nothing, for half of the budget."""

    def signature(self, stage: Stage) -> dict[str, Any]:
        return {"idles": True}

    def phases(self, stage: Stage) -> list[Phase]:
        return [Phase("idle", 0.5, trains=False), Phase("adapt", 0.5)]
