"""LoRA: the first domain's model, frozen, with low-rank adapters for each later domain.

Take it where a text's domain is known, and there is little memory for the optimizer's moments.

Hu et al. 2021, arXiv 2106.09685. It forgets nothing, because each domain is evaluated with its own
adapters, and it learns less. It is a control for PNN. See benchmark/models/kinds/lora.py.

The default rank is for pre-training: if all weights are trained, the rank of their change is 10 to
100 times that of usual adapters (Biderman et al. 2024, "LoRA Learns Less and Forgets Less", arXiv
2405.09673). On the demo's domains with a GPT L3_D256 (60 s for the first, 25 s for each later one),
the average perplexity at the end is 50 and 92 (two seeds) with rank 8, 39 and 77 with rank 64, and
37 and 75 with rank 128. But at hidden size 384 a step with rank 128 costs as much as one that
trains all weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from benchmark.training.method import AtLeastOne, LifelongMethod, Stage

if TYPE_CHECKING:
    from benchmark.models import LanguageModel


@dataclass
class LoRA(LifelongMethod):
    title = "LoRA"
    group = "controls"
    needs_full_weights = True
    search_space: ClassVar = {"rank": (16, 64, 256)}

    rank: AtLeastOne = 64  # of the adapters, at every linear map of the transformer layers

    def reads_domain(self) -> bool:
        return True

    def start_stage(self, model: LanguageModel, stage: Stage) -> LanguageModel:
        if stage.first:
            return model
        from benchmark.models.kinds.lora import LoraModel

        adapted = model if isinstance(model, LoraModel) else LoraModel(model)
        adapted.add(self.rank)
        return adapted
