"""One batch of rows, as the stream makes it and methods see it.

Shapes: B rows, N text tokens a row (`Data.text_length`), K predicted positions a row.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from benchmark.models.devices import sent


@dataclass(kw_only=True)
class Batch:
    tokens: Tensor  # (B, 1+N) int64, `<s>` first; corrupted for BERT
    domains: Tensor  # (B,) int64, index in the stream of each row's domain
    positions: Tensor  # (B, K) int64, columns of `tokens` whose hidden state predicts a target
    targets: Tensor  # (B, K) int64
    rows: int  # of the whole batch, over all micro-batches and processes
    memory_share: float  # of those rows
    memory_rows: int  # of this part, from the memory of earlier domains; they come last
    source: int = 0  # its number in `Phase.sources`, where a step has several batches
    weight: float = 1.0  # of its mean loss in the step's loss

    @property
    def memory(self) -> Tensor:
        """Which rows come from the memory, (B,) bool."""
        rows = len(self.tokens)
        return torch.arange(rows, device=self.tokens.device) >= rows - self.memory_rows

    def to(self, device: torch.device) -> Batch:
        tensors: dict[str, Any] = {k: sent(v, device) for k, v in vars(self).items() if isinstance(v, Tensor)}
        return replace(self, **tensors)
