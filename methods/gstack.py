"""G_stack: ER that is stacked once, by the published factor and time (Du et al. 2024).

Take it to see one early growth of depth beside a ladder.

"Stacking Your Transformers", arXiv 2405.15319: once a share of the budget is spent, the layers of a
small model are repeated until there are g = 4 copies, one on top of the other. The default share is
that of the paper's 7B model: a quarter of its layers was trained on 10 billion tokens, then the
whole model on 300 billion. The paper also has a law for the time of growth, fitted to 0.4 to 3
billion parameters. It does not hold for far smaller models: for 10^6 parameters and 6 x 10^13
FLOPs, which is 10^7 tokens in all, it says to grow after 2 x 10^11 tokens. The model grows at the
beginning of the first stage before which the share is spent. The method `stack` instead climbs the
ladder, as ELLE does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from benchmark.training.method import Share, Stage
from methods.er import ER

if TYPE_CHECKING:
    from benchmark.models import LanguageModel


@dataclass
class GStack(ER):
    title = "G_stack"
    group = "controls"
    search_space: ClassVar = {"factor": (2, 4), "replay_ratio": (0.1, 0.2, 0.3, 0.5, 0.7)}

    factor: Literal[2, 3, 4, 5, 6, 7, 8] = 4  # g: new depth divided by the old (paper: 2 to 4)
    timing: Share = 0.008  # of the stream's budget before it grows

    def signature(self, stage: Stage) -> dict[str, object]:
        if stage.first:
            return {}
        return super().signature(stage) | {"stream": stage.stream_info.budget}

    def start_stage(self, model: LanguageModel, stage: Stage) -> LanguageModel:
        layers = self.factor * stage.ladder[0].layers
        if stage.first or model.layers == layers:
            return model
        if stage.spent < stage.stream_info.budget * self.timing:
            return model
        from benchmark.models.growth import grow

        network, self.growth = grow(
            model.network, layers, model.hidden_size, mode="fpi", copy="stack", seed=stage.seed
        )
        model.set_network(network)
        return model
