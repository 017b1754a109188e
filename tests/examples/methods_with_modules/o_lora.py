"""O-LoRA: each domain but the first adds adapters, which a penalty keeps orthogonal to the earlier
ones. The earlier ones are frozen, and all are summed (Wang et al. 2023, arXiv 2310.14152).
"""

from dataclasses import dataclass
from functools import partial

from torch import nn

from benchmark.models.architectures import get_matrix
from benchmark.models.kinds.extended import ExtendedModel
from benchmark.models.kinds.lora import Adapter, list_linear_maps
from benchmark.training.method import AtLeastOne, LifelongMethod, NotNegative


class SumOfAdapters(ExtendedModel):
    def __init__(self, model, rank, domains=0):
        super().__init__(model, rank=rank, domains=0)
        self.adapters = nn.ModuleList()
        for place, module in enumerate(list_linear_maps(model)):
            module.register_forward_hook(partial(self.adapt, place))
        for _ in range(domains):
            self.add()

    def add(self):
        self.requires_grad_(False)
        maps, rank = list_linear_maps(self), self.made_with["rank"]
        self.adapters.append(nn.ModuleList(Adapter(get_matrix(module), rank) for module in maps))
        self.made_with["domains"] += 1

    def adapt(self, place, module, inputs, output):
        return output + sum(each[place].up(each[place].down(inputs[0])) for each in self.adapters)

    def to_plain(self):
        for adapters in self.adapters:
            for module, adapter in zip(list_linear_maps(self), adapters, strict=True):
                adapter.merge(module)
        self.adapters = nn.ModuleList()
        return self.network


@dataclass
class OLora(LifelongMethod):
    title = "O-LoRA"

    rank: AtLeastOne = 4  # of the adapters
    strength: NotNegative = 0.5  # factor of the sum of |A_i A_t^T| over the earlier domains i

    def start_stage(self, model, stage):
        if not stage.first:
            model = model if isinstance(model, SumOfAdapters) else SumOfAdapters(model, self.rank)
            model.add()
        return model

    def loss(self, learner, batch):
        *earlier, new = getattr(learner.model, "adapters", [None])
        pairs = [pair for adapters in earlier for pair in zip(adapters, new, strict=True)]
        overlap = sum(
            (old.down.weight @ adapter.down.weight.T).abs().sum() for old, adapter in pairs
        )
        return learner.language_model_loss(batch) + self.strength * overlap
