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
    """Where in its stage a run is.

    With weights, optimizer and the method's state this is all that a resume needs.
    """

    phase: int = 0
    step: int = 0  # of the phase
    step_cost: float = 0.0  # of the last step, in the budget's unit
    before: dict[str, float] = field(default_factory=dict)  # charged when the phase began, by unit
    phases: list[dict[str, Any]] = field(default_factory=list)  # those that are finished


def load_for_all(path: Path, world: World) -> dict[str, Any] | None:
    """The checkpoint that `save` wrote, on each process's device, or None if there is none.

    It is the same in all processes: on a network file system one may see an older file than the
    others, or none. Raises DamagedFile.
    """
    cure = f"remove {path}, and its stage begins again from the model before it"
    saved = load(path, cure, world.device) if path.exists() else None
    place = (saved["position"]["phase"], saved["position"]["step"]) if saved else None
    first_place = world.agree(place)
    if place != first_place:
        raise RuntimeError(
            f"{path}: process {world.rank} finds (phase, step) {place}, the first process "
            f"{first_place}; run again once the file system shows all processes the same"
        )
    return saved


def save(path: Path, content: Mapping[str, Any]) -> None:
    """Write tensors, numbers, strings, and lists and dicts of them.

    The file is there whole or not at all.
    """
    with replace_file(path) as file:
        torch.save(dict(content), file)


def load(
    path: Path, cure: str = "restore it from a copy", device: torch.device | str = "cpu"
) -> dict[str, Any]:
    """The content that `save` wrote. Only plain data is read back, never code.

    torch's files are zip archives with a CRC-32 of each tensor, which torch writes and never reads.
    It is held against the tensors here. Raises DamagedFile, which ends with the cure, also where
    there is no such file.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()
        content = None
        if damaged is None:
            content = torch.load(path, map_location=device, weights_only=True)
    except pickle.UnpicklingError:  # torch's own words advise to load it all the same
        raise DamagedFile(
            f"{path} cannot be read: it is damaged, or holds more than plain data: {cure}"
        ) from None
    except Exception as error:  # neither library says what a damaged file may raise
        raise DamagedFile(
            f"{path} cannot be read ({type(error).__name__}: {error!s:.200}): {cure}"
        ) from error
    if not isinstance(content, dict):
        part = f" in {damaged}" if damaged else ""
        raise DamagedFile(f"{path} is damaged{part}: {cure}")
    return content
