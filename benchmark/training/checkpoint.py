"""Atomic checkpoints in mid-stage: what must survive a kill, and nothing that can be computed again.

The stage owns weights, optimizer, position and clock; the method owns what its `state` names; data and random numbers
are functions of the step and need no state.
"""

from __future__ import annotations

import pickle
import zipfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from benchmark.files import DamagedFile, regular, whole_file
from benchmark.training.clock import CoreTime
from benchmark.training.optimization import Moments

OWNER = "of stage"  # the entry of a file that says the key of its stage; no attribute or weight is called so


@dataclass(frozen=True)
class PhaseCost:
    """What a finished phase has spent, by unit."""

    name: str
    spent: Mapping[str, float]

    def flat(self) -> dict[str, Any]:
        """The form in which records and checkpoints hold it."""
        return {"name": self.name, **self.spent}


@dataclass
class Position:
    """Where in its stage a run is: with weights, optimizer and the method's state, all that a resume needs."""

    phase: int = 0
    step: int = 0  # of the phase
    step_cost: float = 0.0  # of the last step, in the budget's unit
    before: dict[str, float] = field(default_factory=dict)  # charged when the phase began, by unit
    phases: list[PhaseCost] = field(default_factory=list)  # those that are finished


@dataclass(frozen=True)
class Trunk:
    """Where a branch began: what the next stage goes on from."""

    model: dict[str, torch.Tensor]
    carried: Moments


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A stage between two of its steps."""

    position: Position
    charged: dict[str, float]  # by unit
    model: dict[str, torch.Tensor]
    optimizer: dict[str, Any] | None  # None in a phase that does not train
    state: dict[str, Any]  # what the method names in its `state`
    metrics: dict[str, float]
    cores: CoreTime
    carried: Moments = field(default_factory=dict)  # what the phase began with, if one before it has left it
    evaluated: dict[str, torch.Tensor] | None = None  # the weights of the method's own model to evaluate
    trunk: dict[str, Any] | None = None  # `Trunk`, in a branch

    def save(self, path: Path) -> None:
        position = vars(self.position) | {"phases": [phase.flat() for phase in self.position.phases]}
        save(path, vars(self) | {"position": position, "cores": asdict(self.cores)})

    @classmethod
    def load(cls, path: Path, device: torch.device) -> Checkpoint | None:
        """What `save` wrote, or None if there is nothing. Raises DamagedFile."""
        cure = f"remove {path}, and its stage begins again from the model before it"
        content = load(path, device, cure)
        if content is None:
            return None
        try:
            position = Position(**content["position"])
            position.phases = [PhaseCost(spent.pop("name"), spent) for spent in content["position"]["phases"]]
            cores = CoreTime(**content["cores"])
            return cls(**content | {"position": position, "cores": cores})
        except (KeyError, TypeError, AttributeError) as error:
            raise DamagedFile(f"{path} is no checkpoint ({type(error).__name__}: {error}): {cure}") from error


def save(path: Path, content: Mapping[str, Any]) -> None:
    """Write tensors, numbers, strings, and lists and dicts of them. The file is there whole or not at all.

    It says whose it is: the stage is known by the name of its folder.
    """
    with whole_file(path) as file:
        torch.save({**content, OWNER: path.absolute().parent.name}, file)


def load(path: Path, device: torch.device | str = "cpu", cure: str = "restore it from a copy") -> Any:
    """What `save` wrote, or None if there is nothing. Only plain data is read back, never code.

    torch's files are zip archives with a CRC-32 of each tensor, which torch writes and never reads; it is held against
    the tensors here. Files of earlier versions do not say whose they are. Raises DamagedFile, which ends with the cure.
    """
    if not regular(path).exists():
        return None
    try:
        with zipfile.ZipFile(path) as archive:
            if any(one.file_size > one.compress_size for one in archive.infolist()):
                raise zipfile.BadZipFile("it is compressed, as torch writes none, and may expand without end")
            damaged = archive.testzip()
        content = torch.load(path, map_location=device, weights_only=True) if damaged is None else None
    except pickle.UnpicklingError:  # torch's own words advise to load it all the same
        raise DamagedFile(f"{path} cannot be read: it is damaged, or holds more than plain data: {cure}") from None
    except Exception as error:  # neither library says what a damaged file may raise
        raise DamagedFile(f"{path} cannot be read ({type(error).__name__}: {error!s:.200}): {cure}") from error
    if damaged is not None:
        raise DamagedFile(f"{path} is damaged (in {damaged}): {cure}")
    if not isinstance(content, dict):
        raise DamagedFile(f"{path} holds a {type(content).__name__}, not what a stage writes: {cure}")
    if (owner := content.pop(OWNER, key := path.absolute().parent.name)) != key:
        raise DamagedFile(f"{path} is of stage {owner!r:.60}, not of {key}: a file was moved here; {cure}")
    return content
