"""Files, opened only where they are files, for a pipe waits for ever; folders, listed only where they can be read."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from stat import S_ISDIR, S_ISREG
from typing import NoReturn

NO_FILE = errno.EINVAL, errno.EISDIR, errno.ENXIO, errno.EAGAIN  # a device, a folder, a socket, a pipe
_ENOUGH = 2**16  # bytes, which most files of records do not reach: one call reads them


def regular(path: Path) -> Path:
    """The path of a file. Raises OSError for that of a pipe; whoever opens it tells of what is missing, or a folder."""
    try:
        mode = path.stat().st_mode  # asked once: between two questions somebody may remove the file
    except (OSError, ValueError):
        return path
    if not (S_ISREG(mode) or S_ISDIR(mode)):
        _refuse(path)
    return path


def content(path: Path | str) -> bytes:
    """A file's bytes, for who reads a hundred thousand small ones: `Path.read_bytes` takes half as long again.

    Raises OSError, and for what is no file one whose `errno` is in NO_FILE; waits for no pipe.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        parts = [os.read(descriptor, _ENOUGH)]
        if not 0 < len(parts[0]) < _ENOUGH and not S_ISREG(os.fstat(descriptor).st_mode):  # nothing, or without end
            _refuse(path)
        while parts[-1]:
            parts.append(os.read(descriptor, _ENOUGH))
        return b"".join(parts)
    except OSError as error:
        error.filename = str(path)
        raise
    finally:
        os.close(descriptor)


def jsonl_files(folder: Path) -> list[Path]:
    """The JSON Lines files in a folder, sorted; none without one. Raises OSError where a glob would find nothing."""
    names = os.listdir(folder) if folder.is_dir() else []
    return sorted(folder / name for name in names if name.endswith(".jsonl"))


def _refuse(path: Path | str) -> NoReturn:
    raise OSError(
        errno.EINVAL, "no file but a pipe, a socket or a device; put a file in its place, or remove it", str(path)
    )
