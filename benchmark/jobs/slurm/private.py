"""Folders from which code is run or pickles are loaded: nobody but the user may write there."""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path

from benchmark.errors import UserError
from benchmark.sharing import OTHERS_WRITE, exposed, for_the_user_alone

HOME = ".lifelong-pretraining"  # in a user's home folder, for what must not lie in a shared one


def private_place(folder: Path) -> Path:
    """`folder`, if others can put nothing there or in its place; else one of the user's own, below the home folder.

    Raises UserError where that is no better.
    """
    if not (shared := exposed(folder)):
        return folder
    own = Path.home() / HOME / f"{folder.name}-{hashlib.sha256(str(folder).encode()).hexdigest()[:12]}"
    if others := exposed(own):
        raise UserError(
            f"jobs run code and load pickles from where others may not write: {shared} is no such folder, and "
            f"{others} neither; give a --runs, or a HOME, where you alone can write"
        )
    return own


def make_private(folder: Path) -> None:
    """Make a folder in which the user alone can write, or find that one there is so. Raises UserError."""
    with for_the_user_alone():
        folder.mkdir(parents=True, exist_ok=True)
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
