"""Checksums of what is written once and read for weeks: models, tokens, and what belongs to them.

A folder keeps the size and the CRC-32 of each of its files in `checksums.json`; so does a JSON file in itself. A CRC-32
finds every flipped bit and every burst of up to 32 bits, at more than twice the speed of a cryptographic hash. It
guards against disks, not against people.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import re
import zlib
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, TypedDict

from benchmark.atomic import write_json
from benchmark.errors import UserError
from benchmark.regular import WHOLE, bounded, read_bytes, read_text, regular

FILE = "checksums.json"
NOT_READ = {FILE, "README.md"}  # people edit the latter, and nothing is computed from it
PART = 2**22  # bytes read at once
SEAL = "crc32"  # the field of a JSON file that guards the others


class DamagedFile(UserError):
    """A file that is not what was written: its name, what is wrong, and the cure."""


class FileChecksum(TypedDict):
    """What a file must be."""

    bytes: int
    crc32: str  # eight hexadecimal digits


def write(folder: Path) -> None:
    """Write down what the files in `folder` are now, at any depth. It replaces what was written down before."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name not in NOT_READ)
    found = {
        path.relative_to(folder).as_posix(): FileChecksum(bytes=path.stat().st_size, crc32=_crc32(path))
        for path in files
    }
    write_json(folder / FILE, found, indent=1)


def check(folder: Path, cure: str, sizes_alone: Collection[str] = (), named: Collection[str] = ()) -> None:
    """Hold the files in `folder` against what `write` wrote down; of `sizes_alone` no more than the size.

    Files that must be among those that were written down are `named`.

    A process reads each file once, unless it changes meanwhile. A snapshot of the Hub is held against the names of its
    files (`check_snapshot`). Of another folder without checksums, of an earlier version or of other people's software,
    nothing is said. Raises DamagedFile.
    """
    only_files(folder)
    path = folder / FILE
    if not path.exists():
        check_snapshot(folder)
        return
    known = _read(path, cure)
    if not known.keys() >= set(named):
        raise DamagedFile(f"{path} is damaged: {cure}")
    for name, one in known.items():
        file, size = folder / name, one["bytes"]
        if not file.is_file():
            raise DamagedFile(f"{file} is missing: {cure}")
        now = file.stat()
        if now.st_size != size:
            raise DamagedFile(f"{file} has {now.st_size:,} bytes instead of {size:,}: {cure}")
        if name not in sizes_alone and _crc32_once(file, now.st_mtime_ns, now.st_ino) != one["crc32"]:
            raise DamagedFile(f"{file} is damaged (its checksum is another): {cure}")


def only_files(folder: Path) -> None:
    """Raise DamagedFile for what is neither a file nor a folder in a folder, not deeper, or in its place.

    Likewise for a file that is too large to be read whole, as its name says that it will be. Libraries open what a
    model's folder holds by names of their own, and a pipe waits for ever.
    """
    try:
        if regular(folder).is_dir():
            for inside in sorted(os.scandir(folder), key=lambda one: one.name):
                if not inside.is_file(follow_symlinks=False) and not inside.is_dir(follow_symlinks=False):
                    regular(Path(inside.path))
                if inside.name.endswith(WHOLE):
                    bounded(Path(inside.path))
    except OSError as error:
        raise DamagedFile(f"{error.filename}: {error.strerror}") from None


def _read(path: Path, cure: str) -> dict[str, FileChecksum]:
    """What `write` wrote down. Raises DamagedFile for what it does not: of no files, all would be right."""
    import msgspec  # here, for --help has no packages

    try:
        known = msgspec.json.decode(read_bytes(path), type=dict[str, FileChecksum])
    except (msgspec.DecodeError, ValueError, RecursionError):
        known = {}
    if not known or not all(one["bytes"] >= 0 and re.fullmatch("[0-9a-f]{8}", one["crc32"]) for one in known.values()):
        raise DamagedFile(f"{path} is damaged: {cure}")
    return known


def check_snapshot(folder: Path, without: str = "") -> None:
    """Hold the files of a Hub snapshot, without those that end so, against the digests that name what they link to.

    The Hub's cache calls a large file by its SHA-256, another by the SHA-1 that git has for it. Another folder has no
    such links, and nothing is said of it. Raises DamagedFile.
    """
    for path in sorted(folder.glob("*")):
        blob = path.resolve()
        if blob.parent.name != "blobs" or (without and path.name.endswith(without)) or not blob.is_file():
            continue
        now = blob.stat()
        if re.fullmatch("[0-9a-f]{40}|[0-9a-f]{64}", blob.name) and blob.name != _digest_once(
            blob, now.st_mtime_ns, now.st_ino
        ):
            cure = f"remove {blob.parents[1]}, and `run_all.py prepare` fetches it again"
            raise DamagedFile(f"{path} is damaged (its digest is not {blob.name}): {cure}")


def sha256(files: Sequence[Path]) -> str:
    """A hash of files and their names; a process reads them once, unless one changes meanwhile."""
    stats = [path.stat() for path in files]
    return _sha256_once(tuple(files), tuple((stat.st_size, stat.st_mtime_ns, stat.st_ino) for stat in stats))


def seal(content: dict[str, Any]) -> dict[str, Any]:
    """The content of a JSON file with a field more, which guards the others."""
    return {**content, SEAL: _seal_of(content)}


def unseal(path: Path, cure: str) -> dict[str, Any]:
    """What `seal` was given, from a JSON file; one of an earlier version has no seal. Raises DamagedFile."""
    try:
        found: dict[str, Any] = json.loads(read_text(path))
        seal = found.pop(SEAL, None)
    except (ValueError, AttributeError, TypeError, RecursionError):
        raise DamagedFile(f"{path} is damaged: {cure}") from None
    if seal is not None and seal != _seal_of(found):
        raise DamagedFile(f"{path} is damaged (its checksum is another): {cure}")
    return found


def _seal_of(content: dict[str, Any]) -> str:
    return f"{zlib.crc32(json.dumps(content, sort_keys=True).encode()):08x}"


def _crc32(path: Path) -> str:
    total = 0
    with path.open("rb") as file:
        while part := file.read(PART):
            total = zlib.crc32(part, total)
    return f"{total:08x}"


@functools.lru_cache(maxsize=4096)
def _digest_once(blob: Path, changed: int, inode: int) -> str:
    """The digest that the Hub's cache would name the content of a file by, of the kind of its present name."""
    total = hashlib.sha256() if len(blob.name) == 64 else hashlib.sha1(b"blob %d\0" % blob.stat().st_size)
    with blob.open("rb") as file:
        while part := file.read(PART):
            total.update(part)
    return total.hexdigest()


@functools.lru_cache(maxsize=16)
def _sha256_once(files: tuple[Path, ...], now: tuple[tuple[int, int, int], ...]) -> str:
    """The hash of files of these sizes, times of change and inodes."""
    total = hashlib.sha256()
    for path in files:
        with path.open("rb") as file:
            while part := file.read(PART):
                total.update(part)
        total.update(path.name.encode())
    return total.hexdigest()


@functools.lru_cache(maxsize=4096)
def _crc32_once(path: Path, changed: int, inode: int) -> str:
    """The checksum of a file that was last changed at `changed`, in nanoseconds."""
    return _crc32(path)
