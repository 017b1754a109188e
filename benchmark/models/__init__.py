"""Language models, how they grow, and the models in the folders that a run wrote."""

from importlib import import_module
from pathlib import Path
from typing import Any

from benchmark import records
from benchmark.files import DamagedFile
from benchmark.models import transformer
from benchmark.models.transformer import LanguageModel, build, weights_hash

__all__ = ["LanguageModel", "build", "weights_hash"]


def load(folder: Path | str) -> LanguageModel:
    """The model that `LanguageModel.save` wrote, with its columns, adapters or experts, in evaluation mode.

    Raises ConfigError when `folder` holds no such model, or a damaged one.
    """
    with transformer.naming_damage(Path(folder)):
        kind = kind_of(Path(folder))
        return kind.load(folder) if kind else transformer.load(folder)


def kind_of(folder: Path) -> Any:
    """The module of the kind of model in a folder, imported only now; None where it is a network alone."""
    name = transformer.kind_name(folder)
    return name and import_module(f"benchmark.models.kinds.{name}")


def load_trained(stage: Path) -> LanguageModel:
    """The model that the next stage goes on from: the evaluated one, unless the records name another."""
    done = _read_done_line(stage)
    evaluated = load_verified(stage / "model")  # a method may ask for it, too, and then the clock runs
    return load_verified(stage / "trained") if done and done.trained else evaluated


def load_verified(folder: Path) -> LanguageModel:
    """The model in a folder, held against the records of the stage that left it there, if one did.

    Raises DamagedFile, and ConfigError as `load` does.
    """
    stage, name = folder.absolute().parent, folder.absolute().name
    done = _read_done_line(stage)
    weights = {"model": done.weights, "trained": done.trained}.get(name) if done else None
    cure = f"restore it from a copy, or delete {stage} to train that stage again"
    if weights and not folder.is_dir():
        raise DamagedFile(f"{folder} is missing: {cure}")
    model = load(folder)
    if weights and weights_hash(model) != weights:
        raise DamagedFile(f"{folder} is not the model that {stage / records.STAGE_FILE} names by its hash: {cure}")
    return model


def _read_done_line(stage: Path) -> records.DoneLine | None:
    return records.last(records.read_stage(stage / records.STAGE_FILE), records.DoneLine)
