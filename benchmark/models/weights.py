"""A hash of a model's weights, by which a repetition proves that it came to the same."""

from __future__ import annotations

import hashlib

import torch
from torch import nn


def weights_hash(model: nn.Module) -> str:
    """The sha256 of the names, types, shapes and values of all parameters and buffers that are saved, by name."""
    total = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        total.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        total.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return total.hexdigest()
