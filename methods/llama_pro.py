"""LLaMA Pro: new blocks, which write nothing at first, learn a domain. All others stay frozen.

Take it to add to a published model without touching its own layers.

Wu et al. 2024, "LLaMA Pro: progressive LLaMA with block expansion", arXiv 2401.02415, section 3.2.
A block computes x' = x + A(norm(x)), y = x' + F(norm(x')). If the output projections of attention A
and feed-forward F are zero, it computes y = x. Copies of this kind are inserted between the blocks,
and only they learn. The paper adds its blocks once. Here each later stage adds some, and the
earlier ones are frozen too.

If blocks normalise their sums (BERT), a copy changes its input slightly. See
docs/appendix_growth.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from benchmark.training.method import AtLeastOne, LifelongMethod, Stage

if TYPE_CHECKING:
    from benchmark.models import LanguageModel


@dataclass
class LlamaPro(LifelongMethod):
    title = "LLaMA Pro"
    group = "controls"
    search_space: ClassVar = {"blocks": (1, 2, 4)}
    state = ("copied",)

    blocks: AtLeastOne = 1  # that each stage after the first adds

    # blocks that were copied in earlier stages
    copied: Sequence[int] = field(default=(), init=False)

    def start_stage(self, model: LanguageModel, stage: Stage) -> LanguageModel:
        if stage.first:
            return model
        from benchmark.models.growth import grow

        network, record = grow(
            model.network,
            model.layers + self.blocks,
            model.hidden_size,
            mode="exact",
            copied=self.copied,
            seed=stage.seed,
        )
        model.set_network(network)
        self.growth = record
        self.copied = list(record.copied)
        model.requires_grad_(False)
        layers = model.architecture.layers(network)
        for layer, is_new in zip(layers, record.layer_is_copy, strict=True):
            layer.requires_grad_(is_new)
        return model
