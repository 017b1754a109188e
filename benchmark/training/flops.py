"""The floating-point operations of matrix products, which budgets charge and `check` compares."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

_BACKENDS = ("flash_attention", "efficient_attention", "cudnn_attention", "flash_attention_for_cpu")


def count_flops(run: Callable[[], Any]) -> float:
    """What calling `run` costs. Nothing in it may be compiled: the counter sees operators, not kernels."""
    formulas = {
        getattr(torch.ops.aten, f"_scaled_dot_product_{backend}{suffix}"): formula
        for backend in _BACKENDS
        for suffix, formula in (("", _count_attention), ("_backward", _attention_backward))
    }
    counter = FlopCounterMode(display=False, custom_mapping=formulas)
    with counter:
        run()
    return float(counter.get_total_flops())


def _count_attention(query: torch.Size, key: torch.Size, value: torch.Size, *_: Any, **__: Any) -> int:
    """Scores and their product with the values; shapes (B, H, T, D / H)."""
    rows, heads, length, size = query
    return 2 * rows * heads * length * key[2] * (size + value[3])


def _attention_backward(grad: torch.Size, *shapes: Any, **_: Any) -> int:
    return 2 * _count_attention(*shapes[:3])
