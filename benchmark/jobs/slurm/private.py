"""Folders from which code is run or pickles are loaded: nobody but the user may write there."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from benchmark.errors import UserError

OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def make_private(folder: Path) -> None:
    """Make a folder in which the user alone can write, or find that one there is so. Raises UserError."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.mkdir(mode=0o755, exist_ok=True)
    check_private(folder)


def check_private(folder: Path) -> None:
    """Raises UserError for a folder that is not the user's own, is a link, or may be written by others."""
    status = folder.lstat()
    if status.st_uid != os.getuid():
        why = f"belongs to user {status.st_uid}, and this process to {os.getuid()}"
    elif not stat.S_ISDIR(status.st_mode):
        why = "is no folder of its own but a link or a file"
    elif status.st_mode & OTHERS_WRITE:
        why = "may be written by others"
    else:
        return
    raise UserError(
        f"{folder} {why}: jobs run code and load pickles from there. Look what is in it, then remove it, or "
        f"`chmod go-w {folder}` if all of it is yours; or give another --runs"
    )
