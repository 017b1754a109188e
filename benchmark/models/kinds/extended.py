"""Models with modules beside the network: adapters, experts, a side network.

The modules are whatever a method's author writes. A subclass of `ExtendedModel` creates them, and
adds them to the computation, by hooks on the network's layers or by its own `hidden`. They are part
of checkpoints, and are saved and loaded with the model.
"""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

from safetensors import safe_open
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import Tensor
from transformers import PreTrainedModel

from benchmark.models import transformer
from benchmark.models.transformer import LanguageModel, take_precision_of
from benchmark.settings.base import ConfigError

FILE = transformer.KIND_FILES["extended"]  # in the folder of a saved model


class ExtendedModel(LanguageModel):
    """A language model that adds a subclass's modules to the network of another model.

    `load` restores a saved one by `SubClass(model, **made_with)`, and then loads its tensors. So
    `made_with` may hold only values that JSON can store.
    """

    def __init__(self, model: LanguageModel, **made_with: Any) -> None:
        super().__init__(model.network, model.vocabulary, model.prompts)
        self.made_with = made_with

    def list_own_tensors(self) -> dict[str, Tensor]:
        """Tensors outside the network, by name."""
        return {
            name: value.contiguous()
            for name, value in self.state_dict().items()
            if not name.startswith("network.")
        }

    def to_plain(self) -> PreTrainedModel:
        """A plain network that computes the same as the model, to export or to fine-tune.

        It may take over the model's tensors, so do not use the model afterwards.
        """
        raise ConfigError(
            f"no network of transformers computes what {type(self).__name__} does, so it can be "
            "neither exported nor fine-tuned: define its `to_plain` where one does"
        )

    def make_encoder(self, domain: str) -> LanguageModel:
        """The model to fine-tune on a task of `domain`. See `to_plain`."""
        return LanguageModel(self.to_plain(), self.vocabulary)

    def _write(self, folder: Path, tokenizer: Tokenizer) -> None:
        super()._write(folder, tokenizer)
        kind = type(self)
        about = {"class": f"{kind.__module__}:{kind.__qualname__}", "made_with": self.made_with}
        # one key: safetensors writes several in random order, so files of equal models would differ
        save_file(self.list_own_tensors(), folder / FILE, metadata={"model": json.dumps(about)})


def load(folder: Path | str) -> ExtendedModel:
    """The model that `ExtendedModel.save` wrote, in evaluation mode.

    Raises ConfigError if its class cannot be imported.
    """
    with safe_open(Path(folder) / FILE, "pt") as file:
        about = json.loads(file.metadata()["model"])
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    module, _, name = about["class"].partition(":")
    try:
        kind = getattr(importlib.import_module(module), name)
        assert issubclass(kind, ExtendedModel)
    except (ImportError, AttributeError, TypeError, AssertionError):
        raise ConfigError(
            f"{folder}: its model is a {name} of {module}, and there is none: put the method's "
            "file where it was"
        ) from None
    model: ExtendedModel = kind(transformer.load(folder), **about["made_with"])
    odd_names = tensors.keys() ^ model.list_own_tensors().keys()
    if odd_names:
        raise ValueError(
            f"{len(odd_names)} tensors are missing or none of {name}'s, e.g. {min(odd_names)}"
        )
    take_precision_of(model, tensors)
    model.load_state_dict(tensors, strict=False)
    return model.eval()
