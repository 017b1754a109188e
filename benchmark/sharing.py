"""Folders that several users write: what a folder of runs must be for that, and what must not lie in one."""

from __future__ import annotations

import contextlib
import grp
import os
import pwd
import stat
from collections.abc import Iterator
from pathlib import Path

from benchmark.errors import UserError

OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def check_sharing(runs: Path) -> None:
    """Raises UserError where users who share a folder of runs could not go on with each other's work.

    One that its group may write is shared if it is another user's, or hands its group on to what is made in it.
    """
    if not runs.is_dir():
        return
    status = runs.stat()
    hands_on = bool(status.st_mode & stat.S_ISGID)
    if not status.st_mode & stat.S_IWGRP or not (hands_on or status.st_uid != os.getuid()):
        return
    if not hands_on:
        raise UserError(
            f"{runs} is shared by its group, but what is made there would be of each user's own: `chmod g+s {runs}` "
            "by its owner mends that"
        )
    umask = os.umask(0)
    os.umask(umask)
    if umask & stat.S_IWGRP:
        raise UserError(
            f"{runs} is shared by its group, but others could not go on with what you write (umask {umask:03o}): say "
            "`umask 002` first"
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
