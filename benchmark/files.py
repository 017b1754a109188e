"""Files and folders that appear whole or not at all, and whose checksums tell a change.

They do so whatever ends the process.
"""

from __future__ import annotations

import errno
import functools
import hashlib
import json
import os
import re
import shutil
import stat
import uuid
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from benchmark.errors import UserError

# in a folder: the size and SHA-256 of each of its files, which guard against disks
CHECKSUMS = "checksums.json"
# in a folder that is being written: how far it is, for who goes on after a kill or a failure
BEGUN = "begun.json"
UNFINISHED = f".*.{'[0-9a-f]' * 32}"  # the names of what is being written, as patterns see them
NOT_READ = {CHECKSUMS, BEGUN, "README.md"}  # people edit the last, and nothing is computed from it


def hash_sources(folder: Path, *packages: str) -> str:
    """A hash of the Python files of these packages, with their names."""
    digest = hashlib.sha256()
    for package in packages:
        for path in sorted((folder / package).rglob("*.py")):
            name = path.relative_to(folder).as_posix()
            digest.update(name.encode() + b"\0" + path.read_bytes())
    return f"sources-{digest.hexdigest()[:12]}"


class DamagedFile(UserError):
    """A file that is not what was written: its name, the damage, and the cure."""


@contextmanager
def name_in_errors(path: Path) -> Iterator[None]:
    """Let errors of the disk that name no file name this one: a full disk must be found.

    Libraries in Rust (safetensors, tokenizers) raise exceptions of their own, and say the error's
    number in words, and the name of a file of theirs where they could not begin one.
    """
    try:
        yield
    except OSError as error:
        if error.errno is None or error.filename is not None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error
    except Exception as error:
        match = re.search(r"\(os error (\d+)\)( at path \".*\")?$", str(error))
        if not match:
            raise
        number = int(match[1])
        raise OSError(number, os.strerror(number), str(path)) from error


@contextmanager
def replace_file(path: Path) -> Iterator[IO[bytes]]:
    """A file to write into, which replaces `path` once the block has ended without an error."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = _choose_temporary_path(path)
    try:
        with name_in_errors(path):
            with temporary.open("xb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        sync(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def write_json(path: Path, content: Any, indent: int | None = None) -> None:
    with replace_file(path) as file:
        file.write(json.dumps(content, indent=indent).encode())


@contextmanager
def replace_folder(folder: Path) -> Iterator[Path]:
    """A folder to write into, which replaces `folder` once the block has ended without an error.

    Where it ends with one, what was written stays for `take_over` if it holds BEGUN.
    """
    temporary = _choose_temporary_path(folder)
    temporary.mkdir(parents=True)
    try:
        with name_in_errors(folder):
            yield temporary
        (temporary / BEGUN).unlink(missing_ok=True)
        # The umask decides. By itself safetensors gives a file to its user alone.
        mode = temporary.stat().st_mode & 0o666
        for path in (*temporary.rglob("*"), temporary):
            if path.is_file():
                path.chmod(mode)
            sync(path)
        if folder.exists():
            # a folder cannot be replaced in one step: the old one is moved aside first
            old = _choose_temporary_path(folder)
            os.replace(folder, old)
            os.replace(temporary, folder)
            # the new one is in place, and `sweep` removes what stays of the old one
            shutil.rmtree(old, ignore_errors=True)
        else:
            os.replace(temporary, folder)
        sync(folder.parent)
    finally:
        if not (temporary / BEGUN).exists():
            shutil.rmtree(temporary, ignore_errors=True)


def take_over(folder: Path, unfinished: Path) -> None:
    """Copy what another writer of `folder` left with BEGUN, then remove what all others left.

    Nobody else writes the folder meanwhile. It is copied, not moved: a writer that was only silent
    may wake up.
    """
    pattern = f".{folder.name}.{'[0-9a-f]' * 32}"
    leftovers = [path for path in folder.parent.glob(pattern) if path != unfinished]
    candidates = [path for path in leftovers if (path / BEGUN).exists()]
    if candidates:
        newest = max(candidates, key=lambda path: (path / BEGUN).stat().st_mtime)
        ignore = shutil.ignore_patterns(BEGUN, UNFINISHED)
        shutil.copytree(newest, unfinished, ignore=ignore, dirs_exist_ok=True)
        shutil.copy2(newest / BEGUN, unfinished)  # last: with it the copy is whole
    for path in leftovers:
        (path / BEGUN).unlink(missing_ok=True)
        shutil.rmtree(path)


def _choose_temporary_path(path: Path) -> Path:
    """Where to write what will be `path`."""
    return path.with_name(f".{path.name}.{uuid.uuid4().hex}")


def sweep(folder: Path) -> None:
    """Remove what writers that were killed have left in a folder that nobody else writes in."""
    for path in folder.glob(UNFINISHED):
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def sync(path: Path) -> None:
    """Put a path on the disk.

    A crash must not leave an empty file under the final name, nor lose the name.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        with name_in_errors(path):
            os.fsync(descriptor)
    except OSError as error:
        # some file systems sync files only
        if not (path.is_dir() and error.errno in (errno.EINVAL, errno.ENOTSUP)):
            raise
    finally:
        os.close(descriptor)


def hash_files(files: Sequence[Path]) -> str:
    """A hash of files and their names."""
    total = hashlib.sha256()
    for path in files:
        _add_content(total, path)
        total.update(path.name.encode())
    return total.hexdigest()


def write_checksums(folder: Path) -> None:
    """Write down what the files in `folder` are now, at any depth."""
    files = sorted(
        path for path in folder.rglob("*") if path.is_file() and path.name not in NOT_READ
    )
    sums = {
        path.relative_to(folder).as_posix(): {
            "bytes": path.stat().st_size,
            "sha256": hash_file(path),
        }
        for path in files
    }
    write_json(folder / CHECKSUMS, sums, indent=1)


def check_checksums(folder: Path, cure: str, sizes_alone: Collection[str] = ()) -> None:
    """Compare the files in `folder` with what `write_checksums` wrote down.

    Those in `sizes_alone` are compared by size only. A folder without checksums passes: other
    people's software writes none. Raises DamagedFile.
    """
    path = folder / CHECKSUMS
    if not path.exists():
        return
    checksums: dict[str, dict[str, Any]] = read_json(path, cure)
    if not checksums:
        raise DamagedFile(f"{path} is damaged (it lacks files): {cure}")
    for name, expected in checksums.items():
        file = folder / name
        if not file.is_file():
            raise DamagedFile(f"{file} is missing: {cure}")
        size = file.stat().st_size
        if size != expected["bytes"]:
            raise DamagedFile(f"{file} has {size:,} bytes instead of {expected['bytes']:,}: {cure}")
        if name not in sizes_alone and hash_file(file) != expected["sha256"]:
            raise DamagedFile(f"{file} is damaged (its checksum is another): {cure}")


def read_json(path: Path, cure: str) -> dict[str, Any]:
    """The content that `write_json` wrote. Raises DamagedFile."""
    try:
        content: dict[str, Any] = json.loads(path.read_bytes())
    except ValueError as error:
        raise DamagedFile(f"{path} is damaged ({error}): {cure}") from None
    return content


def hash_file(path: Path) -> str:
    """A hash of a file's content, which a process reads once."""
    status = path.stat()
    return _hash_once(path, status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino)


@functools.lru_cache(maxsize=4096)
def _hash_once(path: Path, *looks: int) -> str:
    total = hashlib.sha256()
    _add_content(total, path)
    return total.hexdigest()


def _add_content(total: Any, path: Path) -> None:
    with path.open("rb") as file:
        while part := file.read(2**22):
            total.update(part)


def make_own_folder(folder: Path) -> None:
    """Make a folder from which jobs load pickles.

    Raises UserError where others can put something there.
    """
    folder.mkdir(mode=0o755, exist_ok=True)
    status = folder.stat()
    if status.st_uid != os.getuid() or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise UserError(
            f"{folder} may be written by others, and jobs load pickles from there: look into it, "
            f"then `chmod go-w {folder}` if all of it is yours, else give another --runs"
        )
