"""Growth in width: from which old unit and layer each new one comes.

This file has what all modes share, and two of them, the paper's (FPI) and AKI.

Shapes: S old and T new hidden size. `outputs` and `inputs` map new units to old ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal

import torch
from torch import Tensor

from benchmark.models.architectures import (
    Affine,
    Attention,
    FeedForward,
    Layer,
    Network,
    Place,
    find_initial_std,
)

Copy = Literal["new", "first", "last", "stack"]


def draw_expansion(old: int, new: int, generator: torch.Generator) -> Tensor:
    """Index map (new,) of a width expansion: identity on the old units, then random ones.

    No unit is drawn again before all have been drawn. So the numbers of copies differ by at most
    one. This shifts the mean and variance of a LayerNorm less than the independent draws of the
    paper's equation for m(i).
    """
    rounds = -(-(new - old) // old)
    permutations = [torch.randperm(old, generator=generator) for _ in range(rounds)]
    return torch.cat([torch.arange(old), *permutations])[:new]


def take_columns(matrix: Tensor, index: Tensor) -> Tensor:
    """`matrix[:, index]` of a matrix on the CPU.

    numpy takes it in a quarter of the time that torch needs.
    """
    columns = matrix.numpy().take(index.numpy(), axis=1, mode="clip")
    return torch.from_numpy(columns)


def count_copies(index: Tensor) -> Tensor:
    """The paper's C (new,): how many new units have the same source as each new unit."""
    return torch.bincount(index)[index]


def map_units(index: Tensor, size: int) -> Tensor:
    """The map of single units for a map of blocks (heads) of `size` units each."""
    units = index.unsqueeze(1) * size + torch.arange(size)
    return units.flatten()


def plan_layers(
    old: int, new: int, copy: Copy, copied: Sequence[int], generator: torch.Generator
) -> tuple[list[int], list[bool], list[int]]:
    """Insert new - old copies, each directly after its source.

    Returns `layer_sources`, `layer_is_copy` and `copied` of a GrowthRecord. If `copy` is "new",
    sources are drawn without replacement from the layers that were never copied. Once every layer
    has been copied, the history starts over. "first" and "last" always copy the first or the last
    layer (the paper's fig:same_layer). "stack" puts the whole stack on top of itself instead (Du et
    al. 2024, G_stack), as often as needed. If `new` is no multiple of `old`, the uppermost copy
    ends early.
    """
    if copy == "stack":
        stack_sources = [layer % old for layer in range(new)]
        return stack_sources, [layer >= old for layer in range(new)], []
    history = set(copied)  # old layers that were copied, before or now
    # for each old layer a mark per copy: whether the copy counts as copied. It does, like its
    # source, until the history starts over
    copies: list[list[bool]] = [[] for _ in range(old)]
    for _ in range(new - old):
        candidates = [layer for layer in range(old) if layer not in history]
        if not candidates:
            history = set()
            candidates = list(range(old))
            copies = [[False] * len(marks) for marks in copies]
        if copy == "new":
            number = int(torch.randint(len(candidates), (), generator=generator))
            source = candidates[number]
        else:
            source = 0 if copy == "first" else old - 1
        history.add(source)
        copies[source].append(True)

    sources: list[int] = []
    is_copy: list[bool] = []
    copied_layers: list[int] = []
    for source, marks in enumerate(copies):
        own_mark = source in history
        for number, counts_as_copied in enumerate([own_mark, *marks]):
            if counts_as_copied:
                copied_layers.append(len(sources))  # the new layer's index
            sources.append(source)
            is_copy.append(number > 0)
    return sources, is_copy, copied_layers


@dataclass(frozen=True)
class Heads:
    """The attention heads of a network, which have `size` units each.

    `key_heads` is the number of key heads, each shared by `ratio` query heads. `normed_together`
    says whether a norm of queries or keys, if there is one, spans all heads. If not, it normalises
    each head by itself.
    """

    size: int
    key_heads: int
    ratio: int = 1
    normed_together: bool = False


@dataclass(eq=False)
class Width:
    """Widens the weights of a network, one by one.

    Subclasses decide how a map that reads or writes the residual stream is widened.

    Attributes:
        old, new: S and T.
        heads: the heads of the old network. They are copied whole: query, key, value and output of
            a layer have the same index map, and a key head is copied with all its query heads.
        variance: the factor by which widening multiplies the variance that norms see.
        head_sources: for each layer widened so far, the old head of each new head.
    """

    old: int
    new: int
    heads: Heads
    generator: torch.Generator
    variance: float = field(default=1.0, init=False)
    head_sources: list[list[int]] = field(default_factory=list, init=False)

    def widen_layers(
        self, layers: Sequence[Layer[Place]], sources: Sequence[int]
    ) -> Iterator[Layer[Affine]]:
        """The wide layers, each made on demand, so that not all are in memory at once."""
        for source in sources:
            wide, heads = self.widen_layer(layers[source])
            self.head_sources.append(heads)
            yield wide

    def widen_layer(self, layer: Layer[Place]) -> tuple[Layer[Affine], list[int]]:
        """The wide layer, and the old head of each of its heads."""
        attention = layer.attention
        ffn = layer.ffn
        inner = ffn.up.shape[0]
        old_key_heads = self.heads.key_heads
        key_heads = draw_expansion(
            old_key_heads, old_key_heads * self.new // self.old, self.generator
        )
        heads = map_units(key_heads, self.heads.ratio)
        query_units = map_units(heads, self.heads.size)
        key_units = map_units(key_heads, self.heads.size)
        ffn_units = draw_expansion(inner, inner * self.new // self.old, self.generator)

        wide = Layer(
            attention=Attention(
                norm=self._widen_inner_norm(attention.norm),
                query=self.widen_reading(attention.query.read(), query_units),
                key=self.widen_reading(attention.key.read(), key_units),
                value=self.widen_reading(attention.value.read(), key_units),
                output=self.widen_writing(attention.output.read(), query_units),
                query_norm=self._widen_head_norm(attention.query_norm, query_units),
                key_norm=self._widen_head_norm(attention.key_norm, key_units),
                output_norm=self._widen_inner_norm(attention.output_norm),
            ),
            ffn=FeedForward(
                norm=self._widen_inner_norm(ffn.norm),
                up=self.widen_reading(ffn.up.read(), ffn_units),
                down=self.widen_writing(ffn.down.read(), ffn_units),
                gate=self.widen_reading(ffn.gate.read(), ffn_units) if ffn.gate else None,
                output_norm=self._widen_inner_norm(ffn.output_norm),
            ),
        )
        return wide, heads.tolist()

    def _widen_inner_norm(self, norm: Place | None) -> Affine | None:
        if norm:
            return self.widen_norm(norm.read())
        return None

    def _widen_head_norm(self, norm: Place | None, units: Tensor) -> Affine | None:
        """The wide norm of queries or keys. `units` are the sources of their wide units."""
        if norm is None:
            return None
        old = norm.read()
        if not self.heads.normed_together:
            return old
        return Affine(old.weight[units], old.bias[units])

    def widen_ends(
        self, old: Network[Place], new: Network[Place]
    ) -> Iterator[tuple[Place, Affine]]:
        """Tensors before and after the layers, and where in `new` they belong."""
        if old.head is None or old.head_norm is None:
            if old.final_norm and new.final_norm:
                yield new.final_norm, self.widen_last_norm(old.final_norm.read())
        elif new.head and new.head_norm:
            if old.final_norm and new.final_norm:
                yield new.final_norm, self.widen_norm(old.final_norm.read())
            head, head_norm = self.widen_head(old.head.read(), old.head_norm.read())
            yield new.head, head
            yield new.head_norm, head_norm
        norm = old.embedding_norm.read() if old.embedding_norm else None
        for table, wide in zip(old.tables, new.tables, strict=True):
            yield wide, self.widen_table(table.read(), norm)
        if norm and new.embedding_norm:
            yield new.embedding_norm, self.widen_embedding_norm(norm)
        yield new.decoder, self.widen_decoder(old.decoder.read(), norm)

    def widen_table(self, table: Affine, norm: Affine | None) -> Affine:
        """The wide rows of a table of embeddings. `norm` is the LayerNorm after it, if any."""
        raise NotImplementedError

    def widen_decoder(self, decoder: Affine, norm: Affine | None) -> Affine:
        """The wide rows of the decoder: made like the embeddings, because they may be tied."""
        return self.widen_table(decoder, norm)

    def widen_norm(self, norm: Affine) -> Affine:
        """The wide norm, whose output is read by linear maps."""
        raise NotImplementedError

    def widen_embedding_norm(self, norm: Affine) -> Affine:
        return self.widen_norm(norm)

    def widen_last_norm(self, norm: Affine) -> Affine:
        """The wide norm before the decoder.

        The decoder holds copies with undivided weights, so the norm divides instead.
        """
        raise NotImplementedError

    def widen_reading(self, linear: Affine, outputs: Tensor) -> Affine:
        """A linear map from normalised hidden states to attention heads or feed-forward units."""
        raise NotImplementedError

    def widen_writing(self, linear: Affine, inputs: Tensor) -> Affine:
        """A linear map from attention heads or feed-forward units to the residual stream."""
        raise NotImplementedError

    def widen_head(self, head: Affine, norm: Affine) -> tuple[Affine, Affine]:
        """The wide dense map and LayerNorm of BERT's LM head, which has a GELU between them."""
        raise NotImplementedError


@dataclass(eq=False)
class Fpi(Width):
    """Function-preserving initialisation: the paper's "Width Expansion".

    It comes from bert2BERT (Chen et al. 2022). If a unit has C copies, each copy has all of its
    incoming weights, and 1/C of its outgoing weights. So linear maps and activations keep their
    function. A LayerNorm does so only if all units have equally many copies, because a unit with
    more copies weighs more in its mean and variance. All layers share one map of hidden units.

    Attributes:
        noise: standard deviation of the noise on the outgoing weights of units with copies (the
            paper's delta, which is zero if C = 1), as a share of the old matrix's standard
            deviation in a new network.
        config: the configuration of the old network, from which that deviation is computed.
    """

    noise: float = 0.0
    config: Any = None

    def __post_init__(self) -> None:
        seed = self.generator.initial_seed()
        self.noise_generator = torch.Generator().manual_seed(seed)  # noise does not change maps
        self.hidden = draw_expansion(self.old, self.new, self.generator)

    def widen_linear(
        self, linear: Affine, inputs: Tensor, outputs: Tensor, writes: bool = False
    ) -> Affine:
        """W'[o, i] = W[outputs[o], inputs[i]] / C[i], plus noise where C[i] > 1.

        b'[o] = b[outputs[o]].
        """
        copies = count_copies(inputs)
        weight = take_columns(linear.weight.index_select(0, outputs), inputs) / copies
        if self.noise:
            noise = torch.randn(weight.shape, generator=self.noise_generator, dtype=weight.dtype)
            initial_std = find_initial_std(self.config, linear.weight.shape[1], writes)
            std = self.noise * initial_std
            weight += std * noise * (copies > 1)
        return Affine(weight, linear.bias[outputs])

    def widen_table(self, table: Affine, norm: Affine | None) -> Affine:
        return Affine(take_columns(table.weight, self.hidden), table.bias)

    def widen_norm(self, norm: Affine) -> Affine:
        return Affine(norm.weight[self.hidden], norm.bias[self.hidden])

    def widen_last_norm(self, norm: Affine) -> Affine:
        copies = count_copies(self.hidden)
        weight = norm.weight[self.hidden] / copies
        bias = norm.bias[self.hidden] / copies
        return Affine(weight, bias)

    def widen_reading(self, linear: Affine, outputs: Tensor) -> Affine:
        return self.widen_linear(linear, self.hidden, outputs)

    def widen_writing(self, linear: Affine, inputs: Tensor) -> Affine:
        return self.widen_linear(linear, inputs, self.hidden, writes=True)

    def widen_head(self, head: Affine, norm: Affine) -> tuple[Affine, Affine]:
        return self.widen_linear(head, self.hidden, self.hidden), self.widen_last_norm(norm)


class Aki(Fpi):
    """FPI, but a layer's new units have the incoming weights of the layer above.

    New units are heads, feed-forward and hidden units. This breaks the symmetry between a unit and
    its copy, but it does not keep the function. The function stays close only because neighbouring
    layers do similar things. Both layers are widened with the same maps. The top layer has FPI.
    """

    def widen_layers(
        self, layers: Sequence[Layer[Place]], sources: Sequence[int]
    ) -> Iterator[Layer[Affine]]:
        self._above = {id(layer): above for layer, above in pairwise(layers)}
        return super().widen_layers(layers, sources)

    def widen_layer(self, layer: Layer[Place]) -> tuple[Layer[Affine], list[int]]:
        generator_state = self.generator.get_state()
        wide, heads = super().widen_layer(layer)
        above = self._above.get(id(layer))
        if above is not None:
            self.generator.set_state(generator_state)
            upper, _ = super().widen_layer(above)
            for part in ("attention", "ffn"):
                wide_part = getattr(wide, part)
                upper_part = getattr(upper, part)
                for name, place in vars(getattr(layer, part)).items():
                    if place is None or "norm" in name:
                        continue
                    linear = getattr(wide_part, name)
                    upper_linear = getattr(upper_part, name)
                    setattr(wide_part, name, _join(linear, upper_linear, place.shape[0]))
        return wide, heads


def _join(linear: Affine, upper: Affine, old: int) -> Affine:
    """A linear map with the first `old` outputs of `linear`, and the other outputs of `upper`."""
    weight = torch.cat([linear.weight[:old], upper.weight[old:]])
    bias = torch.cat([linear.bias[:old], upper.bias[old:]])
    return Affine(weight, bias)
