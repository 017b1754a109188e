"""Two users on one folder of runs: who may read models, and the error for those who may not."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from benchmark.files import replace_folder
from benchmark.models.transformer import name_damage_in_errors


@contextmanager
def with_umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


@pytest.mark.parametrize("umask", [0o002, 0o022, 0o077])
def test_models_are_for_those_whom_the_umask_lets(umask: int, tmp_path: Path) -> None:
    """Oracle: the mode that the umask gives to any new file. safetensors 0.8 lets only the user
    read its files.
    """
    with with_umask(umask):
        with replace_folder(tmp_path / "model") as folder:
            save_file({"a": torch.zeros(2)}, folder / "model.safetensors")
            (folder / "config.json").write_text("{}")
        modes = {
            path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "model").iterdir()
        }
    assert modes == dict.fromkeys(("model.safetensors", "config.json"), 0o666 & ~umask)


def test_a_model_of_another_user_is_not_called_damaged(tmp_path: Path) -> None:
    """Oracle: the system's own error, with the file. To copy the model or to train it again would
    be no cure.
    """
    with pytest.raises(PermissionError, match="model.safetensors"), name_damage_in_errors(tmp_path):
        raise PermissionError(
            errno.EACCES, "Permission denied", str(tmp_path / "model.safetensors")
        )
