"""Language models, how they grow, and the model in any folder that a run wrote."""

from pathlib import Path

from benchmark.models import experts, lora, progressive, transformer
from benchmark.models.transformer import LanguageModel, build

__all__ = ["LanguageModel", "build", "load"]


def load(folder: Path | str) -> LanguageModel:
    """The model that `LanguageModel.save` wrote, with its columns, adapters or experts, in evaluation mode.

    Raises ConfigError when `folder` holds no such model, or a damaged one.
    """
    with transformer.naming_damage(Path(folder)):
        for kind in (progressive, lora, experts):
            if (Path(folder) / kind.FILE).is_file():
                return kind.load(folder)
        return transformer.load(folder)
