"""ER at the final size from the start: it shows what growth saves, or costs.

Take it beside each method that grows, as what growth has to beat.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from benchmark.training.method import LifelongMethod, Phase, Share, Stage

if TYPE_CHECKING:
    from benchmark.models import LanguageModel


@dataclass
class ERLarge(LifelongMethod):
    title = "ER (final size)"
    group = "controls"
    search_space: ClassVar = {"replay_ratio": (0.1, 0.2, 0.3, 0.5, 0.7)}

    replay_ratio: Share = 0.1  # share of each batch from memory, as ER's

    def signature(self, stage: Stage) -> dict[str, object]:
        return {"size": str(stage.stream_info.size), **super().signature(stage)}

    def start_stage(self, model: LanguageModel, stage: Stage) -> LanguageModel:
        if stage.first:
            return stage.build(stage.stream_info.size)
        return model

    def phases(self, stage: Stage) -> Sequence[Phase]:
        return [Phase("adapt", memory=self.replay_ratio)]
