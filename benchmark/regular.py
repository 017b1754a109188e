"""Files that a user names, opened only where they are files: a pipe waits for ever."""

from __future__ import annotations

import errno
from pathlib import Path


def regular(path: Path) -> Path:
    """The path of a file. Raises OSError for that of a pipe; whoever opens it tells of what is missing, or a folder."""
    if path.exists() and not path.is_file() and not path.is_dir():
        raise OSError(errno.EINVAL, "no file but a pipe, a socket or a device; give a file", str(path))
    return path
