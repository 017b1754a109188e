"""Growth that keeps the function of a network with RMSNorm (Llama) at every width: what is new is silent at first.

RMSNorm divides S residual units by the root of their mean square. T - S further units that are zero make that mean
S / T of what it was, so a gain of sqrt(S / T) and an epsilon of S / T undo them. Nothing writes into the new units, and
new heads and feed-forward units, copies of old ones, write nothing. But what reads the new units and what the new heads
and feed-forward units put out is not zero, so that the first gradient reaches the writing side of everything new, and
the second one the rest.

A norm over the units of a head (Qwen3) shares the epsilon: it is exact as well, since it ignores the scale of what it
normalises. Queries and keys that are sqrt(S / T) times as large let it see the epsilon that it saw before.
"""

from __future__ import annotations

import torch
from torch import Tensor

from benchmark.models.growth_width import Heads, Width
from benchmark.models.layout import Affine, Layer, Place, Recipe


class Padding(Width):
    """See the module.

    Args:
        tied: whether the decoder is the embedding. If not, it reads the new units, so that their gradient does not
            have to come from the layers.
    """

    def __init__(self, old: int, new: int, heads: Heads, generator: torch.Generator, tied: bool):
        super().__init__(old, new, heads, generator)
        self.extra = new - old
        self.tied = tied
        self.eta = (old / new) ** 0.5
        self.variance = self.eta**2

    def layer(self, layer: Layer[Place]) -> tuple[Layer[Recipe], list[int]]:
        wide, heads = super().layer(layer)
        attention = wide.attention
        if attention.query_norm is not None:
            attention.query = _scaled(attention.query, self.eta)
        if attention.key_norm is not None:
            attention.key = _scaled(attention.key, self.eta)
        return wide, heads

    def table(self, table: Affine, norm: Affine | None) -> Affine:
        return Affine(_padded(table.weight, table.weight.shape[0], self.new), table.bias)

    def decoder(self, decoder: Affine, norm: Affine | None) -> Affine:
        return self.table(decoder, norm) if self.tied else Affine(self._read(decoder.weight), decoder.bias)

    def norm(self, norm: Affine) -> Affine:
        """The gain of the new units does not matter yet; but a gain of zero would stop their gradient."""
        gain = torch.cat([norm.weight, norm.weight.mean().expand(self.extra)])
        return Affine(self.eta * gain, _padded(norm.bias, self.new))

    last_norm = norm

    def reading(self, linear: Affine, outputs: Tensor) -> Affine:
        return Affine(self._read(linear.weight.index_select(0, outputs)), linear.bias[outputs])

    def writing(self, linear: Affine, inputs: Tensor) -> Affine:
        return Affine(_padded(linear.weight, self.new, len(inputs)), _padded(linear.bias, self.new))

    def _read(self, weight: Tensor) -> Tensor:
        """Weights (out, T) for weights (out, S), of the same size on the new units."""
        extra = torch.randn(len(weight), self.extra, generator=self.generator, dtype=weight.dtype)
        return torch.cat([weight, extra * weight.std()], 1)


def _scaled(linear: Recipe, factor: float) -> Recipe:
    def scaled() -> Affine:
        whole = linear()
        return Affine(factor * whole.weight, factor * whole.bias)

    return scaled


def _padded(tensor: Tensor, *shape: int) -> Tensor:
    """The tensor in the first corner of zeros of a shape."""
    wide = tensor.new_zeros(shape)
    wide[tuple(slice(size) for size in tensor.shape)] = tensor
    return wide
