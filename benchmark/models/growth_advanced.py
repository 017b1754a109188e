"""Advanced knowledge initialisation (AKI; Chen et al. 2022, "bert2BERT", section 4.2)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import torch
from torch import Tensor

from benchmark.models.growth_width import Fpi
from benchmark.models.layout import Affine, Layer, Place, Recipe


class Aki(Fpi):
    """FPI, but what a layer puts out to new units (heads, feed-forward and hidden ones) is as in the layer above.

    That breaks the symmetry between a unit and its copy, at the price of the function, which is close only because
    neighbouring layers do similar things. Both layers are widened with the same maps; the top layer has FPI.
    """

    def layers(self, layers: Sequence[Layer[Place]], sources: Sequence[int]) -> Iterator[Layer[Recipe]]:
        self._above = {id(layer): above for layer, above in pairwise(layers)}
        return super().layers(layers, sources)

    def layer(self, layer: Layer[Place]) -> tuple[Layer[Recipe], list[int]]:
        maps = self.generator.get_state()
        wide, heads = super().layer(layer)
        above = self._above.get(id(layer))
        if above is not None:
            self.generator.set_state(maps)
            upper, _ = super().layer(above)
            for half, names in (("attention", ("query", "key", "value", "output")), ("ffn", ("up", "down", "gate"))):
                small, own, other = (getattr(each, half) for each in (layer, wide, upper))
                for name in names:
                    if getattr(small, name) is not None:
                        old = getattr(small, name).shape[0]
                        setattr(own, name, _joined(getattr(own, name), getattr(other, name), old))
        return wide, heads


def _joined(own: Recipe, upper: Recipe, old: int) -> Recipe:
    """The first `old` outputs of one linear map, the others of another."""

    def join(one: Tensor, other: Tensor) -> Tensor:
        return torch.cat([one[:old], other[old:]])

    def joined() -> Affine:
        first, rest = own(), upper()
        return Affine(join(first.weight, rest.weight), join(first.bias, rest.bias))

    return joined
