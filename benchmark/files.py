"""Files and folders that are there whole or not at all, whatever ends the process, and are what was written."""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import json
import os
import re
import shutil
import stat
import time
import uuid
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from benchmark.errors import UserError

CHECKSUMS = "checksums.json"  # in a folder: the size and SHA-256 of each of its files, which guard against disks
NOT_READ = {CHECKSUMS, "README.md"}  # people edit the latter, and nothing is computed from it
SEAL = "sha256"  # the field of a JSON file that guards the others
LEFT = 86400.0  # seconds after which nobody goes on with what it began to write


class DamagedFile(UserError):
    """A file that is not what was written: its name, what is wrong, and the cure."""


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


def _beside(path: Path) -> Path:
    """Where to write what will be `path`. What killed writers have left there goes."""
    if path.parent.exists():
        sweep(path.parent, older=LEFT, name=path.name)
    return path.with_name(f".{path.name}.{uuid.uuid4().hex}")


def sweep(folder: Path, older: float = 0.0, name: str = "*") -> None:
    """Remove what writers that were killed have left in a folder: all, or what is so many seconds old."""
    for path in folder.glob(f".{name}.{'[0-9a-f]' * 32}"):
        with contextlib.suppress(FileNotFoundError):  # another process has swept it, or ended its writing
            if time.time() - path.stat().st_mtime >= older:
                remove(path)


def remove(path: Path) -> None:
    """Remove a file, or a folder with all in it. An error names it: the library names a file without its folder."""
    try:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error


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


def names_in(folder: Path) -> list[str]:
    """What is in a folder; nothing without one."""
    return os.listdir(folder) if folder.exists() else []


def sha256(files: Sequence[Path]) -> str:
    """A hash of files and their names; a process reads them once, unless one changes meanwhile."""
    total = hashlib.sha256()
    for path in files:
        _add(total, path)
        total.update(path.name.encode())
    return total.hexdigest()


def write_checksums(folder: Path) -> None:
    """Write down what the files in `folder` are now, at any depth. It replaces what was written down before."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name not in NOT_READ)
    sums = {path.relative_to(folder).as_posix(): {"bytes": path.stat().st_size, SEAL: _hash(path)} for path in files}
    write_json(folder / CHECKSUMS, sums, indent=1)


def check_checksums(folder: Path, cure: str, sizes_alone: Collection[str] = (), named: Collection[str] = ()) -> None:
    """Hold the files in `folder` against what `write_checksums` wrote down; of `sizes_alone` no more than the size.

    Files that must be among those that were written down are `named`. A process reads each file once, unless it changes
    meanwhile. Of a folder without checksums, of other people's software, nothing is said. Raises DamagedFile.
    """
    path = folder / CHECKSUMS
    if not path.exists():
        return
    try:
        known = {name: (int(one["bytes"]), str(one[SEAL])) for name, one in json.loads(path.read_bytes()).items()}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        known = {}
    if not known or not known.keys() >= set(named):  # of no files, all would be right
        raise DamagedFile(f"{path} is damaged: {cure}")
    for name, (size, digest) in known.items():
        file = folder / name
        if not file.is_file():
            raise DamagedFile(f"{file} is missing: {cure}")
        if file.stat().st_size != size:
            raise DamagedFile(f"{file} has {file.stat().st_size:,} bytes instead of {size:,}: {cure}")
        if name not in sizes_alone and _hash(file) != digest:
            raise DamagedFile(f"{file} is damaged (its checksum is another): {cure}")


def seal(content: dict[str, Any]) -> dict[str, Any]:
    """The content of a JSON file with a field more, which guards the others."""
    return {**content, SEAL: _seal_of(content)}


def unseal(path: Path, cure: str) -> dict[str, Any]:
    """What `seal` was given, from a JSON file. Raises DamagedFile."""
    try:
        content: dict[str, Any] = json.loads(path.read_bytes())
        kept = content.pop(SEAL)
    except (ValueError, AttributeError, TypeError, KeyError, RecursionError):
        raise DamagedFile(f"{path} is damaged: {cure}") from None
    if kept != _seal_of(content):
        raise DamagedFile(f"{path} is damaged (its checksum is another): {cure}")
    return content


def _seal_of(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _hash(path: Path) -> str:
    status = path.stat()
    return _hash_once(path, status.st_size, status.st_mtime_ns, status.st_ino)


@functools.lru_cache(maxsize=4096)
def _hash_once(path: Path, size: int, changed: int, inode: int) -> str:
    """The hash of a file of this size, time of change and inode."""
    total = hashlib.sha256()
    _add(total, path)
    return total.hexdigest()


def _add(total: Any, path: Path) -> None:
    with path.open("rb") as file:
        while part := file.read(2**22):
            total.update(part)
