"""Atomic checkpoints in mid-stage: what must survive a kill, and nothing that can be computed again.

The stage owns weights, optimizer, position and clock; the method owns what its `state` names; data and random numbers
are functions of the step and need no state.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

import torch

from benchmark.atomic import whole_file

if TYPE_CHECKING:
    from typing_extensions import NotRequired  # typing has it from Python 3.11 on


class Checkpoint(TypedDict):
    """A stage between two of its steps."""

    position: dict[str, Any]  # `stage.Position`
    charged: dict[str, float]  # by unit
    model: dict[str, torch.Tensor]
    optimizer: dict[str, Any] | None  # None in a phase that does not train
    state: dict[str, Any]  # what the method names in its `state`
    metrics: dict[str, float]
    cores: NotRequired[dict[str, float]]  # `contention.CoreTime`; checkpoints of earlier versions lack it


def save(path: Path, content: Checkpoint | Mapping[str, Any]) -> None:
    """Write tensors, numbers, strings, and lists and dicts of them. The file is there whole or not at all."""
    with whole_file(path) as file:
        torch.save(dict(content), file)


def load(path: Path, device: torch.device | str = "cpu") -> Any:
    """What `save` wrote, or None if there is nothing. Only plain data is read back, never code."""
    return torch.load(path, map_location=device, weights_only=True) if path.exists() else None
