"""The published model that a stream begins with, and the settings of a run that follow from it.

The model keeps its tokenizer, special tokens and positions. Domains become further rows of its
vocabulary.
"""

from __future__ import annotations

import functools
import os
from itertools import pairwise
from pathlib import Path
from typing import Any

from huggingface_hub import snapshot_download
from huggingface_hub.errors import (
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
)
from transformers import AutoConfig

from benchmark.data.tokenizer import Vocabulary
from benchmark.files import CHECKSUMS, hash_files
from benchmark.models import architectures
from benchmark.models.growth import find_width_step
from benchmark.models.transformer import (
    LanguageModel,
    load_network,
    name_damage_in_errors,
    read_configuration,
)
from benchmark.settings.base import ConfigError
from benchmark.settings.names import list_architecture_names
from benchmark.settings.suite import Model, RunConfig, Size, Start

FILES = ("*.json", "*.safetensors", "*.txt", "*.model")  # of a model on the Hub


class StartModelGone(ConfigError):
    """There is no such folder, nor such a model on the Hub or in its cache."""


def resolve_start_model(config: RunConfig) -> RunConfig:
    """The run with the settings that follow from its start model.

    These are architecture, head size, ladder, and the model's folder. A run without a start model
    is returned as it is. Raises StartModelGone if the model cannot be found. Raises ConfigError if
    its architecture is unknown, or if it cannot be trained further, has too few positions, or does
    not fit the ladder.
    """
    model = config.model
    if not model.start:
        return config
    folder = _find_folder(model.start, model.revision)
    configuration = _read_start_configuration(folder)
    model_type = configuration.model_type
    positions = architectures.find(model_type).count_positions(configuration)
    if positions < config.data.sequence_length:
        raise ConfigError(
            f"model.start {model.start!r} has positions for {positions} columns, "
            f"data.sequence_length is {config.data.sequence_length}: make rows shorter"
        )
    architecture = next(
        name
        for name in list_architecture_names()
        if model_type in architectures.load(name).model_types
    )
    first = Size(
        layers=configuration.num_hidden_layers,
        hidden_size=configuration.hidden_size,
    )
    step = find_width_step(configuration)
    resolved = {
        "architecture": architecture,
        "head_size": configuration.hidden_size // configuration.num_attention_heads,
        "ladder": _make_ladder(first, step, model, len(config.domains)),
    }
    updates = {
        "model": model.model_copy(update=resolved),
        "start": Start(folder=str(folder), key=_hash_content(folder)),
    }
    return config.model_copy(update=updates)


def load_start(start: Start, vocabulary: Vocabulary) -> LanguageModel:
    """The untouched model, in fp32 and evaluation mode, before it meets a domain.

    Raises ConfigError if its files have changed since the run was planned.
    """
    folder = Path(start.folder)
    if _hash_content(folder) != start.key:
        raise ConfigError(
            f"model.start: the files in {folder} are not those that the run was planned with (hash "
            f"{start.key}): restore them from a copy; or call the command again, to begin with "
            "what they are now"
        )
    network = load_network(folder).float()
    without_domains = Vocabulary(vocabulary.text, (), vocabulary.special)
    return LanguageModel(network, without_domains).eval()


def _make_ladder(first: Size, step: int, model: Model, domains: int) -> tuple[Size, ...]:
    """A size for each domain.

    Raises ConfigError if a size is smaller than the one before, or a hidden size is no multiple of
    `step`, as growth needs it.
    """
    ladder = (first, *(model.ladder or [first] * (domains - 1)))
    for rung, size in pairwise(ladder):
        is_smaller = size.layers < rung.layers or size.hidden_size < rung.hidden_size
        if is_smaller or size.hidden_size % step:
            raise ConfigError(
                f"model.ladder: {size} cannot follow {rung} in this start model; no rung may be "
                f"smaller than the one before, and hidden sizes are multiples of {step}, what a "
                "head takes, or the heads that share a key's"
            )
    return ladder


def _find_folder(start: str, revision: str | None) -> Path:
    """The model's folder on this machine.

    A model that is not yet in the Hub's cache is downloaded. Raises StartModelGone if there is no
    such folder, or if the download fails.
    """
    folder = Path(os.path.expanduser(start))
    if folder.is_dir():
        return folder.absolute()
    if start.startswith((".", "/", "~")):
        raise StartModelGone(
            f"model.start {start!r}: no such folder (from {Path.cwd()}): correct the path"
        )
    fetch = functools.partial(
        snapshot_download, start, revision=revision, allow_patterns=list(FILES)
    )
    try:
        return Path(fetch(local_files_only=True))
    except (LocalEntryNotFoundError, HFValidationError):
        pass
    name = f"model.start {start!r}"
    if revision:
        name += f", revision {revision!r}"
    try:
        return Path(fetch())
    except (OSError, HfHubHTTPError, HFValidationError) as error:
        raise StartModelGone(
            f"{name} is no folder, and cannot be fetched from the Hub ({type(error).__name__}): "
            "correct the name, accept the licence on the model's page and call `hf auth login`, or "
            "run `run_all.py prepare` once where there is a network"
        ) from None


def _read_start_configuration(folder: Path) -> Any:
    """The model's configuration. Raises ConfigError for a model that cannot be trained here."""
    refused = {
        "auto_map": "needs code of its own, which is not run here",
        "quantization_config": "has quantised weights, which cannot be trained",
        "text_vocabulary": (
            "was trained by this benchmark: `run_all.py export` makes a plain model of it"
        ),
    }
    try:
        content = read_configuration(folder)
        for key, reason in refused.items():
            if key in content:
                raise ConfigError(f"the model in {folder} {reason}; take another")
        architecture = architectures.find(str(content.get("model_type")))
        with name_damage_in_errors(folder):
            configuration = AutoConfig.from_pretrained(
                folder, local_files_only=True, trust_remote_code=False
            )
        architecture.check(configuration)
    except ConfigError as error:
        raise ConfigError(f"model.start: {error}") from None
    return configuration


def _hash_content(folder: Path) -> str:
    """A hash of a model's files.

    For a snapshot of the Hub it is the commit, which decides the files.
    """
    if folder.parent.name == "snapshots":
        return folder.name
    files: set[Path] = set()
    for pattern in FILES:
        files.update(folder.glob(pattern))
    files.discard(folder / CHECKSUMS)
    return hash_files(sorted(files))[:12]
