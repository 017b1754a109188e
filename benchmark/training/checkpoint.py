"""Atomic checkpoints in mid-stage: what must survive a kill and cannot be computed again.

The stage owns weights, optimizer, position and clock. The method owns what its `state` names. Data
and random numbers are functions of the step and need no state.
"""

from __future__ import annotations

import pickle
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from benchmark.files import DamagedFile, replace_file
from benchmark.training.processes import World


@dataclass
class Position:
    """The position of a run in its stage.

    A resume needs it besides weights, optimizer, clock and the method's state.
    """

    phase: int = 0
    step: int = 0  # steps taken in the phase
    step_cost: float = 0.0  # of the last step, in the budget's unit
    before: dict[str, float] = field(default_factory=dict)  # charged before the phase, by unit
    phases: list[dict[str, Any]] = field(default_factory=list)  # of finished ones: name, costs


def load_for_all(path: Path, world: World) -> dict[str, Any] | None:
    """The checkpoint that `save` wrote, on this process's device, or None if there is none.

    Raises RuntimeError if processes find different checkpoints: on a network file system one may
    see an older file than the others, or none. Raises DamagedFile as `load` does.
    """
    cure = f"remove {path}, and its stage begins again from the model before it"
    saved = load(path, cure, world.device) if path.exists() else None
    place = (saved["position"]["phase"], saved["position"]["step"]) if saved else None
    first_place = world.broadcast(place)
    if place != first_place:
        raise RuntimeError(
            f"{path}: process {world.rank} finds (phase, step) {place}, the first process "
            f"{first_place}; run again once the file system shows all processes the same"
        )
    return saved


def save(path: Path, content: Mapping[str, Any]) -> None:
    """Write tensors, numbers, strings, and lists and dicts of them.

    The file appears whole or not at all.
    """
    with replace_file(path) as file:
        torch.save(dict(content), file)


def load(
    path: Path, cure: str = "restore it from a copy", device: torch.device | str = "cpu"
) -> dict[str, Any]:
    """The content that `save` wrote. Only plain data is read back, never code.

    torch's files are zip archives. torch writes a CRC-32 of each tensor, but never reads it, so
    this function checks it. Raises DamagedFile, whose message ends with `cure`, also if there is no
    file.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()
        content = None
        if damaged is None:
            content = torch.load(path, map_location=device, weights_only=True)
    except pickle.UnpicklingError:  # torch's own message advises to load it anyway
        raise DamagedFile(
            f"{path} cannot be read: it is damaged, or holds more than plain data: {cure}"
        ) from None
    except Exception as error:  # neither zipfile nor torch documents what may be raised
        raise DamagedFile(
            f"{path} cannot be read ({type(error).__name__}: {error!s:.200}): {cure}"
        ) from error
    if not isinstance(content, dict):
        part = f" in {damaged}" if damaged else ""
        raise DamagedFile(f"{path} is damaged{part}: {cure}")
    return content
