"""LoRA (merged): in each stage low-rank adapters, which then go into the frozen weights.

Take it where there is little memory for the optimizer's moments, and a text's domain is not known.

W_n = W_{n-1} + B_n A_n with B_n A_n of rank r_n (Hu et al. 2021, arXiv 2106.09685). ReLoRA (Lialin
et al. 2023, arXiv 2307.05695) also merges and starts again, so that the rank of the whole change
grows with every merge: it is at most r_2 + ... + r_n. Unlike `lora`, the result is one model, which
reads all domains. The first stage is Naive's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import Field

from benchmark.training.method import AtLeastOne, LifelongMethod, Stage

if TYPE_CHECKING:
    from benchmark.models import LanguageModel
    from benchmark.training.learner import Learner

Ranks = Annotated[tuple[AtLeastOne, ...], Field(min_length=1)]


@dataclass
class LoRAMerged(LifelongMethod):
    title = "LoRA (merged)"
    group = "controls"
    needs_full_weights = True
    search_space: ClassVar = {"ranks": ((16,), (64,), (256,), (16, 32, 64, 128))}

    # if there are more stages, they have the last rank
    ranks: Ranks = (64,)  # of the adapters in the second stage, in the third, ...

    def start_stage(self, model: LanguageModel, stage: Stage) -> LanguageModel:
        if stage.first:
            return model
        from benchmark.models.kinds.lora import LoraModel

        self.eval_model = stage.previous()  # with all adapters so far in its weights
        adapted = LoraModel(stage.previous().train())
        adapted.add(self.ranks[min(stage.index, len(self.ranks)) - 1])
        return adapted

    def after_step(self, learner: Learner) -> None:
        import torch

        from benchmark.models.kinds.lora import list_linear_maps

        if self.eval_model is None:
            return
        adapted: Any = learner.model
        with torch.no_grad():
            for merged, frozen, adapter in zip(
                list_linear_maps(self.eval_model),
                list_linear_maps(adapted),
                adapted.adapters[0],  # its only set: each stage begins with a new model
                strict=True,
            ):
                merged.weight.copy_(frozen.weight)
                adapter.merge(merged)
