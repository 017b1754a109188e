"""Folders from which code is run or pickles are loaded: nobody but the user may write there."""

from __future__ import annotations

import contextlib
import grp
import hashlib
import os
import pwd
import stat
from collections.abc import Iterator
from pathlib import Path

from benchmark.errors import UserError

OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
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


def exposed(path: Path) -> Path | None:
    """The folder on the way to `path`, or itself, in which others can put something; None if there is none.

    root can anyway. In a sticky folder, such as /tmp, nobody but its owner can replace what is there.
    """
    found = (path.absolute(), path.resolve())
    for folder in dict.fromkeys(folder for one in found for folder in (one, *one.parents)):
        if not folder.exists():
            continue
        status = folder.stat()
        if status.st_uid not in (0, os.getuid()):
            return folder
        writers = status.st_mode & OTHERS_WRITE & ~(stat.S_IWGRP if _is_own_group(status.st_gid) else 0)
        if writers and not status.st_mode & stat.S_ISVTX:
            return folder
    return None


def _is_own_group(group: int) -> bool:
    """Whether the user is alone in a group, which has his name, as many systems give each one."""
    with contextlib.suppress(KeyError):
        found, user = grp.getgrgid(group), pwd.getpwuid(os.getuid())
        return found.gr_name == user.pw_name and group == user.pw_gid and not set(found.gr_mem) - {user.pw_name}
    return False


@contextlib.contextmanager
def for_the_user_alone() -> Iterator[None]:
    """Let nobody else write what is made in this block, also in a group whose members share a folder."""
    before = os.umask(0o022)
    os.umask(before | 0o022)
    try:
        yield
    finally:
        os.umask(before)
