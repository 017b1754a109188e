"""The models that a finished stage has left, held against the hashes in its records: a folder may have been moved."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmark import records
from benchmark.files import DamagedFile
from benchmark.models import LanguageModel, load
from benchmark.models.weights import weights_hash

RECORDED = {"model": "weights", "trained": "trained"}  # the field with its hash, by the name of its folder


def load_evaluated(stage: Path) -> LanguageModel:
    """The model that the stage in this folder was evaluated with. Raises DamagedFile, as `load_trained` does."""
    return load_left(stage / "model")


def load_trained(stage: Path) -> LanguageModel:
    """The model that the next stage goes on from: the evaluated one, unless the records name another.

    Records of earlier versions name none: there it is the one that lies in `trained`.
    """
    evaluated = load_evaluated(stage)  # a method may ask for it, too, and then the clock runs
    done = _done(stage)
    is_another = done["trained"] if "trained" in done else (stage / "trained").is_dir()
    return load_left(stage / "trained") if is_another else evaluated


def load_left(folder: Path) -> LanguageModel:
    """The model in a folder, held against the records of the stage that left it there, if one did.

    Records of earlier versions have no hash. Raises DamagedFile, and ConfigError as `load` does.
    """
    stage, name = folder.absolute().parent, folder.absolute().name
    weights = _done(stage).get(RECORDED[name]) if name in RECORDED else None
    cure = f"restore it from a copy, or delete {stage} to train that stage again"
    if weights and not folder.is_dir():
        raise DamagedFile(f"{folder} is missing: {cure}")
    model = load(folder)
    if weights and weights_hash(model) != weights:
        raise DamagedFile(f"{folder} is not the model that {stage / records.STAGE_FILE} names by its hash: {cure}")
    return model


def _done(stage: Path) -> dict[str, Any]:
    return records.last(stage / records.STAGE_FILE, "done") or {}
