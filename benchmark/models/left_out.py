"""What of a published model would be left out without a word, or read from elsewhere: both are refused.

transformers takes the tensors that config.json describes, and passes over the others; it follows names out of a folder.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from benchmark.files import read_bytes, unique
from benchmark.settings.base import ConfigError

INDEX = ".safetensors.index.json"
# In published files, and nothing that a network of today computes with: buffers that older versions saved, and the
# pooler, which language models do without
NEEDLESS = re.compile(
    r"(^|\.)(rotary_emb|pooler)\.|(^|\.)(position_ids|token_type_ids)$|(^|\.)(attn|attention)\.(masked_)?bias$"
)


def check_places(folder: Path, config: Mapping[str, Any]) -> set[Path]:
    """The files of weights that the indexes in a model's folder name.

    Raises ConfigError for one that is elsewhere, whose content no key of ours would hold; ValueError for a damaged
    index. Links are followed, as in the Hub's cache: what they lead to is hashed.
    """
    named = {path: set(_weight_map(path).values()) for path in sorted(folder.glob(f"*{INDEX}"))}
    if (given := config.get("transformers_weights")) is not None:
        named[folder / "config.json"] = {given}
    for path, names in named.items():
        for name in names:
            if not (isinstance(name, str) and name.endswith((".safetensors", INDEX)) and name == Path(name).name):
                raise ConfigError(
                    f"{path} names {name!r:.80}, which is no file of weights in that folder: put the file there, and "
                    "name it without a path"
                )
    return {folder / name for names in named.values() for name in names}


def check_tensors(folder: Path, network: Any, unexpected: Collection[str]) -> None:
    """Raise ConfigError where tensors that no part of a network took would change what it computes.

    They belong to its body, below the base model's prefix or to a part of it, or to another module that it has. Heads
    that it does not have, as of classifiers, are none of its.
    """
    prefix = f"{network.base_model_prefix}."
    parts = {name for name, _ in network.base_model.named_children()}
    modules = {name for name, _ in network.named_modules() if name}

    def belongs(name: str) -> bool:
        inside = name.startswith(prefix) or name.partition(".")[0] in parts
        return (inside or name.rpartition(".")[0] in modules) and not NEEDLESS.search(name)

    if lost := sorted(filter(belongs, unexpected)):
        raise ConfigError(
            f"{folder}: config.json describes no place for {len(lost)} tensors of the weights, e.g. {lost[0]}, and "
            "without them it would be another model: take the config.json that was saved with these weights"
        )


def _weight_map(path: Path) -> dict[str, Any]:
    content = json.loads(read_bytes(path), object_pairs_hook=unique)
    found = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(found, dict):
        raise ValueError(f"{path.name} has no weight_map")
    return found
