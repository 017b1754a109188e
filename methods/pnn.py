"""PNN: progressive neural networks (Rusu et al. 2016, arXiv 1606.04671), as released with ELLE.

Take it where nothing may be forgotten, and parameters and cost may grow with each domain.

Each new domain gets a column of the ladder's first size. The older columns are frozen, and feed the
new one at every level (benchmark/models/kinds/progressive.py). Every domain is evaluated on its own
column, so nothing is forgotten.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from benchmark.training.method import LifelongMethod, Stage

if TYPE_CHECKING:
    from benchmark.models import LanguageModel


@dataclass
class PNN(LifelongMethod):
    title = "PNN"
    needs_full_weights = True
    search_space: ClassVar = {"lateral": ("linear", "adapter")}

    lateral: Literal["linear", "adapter"] = "linear"  # as in ELLE's code, or nonlinear as Rusu's

    def reads_domain(self) -> bool:
        return True

    def start_stage(self, model: LanguageModel, stage: Stage) -> LanguageModel:
        if stage.first:
            return model
        from benchmark.models.kinds.progressive import ProgressiveModel

        return ProgressiveModel.add_column(model, stage.build(stage.ladder[0]), self.lateral)
