"""Files and folders that are there whole or not at all, whatever ends the process or the machine."""

from __future__ import annotations

import contextlib
import errno
import functools
import json
import os
import re
import shutil
import stat
import time
import uuid
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from benchmark.process_ids import kernel, lives, started

# what is being written: its name, the machine, number and start of the process that writes, and something random
_WRITTEN = re.compile(r"\.(.+)\.([0-9a-f]{8})([0-9a-f]{6})([0-9a-f]{10})[0-9a-f]{8}")


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Let errors of the disk that name no file name this one: a full disk must be found.

    Libraries in Rust (safetensors, tokenizers) raise exceptions of their own, and say the error's number in words,
    and the name of a file of theirs where they could not begin one.
    """
    try:
        yield
    except OSError as error:
        if error.errno is None or error.filename is not None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error
    except Exception as error:
        said = re.search(r"\(os error (\d+)\)( at path \".*\")?$", str(error))
        if not said:
            raise
        raise OSError(int(said[1]), os.strerror(int(said[1])), str(path)) from error


@contextmanager
def whole_file(path: Path) -> Iterator[IO[bytes]]:
    """A file to write into, which replaces `path` once the block has ended without an error."""
    path.parent.mkdir(parents=True, exist_ok=True)
    _sweep_of(path)
    beside = _beside(path)
    try:
        with naming(path):
            with beside.open("xb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.replace(beside, path)
        sync(path.parent)
    finally:
        beside.unlink(missing_ok=True)


def write_json(path: Path, content: Any, indent: int | None = None) -> None:
    with whole_file(path) as file:
        file.write(json.dumps(content, indent=indent).encode())


@contextmanager
def whole_folder(folder: Path) -> Iterator[Path]:
    """A folder to write into, which replaces `folder` once the block has ended without an error."""
    _sweep_of(folder)
    beside = _beside(folder)
    beside.mkdir(parents=True)
    try:
        with naming(folder):
            yield beside
        mode = beside.stat().st_mode
        for path in (*beside.rglob("*"), beside):
            _share_as(mode, path)
            sync(path)
        if folder.exists():  # a folder cannot be replaced in one step: the old one is moved aside first
            old = _beside(folder)
            os.replace(folder, old)
            os.replace(beside, folder)
            remove(old)
        else:
            os.replace(beside, folder)
        sync(folder.parent)
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def _share_as(mode: int, path: Path) -> None:
    """Let those read and write a file whom the folder's mode, which is made by the umask, lets into the folder.

    safetensors gives a file to its user alone, whatever the umask.
    """
    status = path.lstat()
    if stat.S_ISREG(status.st_mode) and (lacking := mode & 0o666 & ~status.st_mode):
        with contextlib.suppress(PermissionError):  # a file system without modes
            path.chmod(stat.S_IMODE(status.st_mode) | lacking)


LEFT = 3600.0  # seconds after which nobody writes a file of a report any more


def sweep(folder: Path, older: float = 0.0) -> None:
    """Remove what writers that were killed have left in a folder.

    With `older` others may write there: then only what a process of this machine left that is dead, and what another
    machine's did so many seconds ago.
    """
    for path in folder.glob(".*." + 32 * "[0-9a-f]"):
        with contextlib.suppress(FileNotFoundError):  # another process has swept it, or ended its writing
            dead = _is_left(path.name) if older else True
            if dead or (dead is None and time.time() - path.stat().st_mtime >= older):
                _remove_any(path)


def _sweep_of(path: Path) -> None:
    """Remove what killed processes of this machine have left of this file or folder, and would for good."""
    with contextlib.suppress(OSError):  # it is in nobody's way
        for one in os.scandir(path.parent):
            if one.name.startswith(f".{path.name}.") and _is_left(one.name, path.name):
                _remove_any(path.with_name(one.name))


def _is_left(name: str, of: str | None = None) -> bool | None:
    """Whether that is what a dead process wrote, of the file `of` if one is given; None where this one cannot tell."""
    found = _WRITTEN.fullmatch(name)
    if not found or of not in (None, found[1]) or found[2] != _machine():
        return None
    return not lives(int(found[3], 16), int(found[4], 16) or None)


def _remove_any(path: Path) -> None:
    if path.is_dir():
        remove(path)
    else:
        path.unlink()


def remove(folder: Path) -> None:
    """Remove a folder with all in it. An error names it: the library names a file without its folder."""
    try:
        shutil.rmtree(folder)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(folder)) from error


def _beside(path: Path) -> Path:
    since = started(os.getpid()) or 0
    return path.with_name(f".{path.name}.{_machine()}{os.getpid():06x}{since:010x}{uuid.uuid4().hex[:8]}")


@functools.cache
def _machine() -> str:
    return f"{zlib.crc32(kernel().encode()):08x}"


def sync(path: Path) -> None:
    """A crash of the machine must not leave an empty file under the final name, nor lose the name."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        with naming(path):
            os.fsync(descriptor)
    except OSError as error:
        if not (path.is_dir() and error.errno in (errno.EINVAL, errno.ENOTSUP)):  # some file systems sync files only
            raise
    finally:
        os.close(descriptor)
