"""O-LoRA: adapters a domain, orthogonal to those before, which stay and add up (Wang et al. 2023, arXiv 2310.14152)."""

from dataclasses import dataclass
from functools import partial

import torch
from torch import nn

from benchmark.models.architectures import matrix
from benchmark.models.kinds.extended import ExtendedModel
from benchmark.models.kinds.lora import linear_maps
from benchmark.training.method import AtLeastOne, LifelongMethod, NotNegative


class SumOfAdapters(ExtendedModel):
    def __init__(self, model, rank, domains=0):
        super().__init__(model, rank=rank, domains=0)
        self.adapters = nn.ModuleList()
        for place, module in enumerate(linear_maps(model)):
            module.register_forward_hook(partial(self.adapt, place))
        for _ in range(domains):
            self.add()

    def add(self):
        self.requires_grad_(False)
        new = nn.ModuleList()
        for outputs, inputs in (matrix(module).shape for module in linear_maps(self)):
            down = nn.Linear(inputs, self.made_with["rank"], bias=False)
            up = nn.Linear(self.made_with["rank"], outputs, bias=False)
            nn.init.zeros_(up.weight)
            new.append(nn.Sequential(down, up))
        self.adapters.append(new)
        self.made_with["domains"] += 1

    def adapt(self, place, module, inputs, output):
        return output + sum(adapters[place](inputs[0]) for adapters in self.adapters)

    def to_plain(self):
        with torch.no_grad():
            for adapters in self.adapters:
                for module, (down, up) in zip(linear_maps(self), adapters, strict=True):
                    matrix(module).add_(up.weight @ down.weight)
        self.adapters = nn.ModuleList()
        return self.network


@dataclass
class OLora(LifelongMethod):
    title = "O-LoRA"

    rank: AtLeastOne = 4  # of the adapters
    strength: NotNegative = 0.5  # of the sum of |A_i A_t^T| over the earlier domains i

    def start_stage(self, model, stage):
        if not stage.first:
            model = model if isinstance(model, SumOfAdapters) else SumOfAdapters(model, self.rank)
            model.add()
        return model

    def loss(self, learner, batch):
        loss = learner.language_model_loss(batch)
        *earlier, new = getattr(learner.model, "adapters", [None])
        for adapters in earlier:
            for (old, _), (down, _) in zip(adapters, new, strict=True):
                loss = loss + self.strength * (old.weight @ down.weight.T).abs().sum()
        return loss
