"""Language models, how they grow, and the models in the folders that a run wrote."""

from importlib import import_module
from pathlib import Path
from typing import Any

from benchmark.files import DamagedFile
from benchmark.ledger import records
from benchmark.models import transformer
from benchmark.models.transformer import LanguageModel, build, hash_weights

__all__ = ["LanguageModel", "build", "hash_weights"]


def load(folder: Path | str) -> LanguageModel:
    """The model that `LanguageModel.save` wrote, with its columns, adapters or experts.

    It is in evaluation mode. Raises ConfigError if `folder` has no such model, and DamagedFile if
    the model is not as it was saved, or has other weights than its stage has recorded.
    """
    folder = Path(folder)
    with transformer.name_damage_in_errors(folder):
        kind = transformer.find_kind(folder)
        module: Any = import_module(f"benchmark.models.kinds.{kind}") if kind else transformer
        model: LanguageModel = module.load(folder)
    _check_weights(model, folder)
    return model


def _check_weights(model: LanguageModel, folder: Path) -> None:
    """Raise DamagedFile if a stage's model has other weights than the stage has recorded.

    Models outside a stage's folder are not checked.
    """
    lines = records.read_stage(folder.parent / records.STAGE_FILE)
    done = records.find_last(lines, records.StageDone)
    recorded = ""
    if done:
        recorded = done.trained or "" if folder.name == "trained" else done.weights
    if not recorded:  # as in records that are older than these hashes
        return
    weights = hash_weights(model)
    if weights != recorded:
        raise DamagedFile(
            f"{folder}: its weights are {weights[:12]}, the records of its stage say "
            f"{recorded[:12]}: restore the folder from a copy, or remove {folder.parent}, and the "
            "stage is trained again"
        )


def load_trained(stage: Path) -> LanguageModel:
    """The model with which the next stage starts.

    It is the evaluated one, unless the records name another.
    """
    done = records.find_last(records.read_stage(stage / records.STAGE_FILE), records.StageDone)
    return load(stage / ("trained" if done and done.trained else "model"))
