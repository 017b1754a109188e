"""What a model's weights are: a hash, by which a repetition proves that it came to the same, and what they compute."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from benchmark.settings.base import ConfigError

COLUMNS = 16  # of random rows, at most: in bf16 few processors are fast
OVERFLOWS = 1e19  # float32 does not hold its square, and losses of such logits are infinite


def weights_hash(model: nn.Module) -> str:
    """The sha256 of the names, types, shapes and values of all parameters and buffers that are saved, by name."""
    total = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        total.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        total.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return total.hexdigest()


def random_rows(network: PreTrainedModel, count: int, seed: int = 0) -> Tensor:
    """Short rows (count, columns) of ids that a network has."""
    generator = torch.Generator().manual_seed(seed)
    columns = min(COLUMNS, network.config.max_position_embeddings // 2)
    return torch.randint(network.config.vocab_size, (count, columns), generator=generator)


@torch.no_grad()
def logits_of(network: PreTrainedModel, rows: Iterable[Tensor], folder: Path) -> list[Tensor]:
    """The logits of each row (T,) -> (1, T, V), in main memory.

    Raises ConfigError, which names the model's folder, where they are no numbers or such as only damage makes: weights
    may be finite and overflow.
    """
    found = [network(row.unsqueeze(0).to(network.device)).logits.cpu() for row in rows]
    if not all((one.abs() < OVERFLOWS).all() for one in found):
        raise ConfigError(
            f"{folder}: what the model computes overflows: its weights or its config.json are damaged; restore the "
            "folder from a copy, or take another model"
        )
    return found
