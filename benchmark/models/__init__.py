"""Language models, how they grow, and the models in the folders that a run wrote."""

from importlib import import_module
from pathlib import Path
from typing import Any

from benchmark import records
from benchmark.models import transformer
from benchmark.models.transformer import LanguageModel, build, hash_weights

__all__ = ["LanguageModel", "build", "hash_weights"]


def load(folder: Path | str) -> LanguageModel:
    """The model that `LanguageModel.save` wrote, with its columns, adapters or experts.

    It is in evaluation mode. Raises ConfigError when `folder` holds no such model, DamagedFile for
    one that is not as it was saved.
    """
    with transformer.name_damage_in_errors(Path(folder)):
        kind = transformer.find_kind(Path(folder))
        module: Any = import_module(f"benchmark.models.kinds.{kind}") if kind else transformer
        return module.load(folder)


def load_trained(stage: Path) -> LanguageModel:
    """The model that the next stage goes on from.

    It is the evaluated one, unless the records name another.
    """
    done = records.find_last(records.read_stage(stage / records.STAGE_FILE), records.DoneLine)
    return load(stage / ("trained" if done and done.trained else "model"))
