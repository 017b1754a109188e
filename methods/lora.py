"""LoRA: the model of the first domain, frozen, with low-rank adapters for each later one (Hu et al. 2021).

Nothing is forgotten, as each domain is evaluated with its own adapters, and little is learned: a control for PNN. See
benchmark/models/lora.py.
"""

from dataclasses import dataclass

from benchmark.method import LifelongMethod, Stage
from benchmark.models import LanguageModel
from benchmark.models.lora import LoraModel


@dataclass
class LoRA(LifelongMethod):
    title = "LoRA"
    group = "controls"

    rank: int = 8  # of the adapters, at every linear map of the transformer layers

    def __post_init__(self) -> None:
        if self.rank < 1:
            raise ValueError(f"rank {self.rank} must be at least 1")

    def start_stage(self, model: LanguageModel, stage: Stage) -> LanguageModel:
        if stage.first:
            return model
        adapted = model if isinstance(model, LoraModel) else LoraModel(model)
        adapted.add(self.rank)
        return adapted
