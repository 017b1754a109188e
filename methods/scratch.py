"""Scratch: a model of the final size, trained from random weights on the whole stream.

Take it as what growth and continued training have to beat.

All budget of the stream is spent in the last stage. The stages before it train nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmark.training.method import LifelongMethod, Phase, Stage

if TYPE_CHECKING:
    from benchmark.models import LanguageModel


@dataclass
class Scratch(LifelongMethod):
    title = "From scratch"
    group = "controls"
    acts_first = True  # it trains nothing in the first stage

    def signature(self, stage: Stage) -> dict[str, object]:
        return {**super().signature(stage), **({"last": True} if stage.last else {})}

    def start_stage(self, model: LanguageModel, stage: Stage) -> LanguageModel:
        if stage.last:
            return stage.build(stage.size)
        return model

    def phases(self, stage: Stage) -> Sequence[Phase]:
        if stage.last:
            return [Phase("train", share=stage.stream_info.budget / stage.budget, domain="seen")]
        return []
