"""Floating-point operations of a step: those of its matrix products, the same number on every device.

Counted by torch's own counter as they are executed, so that second backward passes, teachers and frozen columns are
in. Two things it needs to be told: the CPU's fused attention, which it does not know, and that the backward pass of a
fused attention is worth the four products of its formula, twice the forward pass. Left alone it also counts the scores
that some kernels compute again, and a budget would depend on the kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

_BACKENDS = ("flash_attention", "efficient_attention", "cudnn_attention", "flash_attention_for_cpu")


def count_flops(run: Callable[[], Any]) -> float:
    """What calling `run` costs. Nothing in it may be compiled: the counter sees operators, not kernels."""
    counter = FlopCounterMode(display=False, custom_mapping=_attention_formulas())
    with counter:
        run()
    return float(counter.get_total_flops())


def _attention(query: torch.Size, key: torch.Size, value: torch.Size, *_: Any, **__: Any) -> int:
    """Scores and their product with the values; shapes (B, H, T, D / H)."""
    rows, heads, length, size = query
    return 2 * rows * heads * length * key[2] * (size + value[3])


def _attention_backward(grad: torch.Size, *shapes: Any, **_: Any) -> int:
    return 2 * _attention(*shapes[:3])


def _attention_formulas() -> dict[Any, Callable[..., int]]:
    names = [f"_scaled_dot_product_{backend}" for backend in _BACKENDS]
    return {
        getattr(torch.ops.aten, name + suffix): formula
        for name in names
        for suffix, formula in (("", _attention), ("_backward", _attention_backward))
    }
