"""Width growth: what every way of it has in common, and the paper's way (FPI).

Shapes: S old and T new hidden size; `outputs` and `inputs` map new units to old ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from benchmark.models.growth_maps import blocks, counts, expansion
from benchmark.models.layout import Affine, Attention, FeedForward, Layer, Network

NoiseScale = Literal["absolute", "relative"]


@dataclass(frozen=True)
class Heads:
    """The heads of attention have `size` units each; `groups` are for keys, each shared by `ratio` heads of queries."""

    size: int
    groups: int
    ratio: int = 1


class Width:
    """Widens the weights of a network. Subclasses say what happens where a map meets the residual stream.

    Args:
        old, new: S and T.
        heads: of the old network. They are copied whole, with one map for query, key, value and output of a layer,
            and each group with all of its query heads.

    Attributes:
        variance: what it multiplies the variance that norms see by.
    """

    variance = 1.0

    def __init__(self, old: int, new: int, heads: Heads, generator: torch.Generator):
        self.old = old
        self.new = new
        self.heads = heads
        self.generator = generator

    def network(self, network: Network[Affine], sources: list[int]) -> tuple[Network[Affine], list[list[int]]]:
        """The wide network with the layers `sources`, and for each of them the old head of each new head."""
        layers, heads = zip(*(self.layer(network.layers[source]) for source in sources), strict=True)
        embedding_norm, final_norm = network.embedding_norm, network.final_norm
        head, head_norm = network.head, network.head_norm
        if head is None or head_norm is None:
            final_norm = final_norm and self.last_norm(final_norm)
        else:
            final_norm = final_norm and self.norm(final_norm)
            head, head_norm = self.head(head, head_norm)
        wide = Network(
            tables=[self.table(table, embedding_norm) for table in network.tables],
            embedding_norm=embedding_norm and self.embedding_norm(embedding_norm),
            layers=list(layers),
            final_norm=final_norm,
            head=head,
            head_norm=head_norm,
            decoder=self.decoder(network.decoder, embedding_norm),
        )
        return wide, list(heads)

    def layer(self, layer: Layer[Affine]) -> tuple[Layer[Affine], list[int]]:
        attention, ffn = layer.attention, layer.ffn
        inner, size = ffn.up.weight.shape[0], self.heads.size
        groups = expansion(self.heads.groups, self.heads.groups * self.new // self.old, self.generator)
        heads = blocks(groups, self.heads.ratio)
        query, key = blocks(heads, size), blocks(groups, size)
        units = expansion(inner, inner * self.new // self.old, self.generator)
        wide = Layer(
            attention=Attention(
                norm=attention.norm and self.norm(attention.norm),
                query=self.reading(attention.query, query),
                key=self.reading(attention.key, key),
                value=self.reading(attention.value, key),
                output=self.writing(attention.output, query),
                query_norm=attention.query_norm,
                key_norm=attention.key_norm,
            ),
            ffn=FeedForward(
                norm=self.norm(ffn.norm),
                up=self.reading(ffn.up, units),
                down=self.writing(ffn.down, units),
                gate=ffn.gate and self.reading(ffn.gate, units),
            ),
        )
        return wide, heads.tolist()

    def table(self, table: Affine, norm: Affine | None) -> Affine:
        """Embeddings, of which `norm` is the LayerNorm, if any."""
        raise NotImplementedError

    def decoder(self, decoder: Affine, norm: Affine | None) -> Affine:
        """The decoder is widened as the embeddings are, to which it may be tied."""
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
        weight = linear.weight[outputs][:, inputs] / copies
        if self.noise:
            noise = torch.randn(weight.shape, generator=self.noise_generator, dtype=weight.dtype)
            scale = self.noise * (linear.weight.std() if self.noise_scale == "relative" else 1.0)
            weight += scale * noise * (copies > 1)
        return Affine(weight, linear.bias[outputs])

    def table(self, table: Affine, norm: Affine | None) -> Affine:
        return Affine(table.weight[:, self.hidden], table.bias)

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
