"""Width growth: what every way of it has in common, and the paper's way (FPI).

Shapes: S old and T new hidden size; `outputs` and `inputs` map new units to old ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from benchmark.models.growth_maps import blocks, columns, counts, expansion
from benchmark.models.layout import Affine, Attention, FeedForward, Layer, Network, Place, Recipe

NoiseScale = Literal["absolute", "relative"]
_BLOCK = 2**23  # numbers of a table that are widened at once


@dataclass(frozen=True)
class Heads:
    """The heads of attention have `size` units each; `groups` are for keys, each shared by `ratio` heads of queries."""

    size: int
    groups: int
    ratio: int = 1


class Width:
    """Widens the weights of a network, one by one. Subclasses say what happens where a map meets the residual stream.

    Args:
        old, new: S and T.
        heads: of the old network. They are copied whole, with one map for query, key, value and output of a layer,
            and each group with all of its query heads.

    Attributes:
        variance: what it multiplies the variance that norms see by.
        head_sources: the old head of each new head, for each layer so far.
    """

    variance = 1.0

    def __init__(self, old: int, new: int, heads: Heads, generator: torch.Generator):
        self.old = old
        self.new = new
        self.heads = heads
        self.generator = generator
        self.head_sources: list[list[int]] = []

    def layers(self, layers: Sequence[Layer[Place]], sources: Sequence[int]) -> Iterator[Layer[Recipe]]:
        """The wide layers, each to be used up before the next is asked for: both draw from the same generator."""
        for source in sources:
            wide, heads = self.layer(layers[source])
            self.head_sources.append(heads)
            yield wide

    def layer(self, layer: Layer[Place]) -> tuple[Layer[Recipe], list[int]]:
        """The wide layer, and the old head of each of its heads."""
        attention, ffn = layer.attention, layer.ffn
        inner, size = ffn.up.shape[0], self.heads.size
        groups = expansion(self.heads.groups, self.heads.groups * self.new // self.old, self.generator)
        heads = blocks(groups, self.heads.ratio)
        query, key = blocks(heads, size), blocks(groups, size)
        units = expansion(inner, inner * self.new // self.old, self.generator)

        def norm(place: Place) -> Recipe:
            return lambda: self.norm(place.read())

        def reading(place: Place, outputs: Tensor) -> Recipe:
            return lambda: self.reading(place.read(), outputs)

        def writing(place: Place, inputs: Tensor) -> Recipe:
            return lambda: self.writing(place.read(), inputs)

        wide = Layer[Recipe](
            attention=Attention(
                norm=norm(attention.norm) if attention.norm else None,
                query=reading(attention.query, query),
                key=reading(attention.key, key),
                value=reading(attention.value, key),
                output=writing(attention.output, query),
                query_norm=attention.query_norm.read if attention.query_norm else None,
                key_norm=attention.key_norm.read if attention.key_norm else None,
            ),
            ffn=FeedForward(
                norm=norm(ffn.norm),
                up=reading(ffn.up, units),
                down=writing(ffn.down, units),
                gate=reading(ffn.gate, units) if ffn.gate else None,
            ),
        )
        return wide, heads.tolist()

    def ends(self, old: Network[Place], new: Network[Place]) -> Iterator[tuple[Place, Affine]]:
        """What is before and after the layers, and where in `new` it belongs; tables come in blocks of rows."""
        if old.head is None or old.head_norm is None:
            if old.final_norm and new.final_norm:
                yield new.final_norm, self.last_norm(old.final_norm.read())
        elif new.head and new.head_norm:
            if old.final_norm and new.final_norm:
                yield new.final_norm, self.norm(old.final_norm.read())
            head, head_norm = self.head(old.head.read(), old.head_norm.read())
            yield new.head, head
            yield new.head_norm, head_norm
        norm = old.embedding_norm.read() if old.embedding_norm else None
        for table, wide in zip(old.tables, new.tables, strict=True):
            yield from _by_rows(table, wide, partial(self.table, norm=norm))
        if norm and new.embedding_norm:
            yield new.embedding_norm, self.embedding_norm(norm)
        yield from _by_rows(old.decoder, new.decoder, partial(self.decoder, norm=norm))

    def table(self, table: Affine, norm: Affine | None) -> Affine:
        """Rows of a table of embeddings, of which `norm` is the LayerNorm, if any."""
        raise NotImplementedError

    def decoder(self, decoder: Affine, norm: Affine | None) -> Affine:
        """Rows of the decoder, which is widened as the embeddings are: it may be tied to them."""
        return self.table(decoder, norm)

    def norm(self, norm: Affine) -> Affine:
        """A norm whose output linear maps read."""
        raise NotImplementedError

    def embedding_norm(self, norm: Affine) -> Affine:
        return self.norm(norm)

    def last_norm(self, norm: Affine) -> Affine:
        """The norm before the decoder. The decoder holds copies, so the division for it happens here."""
        raise NotImplementedError

    def reading(self, linear: Affine, outputs: Tensor) -> Affine:
        """A linear map from normalised hidden states to attention heads or feed-forward units."""
        raise NotImplementedError

    def writing(self, linear: Affine, inputs: Tensor) -> Affine:
        """A linear map from attention heads or feed-forward units to the residual stream."""
        raise NotImplementedError

    def head(self, head: Affine, norm: Affine) -> tuple[Affine, Affine]:
        """BERT's LM head: dense, GELU, LayerNorm."""
        raise NotImplementedError


def _by_rows(old: Place, new: Place, widened: Callable[[Affine], Affine]) -> Iterator[tuple[Place, Affine]]:
    size = max(1, _BLOCK // old.shape[1])
    for block, place in zip(old.blocks(size), new.blocks(size), strict=True):
        yield place, widened(block.read())


class Fpi(Width):
    """Function-preserving initialisation (the paper's "Width Expansion"; Chen et al. 2022, bert2BERT).

    A unit that is there C times keeps its incoming weights in each copy and has 1/C of its outgoing weights in each:
    linear maps and activations keep their function. A LayerNorm keeps it only where all units have equally many
    copies, for a unit with more copies weighs more in its mean and variance. One map of hidden units serves the whole
    network.

    Args:
        noise: standard deviation of the noise on the outgoing weights of units with copies (the paper's delta, which
            is zero where C = 1).
        noise_scale: "relative" multiplies it by the standard deviation of each old matrix.
    """

    def __init__(
        self,
        old: int,
        new: int,
        heads: Heads,
        generator: torch.Generator,
        noise: float = 0.0,
        noise_scale: NoiseScale = "absolute",
    ):
        super().__init__(old, new, heads, generator)
        self.noise, self.noise_scale = noise, noise_scale
        self.noise_generator = torch.Generator().manual_seed(generator.initial_seed())  # so the maps are as without
        self.hidden = expansion(old, new, generator)

    def linear(self, linear: Affine, inputs: Tensor, outputs: Tensor) -> Affine:
        """W'[o, i] = W[outputs[o], inputs[i]] / C[i], plus noise where C[i] > 1; b'[o] = b[outputs[o]]."""
        copies = counts(inputs)
        weight = columns(linear.weight.index_select(0, outputs), inputs) / copies
        if self.noise:
            noise = torch.randn(weight.shape, generator=self.noise_generator, dtype=weight.dtype)
            scale = self.noise * (linear.weight.std() if self.noise_scale == "relative" else 1.0)
            weight += scale * noise * (copies > 1)
        return Affine(weight, linear.bias[outputs])

    def table(self, table: Affine, norm: Affine | None) -> Affine:
        return Affine(columns(table.weight, self.hidden), table.bias)

    def norm(self, norm: Affine) -> Affine:
        return Affine(norm.weight[self.hidden], norm.bias[self.hidden])

    def last_norm(self, norm: Affine) -> Affine:
        copies = counts(self.hidden)
        return Affine(norm.weight[self.hidden] / copies, norm.bias[self.hidden] / copies)

    def reading(self, linear: Affine, outputs: Tensor) -> Affine:
        return self.linear(linear, self.hidden, outputs)

    def writing(self, linear: Affine, inputs: Tensor) -> Affine:
        return self.linear(linear, inputs, self.hidden)

    def head(self, head: Affine, norm: Affine) -> tuple[Affine, Affine]:
        return self.linear(head, self.hidden, self.hidden), self.last_norm(norm)
