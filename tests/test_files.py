"""Files and folders that appear whole or not at all. Oracle: that definition, with a writer that is
killed in the middle.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from benchmark.files import name_in_errors, sweep

ROOT = Path(__file__).parent.parent
WRITE_FILE = "with files.replace_file(path / 'a') as file: file.write(b'new'); file.flush(); die()"
WRITE_FOLDER = (
    "with files.replace_folder(path / 'b') as folder: (folder / 'x').write_text('new'); die()"
)


def test_a_file_that_safetensors_cannot_begin_is_one_line(tmp_path: Path) -> None:
    """The rule of `name_in_errors`: an exception of safetensors becomes Python's OSError, with the
    path that we gave.
    """
    with pytest.raises(FileNotFoundError) as told, name_in_errors(tmp_path / "model"):
        save_file({"a": torch.zeros(1)}, tmp_path / "none" / "a.safetensors")
    assert told.value.filename == str(tmp_path / "model")


@pytest.mark.parametrize("write", [WRITE_FILE, WRITE_FOLDER], ids=["file", "folder"])
def test_what_a_killed_writer_leaves_is_swept_and_nothing_else(write: str, tmp_path: Path) -> None:
    (tmp_path / "a").write_text("old")
    (tmp_path / ".hidden.0123").touch()
    code = f"""
import os, pathlib, signal
from benchmark import files
path, die = pathlib.Path({str(tmp_path)!r}), lambda: os.kill(os.getpid(), signal.SIGKILL)
{write}
"""
    assert (
        subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode
        == -signal.SIGKILL
    )
    assert len(os.listdir(tmp_path)) == 3 and not (tmp_path / "b").exists()
    sweep(tmp_path)
    assert (
        sorted(os.listdir(tmp_path)) == [".hidden.0123", "a"]
        and (tmp_path / "a").read_text() == "old"
    )
