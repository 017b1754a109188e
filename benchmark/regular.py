"""Files, opened only where they are files, for a pipe waits for ever; folders, listed only where they can be read.

Nothing else reads a file whole: here what is larger than it can mean to be is refused before memory is full of it.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path
from stat import S_ISDIR, S_ISREG
from typing import Any, NoReturn

NO_FILE = errno.EINVAL, errno.EISDIR, errno.ENXIO, errno.EAGAIN  # a device, a folder, a socket, a pipe
LARGEST = 2**28  # bytes of JSON, TOML or text that is read whole; the largest tokenizers have a tenth of it
LARGEST_RECORDS = 2**30  # bytes of a file of records: a line of an evaluation has a few thousand
WHOLE = (".json", ".txt", ".model", ".jinja")  # how files end that libraries read whole in a model's folder
_ENOUGH = 2**16  # bytes, which most files of records do not reach: one call reads them


class Refused(OSError):
    """What is no file, or too large for one. Unlike the system's errors it names its cure, and needs no second one."""


def expanded(path: str) -> Path:
    """A path in which `~` stands for a home. Raises Refused where no user has that name."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise Refused(errno.EINVAL, "no user of that name has a home here; correct the path", path) from None


def regular(path: Path) -> Path:
    """The path of a file. Raises Refused for that of a pipe; whoever opens it tells of what is missing, or a folder."""
    try:
        mode = path.stat().st_mode  # asked once: between two questions somebody may remove the file
    except (OSError, ValueError):
        return path
    if not (S_ISREG(mode) or S_ISDIR(mode)):
        _refuse(path)
    return path


def read_bytes(path: Path | str, largest: int = LARGEST) -> bytes:
    """A file's bytes, for who reads a hundred thousand small ones: `Path.read_bytes` takes half as long again.

    Raises OSError, for what is no file one whose `errno` is in NO_FILE, for more than `largest` bytes one of EFBIG;
    waits for no pipe.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        parts = [os.read(descriptor, _ENOUGH)]
        if not 0 < len(parts[0]) < _ENOUGH:  # nothing, or perhaps without end
            status = os.fstat(descriptor)
            if not S_ISREG(status.st_mode):
                _refuse(path)
            _check_size(path, status.st_size, largest)
        size = len(parts[0])
        while part := os.read(descriptor, _ENOUGH):
            parts.append(part)
            size += len(part)
            _check_size(path, size, largest)  # of one that grows, too
        return b"".join(parts)
    except OSError as error:
        error.filename = str(path)
        raise
    finally:
        os.close(descriptor)


def read_text(path: Path | str, errors: str = "strict") -> str:
    """A file's text in UTF-8, with the line ends of Unix. Raises as `read_bytes` does, and UnicodeDecodeError."""
    return read_bytes(path).decode("utf-8", errors).replace("\r\n", "\n").replace("\r", "\n")


def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON, as `object_pairs_hook` of its reader. Raises ValueError for a key of two different values."""
    found = dict(pairs)
    if len(found) < len(pairs):
        for key, value in pairs:
            if found[key] != value:  # readers take one or the other
                raise ValueError(f"{key!r:.60} stands twice in one object, with different values")
    return found


def bounded(path: Path, largest: int = LARGEST) -> Path:
    """The path of a file that a library reads whole. Raises OSError as `regular` and `read_bytes` do."""
    if (place := regular(path)).is_file():
        _check_size(path, place.stat().st_size, largest)
    return path


def is_missing(path: Path | str) -> bool:
    """Whether nothing lies at a path. Raises OSError for a file in the place of a folder, and for a link to nothing.

    Else what was written would be taken for what never was.
    """
    try:
        os.stat(path)  # not a Path's, which takes longer: a survey asks for tens of thousands
    except FileNotFoundError:
        place = str(path)
        for _ in range(3):  # it, its folder, and the one above, as far as these are not there either
            if os.path.islink(place) and not os.path.exists(place):
                raise OSError(errno.ENOENT, "a link to nothing; put a file in its place, or remove it", place) from None
            place = os.path.dirname(place)
            if os.path.exists(place):
                break
        return True
    return False


def names_in(folder: Path) -> list[str]:
    """What is in a folder; nothing without one. Raises OSError as `is_missing` does, and for a file in its place."""
    return [] if is_missing(folder) else os.listdir(folder)


def jsonl_files(folder: Path) -> list[Path]:
    """The JSON Lines files in a folder, sorted; none without one. Raises OSError where a glob would find nothing."""
    names = names_in(folder)
    return sorted(folder / name for name in names if name.endswith(".jsonl"))


def _check_size(path: Path | str, size: int, largest: int) -> None:
    if size > largest:
        raise Refused(
            errno.EFBIG,
            f"has {size:,} bytes, and such a file at most {largest:,}: restore it from a copy, or remove it",
            str(path),
        )


def _refuse(path: Path | str) -> NoReturn:
    raise Refused(
        errno.EINVAL, "no file but a pipe, a socket or a device; put a file in its place, or remove it", str(path)
    )
