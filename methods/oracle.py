"""Oracle: for each domain a model that is trained from scratch on all domains up to it.

Take it as what starting over with all text would reach. It costs the most.

Other methods are measured against it.

TiC-LM (Li et al. 2025, arXiv 2504.02107) retrains a series of models from scratch, each on all text
up to a cutoff, and subtracts their losses from those of lifelong methods. Here a stage begins with
random weights of the ladder's size, and trains on all domains so far with the budget of all stages
so far. So its model costs as much as a lifelong one has cost by then, and the series costs a
multiple of the stream. The first stage is Naive's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmark.training.method import LifelongMethod, Phase, Stage

if TYPE_CHECKING:
    from benchmark.models import LanguageModel


@dataclass
class Oracle(LifelongMethod):
    title = "Oracle"
    group = "references"

    def start_stage(self, model: LanguageModel, stage: Stage) -> LanguageModel:
        if stage.first:
            return model
        return stage.build(stage.size)

    def phases(self, stage: Stage) -> Sequence[Phase]:
        if stage.first:
            return [Phase("adapt")]
        return [Phase("train", share=1 + stage.spent / stage.budget, domain="seen")]
