"""A thin network beside the frozen one, fed by its layers (ladder side-tuning, Sung et al. 2022,
arXiv 2206.06522).
"""

from dataclasses import dataclass

from torch import nn

from benchmark.models.kinds.extended import ExtendedModel
from benchmark.training.method import AtLeastOne, LifelongMethod


class WithSide(ExtendedModel):
    def __init__(self, model, width):
        super().__init__(model, width=width)
        self.down = nn.ModuleList(
            nn.Linear(model.hidden_size, width) for _ in range(model.layers + 1)
        )
        self.up = nn.Linear(width, model.hidden_size)
        nn.init.zeros_(self.up.weight)

    def hidden(self, tokens, domains):
        seen = self.insert_prompts(tokens, domains)
        hidden, layers, finish = self.architecture.unroll(self.network, seen, None)
        side = self.down[0](hidden)
        for layer, down in zip(layers, self.down[1:], strict=True):
            hidden = layer(hidden)
            side = nn.functional.gelu(side + down(hidden))
        return finish(hidden) + self.up(side)


@dataclass
class SideNetwork(LifelongMethod):
    title = "Side network"

    width: AtLeastOne = 8  # of the side network

    def start_stage(self, model, stage):
        if stage.index == 1:
            model = WithSide(model, self.width)
        if not stage.first:
            model.network.requires_grad_(False)
        return model
