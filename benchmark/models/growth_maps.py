"""Which old unit and which old layer each new one comes from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

Copy = Literal["new", "first", "last", "stack"]


@dataclass(frozen=True)
class LayerPlan:
    """Where the layers of the grown model come from.

    Attributes:
        sources: old index of each new layer.
        is_copy: whether a new layer is the inserted copy of its source.
        copied: indices in the grown model that count as copied before, at its next growth.
    """

    sources: list[int]
    is_copy: list[bool]
    copied: list[int]


def expansion(old: int, new: int, generator: torch.Generator) -> Tensor:
    """Index map (new,) of a width expansion: identity on the old units, then random ones.

    A unit is drawn again only when all have been drawn: copy counts that differ by at most one shift the mean and
    variance of a LayerNorm less than the independent draws of the paper's equation for m(i).
    """
    rounds = -(-(new - old) // old)
    drawn = [torch.randperm(old, generator=generator) for _ in range(rounds)]
    return torch.cat([torch.arange(old), *drawn])[:new]


def columns(matrix: Tensor, index: Tensor) -> Tensor:
    """`matrix[:, index]` of a matrix on the CPU, which numpy takes in a quarter of the time that torch needs."""
    return torch.from_numpy(matrix.numpy().take(index.numpy(), axis=1, mode="clip"))


def counts(index: Tensor) -> Tensor:
    """C of the paper (new,): how many units share the source of each new unit."""
    return torch.bincount(index)[index]


def blocks(index: Tensor, size: int) -> Tensor:
    """The map of single units for a map of blocks (heads) of `size` units each."""
    return (index.unsqueeze(1) * size + torch.arange(size)).flatten()


def plan_layers(old: int, new: int, copy: Copy, copied: Sequence[int], generator: torch.Generator) -> LayerPlan:
    """Insert new - old copies, each directly after its source.

    copy "new" draws sources that were never copied before, without replacement; once every layer has been copied, the
    history starts over. "first" and "last" always copy the first or the last layer (the paper's fig:same_layer).
    "stack" puts the whole stack on top of itself instead (Du et al. 2024, G_stack), as often as needed; where `new` is
    no multiple of `old`, the uppermost copy ends early.
    """
    if copy == "stack":
        return LayerPlan([layer % old for layer in range(new)], [layer >= old for layer in range(new)], [])
    history = set(copied)
    copies: list[list[bool]] = [[] for _ in range(old)]  # of each old layer: does this copy count as copied?
    for _ in range(new - old):
        candidates = [layer for layer in range(old) if layer not in history]
        if not candidates:
            history, candidates = set(), list(range(old))
            copies = [[False] * len(made) for made in copies]
        if copy == "new":
            source = candidates[int(torch.randint(len(candidates), (), generator=generator))]
        else:
            source = 0 if copy == "first" else old - 1
        history.add(source)
        copies[source].append(True)

    plan = LayerPlan([], [], [])
    for source, made in enumerate(copies):
        for is_copy, counts_as_copied in [(False, source in history), *((True, each) for each in made)]:
            if counts_as_copied:
                plan.copied.append(len(plan.sources))
            plan.sources.append(source)
            plan.is_copy.append(is_copy)
    return plan
