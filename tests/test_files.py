"""Files and folders that are there whole or not at all. Oracle: that definition, with processes killed at any point."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from benchmark.files import naming, sweep, whole_file, whole_folder, write_json

ROOT = Path(__file__).parent.parent
WRITE_FILE = "with files.whole_file(path / 'a') as file: file.write(b'new'); file.flush(); die()"
WRITE_FOLDER = "with files.whole_folder(path / 'b') as folder: (folder / 'x').write_text('new'); die()"


def test_a_file_is_replaced_at_the_end_only(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "a"
    write_json(path, {"old": "é"})
    with whole_file(path) as file:
        file.write(b"new")
        file.flush()
        assert json.loads(path.read_bytes()) == {"old": "é"}
    assert path.read_bytes() == b"new" and os.listdir(path.parent) == ["a"]


def test_an_error_leaves_what_was_there(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("old")
    (tmp_path / "b").mkdir()
    with pytest.raises(OSError, match="full"), whole_file(tmp_path / "a") as file:
        file.write(b"new")
        raise OSError("disk full")
    with pytest.raises(OSError, match="full"), whole_folder(tmp_path / "b") as folder:
        (folder / "x").touch()
        raise OSError("disk full")
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["a", "b"]
    assert (tmp_path / "a").read_text() == "old"


def test_a_file_that_safetensors_cannot_begin_is_one_line(tmp_path: Path) -> None:
    """Oracle: the library itself, whose exception is none of the disk's: a command told of it with a traceback."""
    with pytest.raises(FileNotFoundError) as told, naming(tmp_path / "model"):
        save_file({"a": torch.zeros(1)}, tmp_path / "none" / "a.safetensors")
    assert told.value.filename == str(tmp_path / "model")


def test_two_writers_of_a_file_do_not_mix(tmp_path: Path) -> None:
    """The one that ends last is there."""
    with whole_file(tmp_path / "a") as first, whole_file(tmp_path / "a") as second:
        first.write(b"first")
        second.write(b"second, longer")
    assert (tmp_path / "a").read_bytes() == b"first" and os.listdir(tmp_path) == ["a"]


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
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == -signal.SIGKILL
    assert len(os.listdir(tmp_path)) == 3 and not (tmp_path / "b").exists()
    sweep(tmp_path)
    assert sorted(os.listdir(tmp_path)) == [".hidden.0123", "a"] and (tmp_path / "a").read_text() == "old"
