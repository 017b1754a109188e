"""Files from other people run no code. Oracle: a folder that their code makes. It appears if the
code may run, and must not appear if our readers read the files.
"""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmark.data.tokenizer import load_tokenizer
from benchmark.downstream.classifier import SavedModel
from benchmark.errors import UserError
from benchmark.files import CHECKSUMS
from benchmark.instruments.checkpoints import open_folder
from benchmark.models import load
from benchmark.models.transformer import load_network
from benchmark.settings.base import ConfigError
from benchmark.training import checkpoint
from tests.support.faulty_disk import Models


class Evil:
    """Makes a folder when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.marker),)


@pytest.fixture(scope="module")
def models() -> Models:
    return Models()


def as_pickle(path: Path, marker: Path) -> None:
    path.write_bytes(pickle.dumps(Evil(marker)))


def as_torch(path: Path, marker: Path) -> None:
    torch.save({"transformer.wte.weight": Evil(marker)}, path)


@pytest.mark.parametrize("plant", [as_pickle, as_torch])
def test_the_files_are_malicious(plant: Callable[[Path, Path], None], tmp_path: Path) -> None:
    """Oracle: the folder that they make if they are unpickled as code."""
    plant(tmp_path / "evil", tmp_path / "made")
    with suppress(RuntimeError, TypeError):
        # on purpose, and safe: the file is this test's own, and makes an empty folder beside itself
        torch.load(tmp_path / "evil", weights_only=False)
    assert (tmp_path / "made").exists()


@pytest.mark.parametrize("plant", [as_pickle, as_torch])
def test_a_checkpoint_runs_nothing(plant: Callable[[Path, Path], None], tmp_path: Path) -> None:
    """`checkpoint.load` is the only reader of `checkpoint.pt` and `method.pt`."""
    plant(tmp_path / "checkpoint.pt", tmp_path / "made")
    with pytest.raises(UserError, match=r"checkpoint\.pt\b") as told:
        checkpoint.load(tmp_path / "checkpoint.pt")
    assert "weights_only" not in str(told.value)  # torch advises to set it to False
    assert not (tmp_path / "made").exists()


READERS: list[Callable[[Any], object]] = [
    *(load, load_network, open_folder, load_tokenizer, SavedModel),
    lambda folder: SavedModel(folder).load_classifier(("a", "b"), "a"),
]


@pytest.mark.parametrize("plant", [as_pickle, as_torch])
@pytest.mark.parametrize("beside", [True, False], ids=["beside the weights", "in their place"])
def test_weights_that_are_pickled_are_not_opened(
    plant: Callable[[Path, Path], None], beside: bool, models: Models, tmp_path: Path
) -> None:
    """Each reader of models meets pickles under all names that torch's format has had."""
    models.first(tmp_path)
    folder = tmp_path / "model"
    (folder / CHECKSUMS).unlink()
    for name in (
        "pytorch_model.bin",
        "model.pt",
        "optimizer.pt",
        "training_args.bin",
        "model.pkl",
        "adapter_model.bin",
    ):
        plant(folder / name, tmp_path / "made")
    if not beside:
        (folder / "model.safetensors").unlink()
        for read in READERS[:3]:
            with pytest.raises(ConfigError, match=r"\*\.safetensors"):
                read(folder)
    for read in READERS:
        with suppress(UserError, OSError):
            read(folder)
    assert not (tmp_path / "made").exists()


def test_code_in_a_checkpoint_is_not_run(models: Models, tmp_path: Path) -> None:
    """A folder names code in `auto_map`, which transformers runs if `trust_remote_code` is set."""
    models.first(tmp_path)
    folder = tmp_path / "model"
    (folder / CHECKSUMS).unlink()
    (folder / "evil.py").write_text(
        f"import os\nos.mkdir({str(tmp_path / 'made')!r})\nclass Evil: pass\n"
    )
    names = (
        "AutoConfig",
        "AutoModel",
        "AutoModelForCausalLM",
        "AutoModelForSequenceClassification",
    )
    for name, auto in (
        ("config", dict.fromkeys(names, "evil.Evil")),
        ("tokenizer_config", {"AutoTokenizer": ["evil.Evil"] * 2}),
    ):
        path = folder / f"{name}.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "auto_map": auto}))
    for read in READERS:
        with suppress(UserError, OSError, ValueError):
            read(folder)
    assert not (tmp_path / "made").exists()
