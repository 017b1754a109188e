"""ELLE: function preserved model expansion and pre-trained domain prompts (Qin et al. 2022).

Take it for the paper's own row: a model that is to grow with its domains.

Section 3. In addition to ER, each stage grows the model (WE, DE, with noise), recovers its function
on the memory (FRW), and marks each sequence with a prompt of its domain (PT). Each of these five
parts can be switched off, so that a row of the ablation (table:table3) is a set of options. With
all of them off, ELLE is ER.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Literal

from benchmark.training.method import (
    LifelongMethod,
    NotNegative,
    PartOfStage,
    Phase,
    Share,
    Stage,
)

if TYPE_CHECKING:
    from benchmark.models import LanguageModel


@dataclass
class ELLE(LifelongMethod):
    title = "ELLE"
    version = 2  # noise became a share of the weights' initial deviation
    search_space: ClassVar = {
        "recover": (0.1, 0.2, 0.3),
        "replay_ratio": (0.1, 0.2, 0.3, 0.5, 0.7),
        "noise": (0.0, 0.5),
    }
    state = ("copied",)

    width: bool = True  # WE: grow to the ladder's hidden size
    depth: bool = True  # DE: grow to the ladder's number of layers
    recover: PartOfStage = 0.2  # FRW: budget on memory only (paper: 5k of 25k steps), or 0
    # standard deviation, as a share of that of new weights (released code: 0.01 of 0.02)
    noise: NotNegative = 0.5  # on weights of units that "fpi" splits
    prompts: bool = True  # PT: a prompt for each domain
    replay_ratio: Share = 0.1  # share of each batch from memory (the paper: 9:1)
    # "fpi" is the paper's, "exact" keeps the function, "aki" has units of the layer above
    growth_mode: Literal["fpi", "exact", "aki"] = "fpi"  # how WE and DE grow
    copied_layer: Literal["new", "first", "last", "stack"] = "new"  # by DE (fig:same_layer)

    # layers that DE has copied in earlier stages
    copied: Sequence[int] = field(default=(), init=False)

    def signature(self, stage: Stage) -> dict[str, object]:
        if stage.first:  # only prompts distinguish it from Naive's
            return {"prompts": True} if self.prompts else {}
        return super().signature(stage)

    def uses_memory(self, stage: Stage) -> bool:
        # exact growth is fitted to the memory
        return super().uses_memory(stage) or (self.growth_mode == "exact" and not stage.first)

    def reads_domain(self) -> bool:
        return self.prompts

    def start_stage(self, model: LanguageModel, stage: Stage) -> LanguageModel:
        model.prompts = self.prompts
        layers = stage.size.layers if self.depth else model.layers
        hidden_size = stage.size.hidden_size if self.width else model.hidden_size
        if (layers, hidden_size) == (model.layers, model.hidden_size):
            return model
        from benchmark.models.growth import grow

        fitted_to = stage.memory_sequences(32)
        network, record = grow(
            model.network,
            layers,
            hidden_size,
            mode=self.growth_mode,
            noise=self.noise if self.growth_mode == "fpi" else 0.0,
            copy=self.copied_layer,
            copied=self.copied,
            seed=stage.seed,
            calibration=fitted_to if len(fitted_to) else None,
        )
        model.set_network(network)
        self.growth = record
        self.copied = list(record.copied)
        return model

    def phases(self, stage: Stage) -> Sequence[Phase]:
        if stage.first or not self.recover:
            return [Phase("adapt", memory=self.replay_ratio)]
        return [
            Phase("recover", share=self.recover, memory=1.0),
            Phase("adapt", share=1 - self.recover, memory=self.replay_ratio),
        ]
