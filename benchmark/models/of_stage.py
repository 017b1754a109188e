"""The models that a finished stage has left, held against the hashes in its records: a folder may have been moved."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmark import records
from benchmark.checksums import DamagedFile
from benchmark.models import LanguageModel, load
from benchmark.models.weights import weights_hash


def load_evaluated(stage: Path) -> LanguageModel:
    """The model that the stage in this folder was evaluated with. Raises DamagedFile, as `load_trained` does."""
    return _held_against(stage, "model", _done(stage).get("weights"))


def load_trained(stage: Path) -> LanguageModel:
    """The model that the next stage goes on from: the evaluated one, unless the records name another.

    Records of earlier versions name none: there it is the one that lies in `trained`.
    """
    evaluated = load_evaluated(stage)  # a method may ask for it, too, and then the clock runs
    done = _done(stage)
    is_another = done["trained"] if "trained" in done else (stage / "trained").is_dir()
    return _held_against(stage, "trained", done.get("trained")) if is_another else evaluated


def _done(stage: Path) -> dict[str, Any]:
    return records.last(stage / records.STAGE_FILE, "done") or {}


def _held_against(stage: Path, name: str, weights: str | None) -> LanguageModel:
    """The model in a folder of a stage, whose weights have this hash; records of earlier versions have none."""
    path, cure = stage / name, f"restore it from a copy, or delete {stage} to train that stage again"
    if weights and not path.is_dir():
        raise DamagedFile(f"{path} is missing: {cure}")
    model = load(path)
    if weights and weights_hash(model) != weights:
        raise DamagedFile(f"{path} is not the model that {stage / records.STAGE_FILE} names by its hash: {cure}")
    return model
