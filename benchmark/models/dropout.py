"""Dropout whose masks cost little on a CPU, where torch draws them one number after the other.

A quarter of a training step's time went into `bernoulli_`: 16 ns an element, on one core. Here a mask compares 16 bits
of numpy's SFC64 for each element, at about 1 ns, seeded from torch's generator: `torch.manual_seed` decides the masks
as before, though they are others than torch's. On other devices, and in compiled code, whose generators are fast, it
is torch's own dropout.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

ATTENTION = "sdpa_fast_dropout"  # transformers' name of `attention`
LEVELS = 2**16  # of an element's random number, so the share that is dropped is right to within 1e-5


def use_fast_dropout(network: PreTrainedModel) -> None:
    """Let a network's dropout, that of its attention too, be this file's."""
    for module in list(network.modules()):
        for name, child in module.named_children():
            if type(child) is nn.Dropout:
                setattr(module, name, Dropout(child.p))
    if network.config._attn_implementation == "sdpa":
        network.set_attn_implementation(ATTENTION)


def drop(x: Tensor, p: float) -> Tensor:
    """`x`, each element 0 with probability `p` (0 <= p < 1, to the nearest 1 / LEVELS), else divided by 1 - p."""
    kept = max(1, round((1 - p) * LEVELS))
    if kept == LEVELS:
        return x
    if x.device.type != "cpu" or torch.compiler.is_compiling():
        return F.dropout(x, p)
    mask = torch.empty_like(x, requires_grad=False)
    torch.lt(_random_levels(x.numel()).view(x.shape), kept - LEVELS // 2, out=mask)
    return x * mask.mul_(LEVELS / kept)


def _random_levels(count: int) -> Tensor:
    """`count` random numbers (count,), int16."""
    seed = int(torch.randint(2**62, ()))
    words = np.random.SFC64(seed).random_raw(-(-count // 4))
    return torch.from_numpy(words.view(np.int16))[:count]


class Dropout(nn.Dropout):
    def forward(self, x: Tensor) -> Tensor:
        return drop(x, self.p) if self.training else x


def attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """Attention (B, T, H, D / H) of queries, keys and values (B, H, T, D / H), as transformers calls it.

    Wherever torch has a fused kernel it is torch's; on a CPU it has none with dropout.
    """
    if not dropout or query.device.type != "cpu" or torch.compiler.is_compiling():
        return sdpa_attention_forward(module, query, key, value, attention_mask, dropout, scaling, is_causal, **others)
    causal = attention_mask is None and (getattr(module, "is_causal", True) if is_causal is None else is_causal)
    groups = query.shape[1] // key.shape[1]
    if groups > 1:
        key, value = (heads.repeat_interleave(groups, dim=1) for heads in (key, value))
    scores = (query * (scaling or 1 / math.sqrt(query.shape[-1]))) @ key.mT  # (B, H, T, T)
    if causal:
        ahead = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        scores = scores.masked_fill_(ahead, -math.inf)
    elif attention_mask is not None:
        hidden = ~attention_mask if attention_mask.dtype == torch.bool else attention_mask < 0
        scores = scores.masked_fill_(hidden, -math.inf)
    shares = drop(scores.softmax(-1, dtype=scores.dtype), dropout)
    return (shares @ value).transpose(1, 2), None


AttentionInterface.register(ATTENTION, attention)
AttentionMaskInterface.register(ATTENTION, sdpa_mask)
