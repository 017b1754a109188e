"""G_stack: ER that is stacked once, by the published factor and time (Du et al. 2024).

Take it to see one early doubling of depth beside a ladder.

"Stacking Your Transformers", arXiv 2405.15319: the layers of a small model are put on top of
themselves g times, with g = 4, once it has seen d tokens. For a model of N parameters when grown,
and C FLOPs in all (C = 6 N D for D tokens),

    log10 d = 0.88 log10 N + 163.27 / log10 C - 5.74,

which is a share 6 (N / g) d / C of the FLOPs. It was fitted to 0.4 to 3 billion parameters. Far
below it is no use: with 10^6 parameters and 6 x 10^13 FLOPs, 10^7 tokens in all, it says to grow
after 2 x 10^11. Hence a share, by default that of the paper's 7B model, whose quarter saw 10
billion tokens before the whole saw 300 billion. The model grows at the beginning of the first stage
before which the share is spent. `stack` climbs the ladder as ELLE instead.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from benchmark.settings.base import ConfigError
from benchmark.settings.units import UNITS
from benchmark.training.method import Share, Stage
from methods.er import ER

if TYPE_CHECKING:
    from benchmark.models import LanguageModel


@dataclass
class GStack(ER):
    title = "G_stack"
    group = "controls"
    search_space: ClassVar = {"factor": (2, 4), "replay_ratio": (0.1, 0.2, 0.3, 0.5, 0.7)}

    factor: Literal[2, 3, 4, 5, 6, 7, 8] = 4  # g: how often it stands on itself (paper: 2 to 4)
    # "law": the equation, for FLOPs
    timing: Share | Literal["law"] = 0.008  # of the stream's budget before it grows

    def signature(self, stage: Stage) -> dict[str, object]:
        if self.timing == "law" and not UNITS[stage.unit].charges_flops:
            raise ConfigError(
                f"gstack: timing 'law' needs a budget in flops, not {stage.unit}: give a share"
            )
        return super().signature(stage) | (
            {} if stage.first else {"stream": stage.stream_info.budget}
        )

    def start_stage(self, model: LanguageModel, stage: Stage) -> LanguageModel:
        layers = self.factor * stage.ladder[0].layers
        if stage.first or model.layers == layers:
            return model
        stack = sum(
            p.numel()
            for layer in model.architecture.layers(model.network)
            for p in layer.parameters()
        )
        parameters = model.parameters_count + (self.factor - 1) * stack
        if stage.spent < stage.stream_info.budget * self.share(parameters, stage):
            return model
        from benchmark.models.growth import grow

        network, self.growth = grow(
            model.network, layers, model.hidden_size, mode="fpi", copy="stack", seed=stage.seed
        )
        model.set_network(network)
        return model

    def share(self, parameters: int, stage: Stage) -> float:
        """Share of the budget before growth to so many parameters.

        Raises ConfigError where the law is no use.
        """
        if self.timing != "law":
            return self.timing
        tokens = count_tokens_before_growth(parameters, stage.stream_info.budget)
        share = 6 * parameters / self.factor * tokens / stage.stream_info.budget
        if share > 1:
            raise ConfigError(
                f"gstack: by the law growth comes after {tokens:.2g} tokens, {share:.2g} times the "
                "budget: give a share"
            )
        return share


def count_tokens_before_growth(parameters: float, flops: float) -> float:
    """Tokens d to see before growth (equation 3), for N parameters once grown and C FLOPs."""
    exponent = 0.88 * math.log10(parameters) + 163.27 / math.log10(flops) - 5.74
    return float(10**exponent)
