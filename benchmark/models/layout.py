"""One view of the weights of every architecture, so that what works on them is written once.

Matrices are (out, in), as in nn.Linear, whatever the architecture stores: GPT-2's Conv1D is transposed, and a matrix
that several maps share counts as several. Shapes: D hidden size, F feed-forward size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

T = TypeVar("T")
U = TypeVar("U")


@dataclass(kw_only=True)
class Attention(Generic[T]):
    """The attention of a layer. What an architecture does not have is None."""

    norm: T | None = None
    query: T
    key: T
    value: T
    output: T
    query_norm: T | None = None  # of each head
    key_norm: T | None = None

    def map(self, function: Callable[[T], U]) -> Attention[U]:
        return Attention(**_mapped(self, function))


@dataclass(kw_only=True)
class FeedForward(Generic[T]):
    """The FFN of a layer. What an architecture does not have is None."""

    norm: T
    up: T  # (F, D)
    down: T  # (D, F)
    gate: T | None = None  # (F, D): a gated FFN multiplies what it and `up` put out, one of them activated

    def map(self, function: Callable[[T], U]) -> FeedForward[U]:
        return FeedForward(**_mapped(self, function))


@dataclass(kw_only=True)
class Layer(Generic[T]):
    """A transformer layer. A pre-LN layer normalises what enters attention and FFN, a post-LN layer their sums."""

    attention: Attention[T]
    ffn: FeedForward[T]

    def map(self, function: Callable[[T], U]) -> Layer[U]:
        return Layer(attention=self.attention.map(function), ffn=self.ffn.map(function))

    def parts(self) -> Iterator[T]:
        parts = (getattr(half, field.name) for half in (self.attention, self.ffn) for field in fields(half))
        return (part for part in parts if part is not None)


def _mapped(half: Attention[T] | FeedForward[T], function: Callable[[T], U]) -> dict[str, Any]:
    parts = {field.name: getattr(half, field.name) for field in fields(half)}
    return {name: part and function(part) for name, part in parts.items()}


@dataclass(kw_only=True)
class Network(Generic[T]):
    """A language model with an LM head, from input to output. What an architecture does not have is None."""

    tables: list[T]  # (rows, D): embeddings of tokens, positions and, in BERT, types
    embedding_norm: T | None = None
    layers: list[Layer[T]]
    final_norm: T | None = None  # pre-LN: of the residual
    head: T | None = None  # BERT: dense, GELU, then
    head_norm: T | None = None
    decoder: T  # (V, D)

    def map(self, function: Callable[[T], U]) -> Network[U]:
        def optional(part: T | None) -> U | None:
            return None if part is None else function(part)

        return Network(
            tables=[function(table) for table in self.tables],
            embedding_norm=optional(self.embedding_norm),
            layers=[layer.map(function) for layer in self.layers],
            final_norm=optional(self.final_norm),
            head=optional(self.head),
            head_norm=optional(self.head_norm),
            decoder=function(self.decoder),
        )

    def parts(self) -> Iterator[T]:
        ends = [*self.tables, self.embedding_norm, self.final_norm, self.head, self.head_norm, self.decoder]
        yield from (part for part in ends if part is not None)
        for layer in self.layers:
            yield from layer.parts()


@dataclass
class Affine:
    """Weight (out, in) and bias (out) of a linear map, (D) and (D) of a norm, (rows, D) and (rows) of a table.

    The bias is zero where there is none.
    """

    weight: Tensor
    bias: Tensor


Recipe = Callable[[], Affine]  # weights that are made when they are asked for, so that not all are there at once


@dataclass(frozen=True)
class Place:
    """Where an Affine stands in a network.

    `rows`: the indices of its rows in a matrix that several maps share; None where the matrix is its own.
    """

    module: nn.Module
    rows: Tensor | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """The weight's: (out, in), (D) or (rows, D)."""
        shape = tuple(self._tensors()[0].shape)
        return shape if self.rows is None else (len(self.rows), *shape[1:])

    def blocks(self, size: int) -> Iterator[Place]:
        """A place for each `size` rows of what is not shared, in order."""
        return (Place(self.module, rows) for rows in torch.arange(self.shape[0]).split(size))

    def read(self) -> Affine:
        """A copy in float64, so that sums over many copies cost no precision."""
        weight, bias = self._tensors()
        if bias is None:
            bias = weight.new_zeros(len(weight))
        if self.rows is not None:
            weight, bias = weight.index_select(0, self.rows.to(weight.device)), bias[self.rows]
        return Affine(*(part.to("cpu", torch.float64, copy=True) for part in (weight, bias)))

    @torch.no_grad()
    def write(self, affine: Affine) -> None:
        """Raises ValueError for a bias where there is none."""
        weight, bias = self._tensors()
        if bias is None and affine.bias.any():
            raise ValueError(f"a bias for a {type(self.module).__name__} that has none")
        for whole, values in ((weight, affine.weight), (bias, affine.bias)):
            if whole is not None:
                whole[slice(None) if self.rows is None else self.rows] = values.to(whole)

    def _tensors(self) -> tuple[Tensor, Tensor | None]:
        module: Any = self.module
        weight = module.weight.detach()
        bias = getattr(module, "bias", None)
        return weight.T if isinstance(module, Conv1D) else weight, None if bias is None else bias.detach()


def stacked(module: Any, parts: int) -> list[Place]:
    """The maps of a matrix that holds `parts` of them one below the other, of the same size each."""
    rows = module.weight.shape[1 if isinstance(module, Conv1D) else 0]
    return [Place(module, indices) for indices in torch.arange(rows).chunk(parts)]
