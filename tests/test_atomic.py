"""Files and folders that are there whole or not at all. Oracle: that definition, with processes killed at any point."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from benchmark import files
from benchmark.files import LEFT, naming, sweep, whole_file, whole_folder, write_json

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


def test_who_writes_sweeps_what_the_dead_left_of_the_same_and_no_more(tmp_path: Path, monkeypatch) -> None:
    """Oracle: the disk, by hand: what a killed process left of `a` goes when `a` is written again, or with all that a
    report sweeps, at once; what one that lives writes, here or on another machine, stays, whatever the time of day."""
    code = "import pathlib, sys, os; from benchmark import files; place = pathlib.Path(sys.argv[1])\n"
    code += "with files.whole_file(place / 'a'), files.whole_file(place / 'a.b'), files.whole_folder(place / 'c'): "
    writer = [sys.executable, "-c", code + "print(flush=True); sys.stdin.read()", str(tmp_path)]
    with subprocess.Popen(writer, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout and process.stdout.readline()
        begun = set(os.listdir(tmp_path))
        later = time.time() + 9999
        with monkeypatch.context() as ahead:
            ahead.setattr(time, "time", lambda: later)
            sweep(tmp_path, older=LEFT)
        write_json(tmp_path / "a", 1)
        assert len(begun) == 3 and {*os.listdir(tmp_path)} == {*begun, "a"}
        process.kill()
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(files, "_machine", lambda: "another0")
        sweep(tmp_path, older=LEFT)
        assert {*os.listdir(tmp_path)} == {*begun, "a"}
    write_json(tmp_path / "a", 2)
    assert {*os.listdir(tmp_path)} == {"a", *(name for name in begun if not name.startswith(".a.") or ".a.b." in name)}
    with whole_folder(tmp_path / "c"):
        pass
    assert len(os.listdir(tmp_path)) == 3
    sweep(tmp_path, older=LEFT)
    assert sorted(os.listdir(tmp_path)) == ["a", "c"]
