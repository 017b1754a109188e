"""Files and folders that appear whole or not at all, and checksums that reveal a change.

This holds however the process ends.
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

# in a folder: the size and SHA-256 of each of its files, which reveal damage by disks
CHECKSUMS = "checksums.json"
# in an unfinished folder: how far it is, for the writer that goes on after a kill or a failure
BEGUN = "begun.json"
UNFINISHED = f".*.{'[0-9a-f]' * 32}"  # a glob of unfinished files and folders
# names of files. People edit README.md, and no result depends on it
WITHOUT_CHECKSUM = {CHECKSUMS, BEGUN, "README.md"}


def hash_sources(folder: Path, *packages: str) -> str:
    """A hash of the Python files of these packages, with their names."""
    digest = hashlib.sha256()
    for package in packages:
        for path in sorted((folder / package).rglob("*.py")):
            name = path.relative_to(folder).as_posix()
            digest.update(name.encode() + b"\0" + path.read_bytes())
    return f"sources-{digest.hexdigest()[:12]}"


class DamagedFile(UserError):
    """A file is no longer what was written: the message has its name, the damage and the cure."""


@contextmanager
def name_in_errors(path: Path) -> Iterator[None]:
    """Add this path to disk errors that name no file, because a user must find the full disk.

    Libraries in Rust (safetensors, tokenizers) raise exceptions of their own. Their text has the
    error's number, and the name of a temporary file if they could not create it.
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

    After an error, what was written is kept for `take_over` if it contains BEGUN.
    """
    temporary = _choose_temporary_path(folder)
    temporary.mkdir(parents=True)
    try:
        with name_in_errors(folder):
            yield temporary
        (temporary / BEGUN).unlink(missing_ok=True)
        # The umask decides. Otherwise only the user could read the files of safetensors.
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
            # without errors: the new one is in place, and `sweep` removes the rest of the old one
            shutil.rmtree(old, ignore_errors=True)
        else:
            os.replace(temporary, folder)
        sync(folder.parent)
    finally:
        if not (temporary / BEGUN).exists():
            shutil.rmtree(temporary, ignore_errors=True)


def take_over(folder: Path, unfinished: Path) -> None:
    """Copy the newest folder that another writer left with BEGUN, then remove all leftovers.

    It is copied into `unfinished`, not moved, because a writer that was only silent may wake up.
    Nobody else writes `folder` meanwhile.
    """
    pattern = f".{folder.name}.{'[0-9a-f]' * 32}"
    leftovers = [path for path in folder.parent.glob(pattern) if path != unfinished]
    candidates = [path for path in leftovers if (path / BEGUN).exists()]
    if candidates:
        newest = max(candidates, key=lambda path: (path / BEGUN).stat().st_mtime)
        ignore = shutil.ignore_patterns(BEGUN, UNFINISHED)
        shutil.copytree(newest, unfinished, ignore=ignore, dirs_exist_ok=True)
        shutil.copy2(newest / BEGUN, unfinished)  # last, as it marks a whole copy
    for path in leftovers:
        (path / BEGUN).unlink(missing_ok=True)
        shutil.rmtree(path)


def _choose_temporary_path(path: Path) -> Path:
    """A new path beside `path`, for what will replace it or was replaced."""
    return path.with_name(f".{path.name}.{uuid.uuid4().hex}")


def sweep(folder: Path) -> None:
    """Remove what killed writers have left in a folder that nobody else writes to."""
    for path in folder.glob(UNFINISHED):
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def sync(path: Path) -> None:
    """Flush a file or folder to the disk.

    Otherwise a crash could leave an empty file under the final name, or lose the name.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        with name_in_errors(path):
            os.fsync(descriptor)
    except OSError as error:
        # some file systems cannot sync folders
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
    """Write the size and SHA-256 of each file in `folder`, at any depth.

    Files named in WITHOUT_CHECKSUM are left out.
    """
    files = sorted(
        path for path in folder.rglob("*") if path.is_file() and path.name not in WITHOUT_CHECKSUM
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
    """Compare the files in `folder` with what `write_checksums` wrote.

    For files in `sizes_alone` only sizes are compared. A folder without checksums passes, because
    other people's software writes none. Raises DamagedFile.
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
    """The SHA-256 of a file's content, which is read again only if the file has changed."""
    status = path.stat()
    return _hash_once(path, status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino)


@functools.lru_cache(maxsize=4096)
def _hash_once(path: Path, *status: int) -> str:
    total = hashlib.sha256()
    _add_content(total, path)
    return total.hexdigest()


def _add_content(total: Any, path: Path) -> None:
    with path.open("rb") as file:
        while part := file.read(2**22):
            total.update(part)


def make_own_folder(folder: Path) -> None:
    """Make a folder from which jobs load pickles.

    Raises UserError if other users can write to it.
    """
    folder.mkdir(mode=0o755, exist_ok=True)
    status = folder.stat()
    if status.st_uid != os.getuid() or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise UserError(
            f"{folder} may be written by others, and jobs load pickles from there: look into it, "
            f"then `chmod go-w {folder}` if all of it is yours, else give another --runs"
        )
