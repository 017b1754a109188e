"""Malformed input of every kind, and how a command that is given it must end.

Each case is a command line and what it is given. What says that the end is right (`unclear`): exit code 2, one line
that names the place, no traceback, and no file written that a later command would read.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

import run_all
from benchmark.settings import load

LONGEST = 700  # characters of a line that somebody still reads
Make = Callable[[Path], object]


def nothing(folder: Path) -> None:
    """Make nothing."""


@dataclass(frozen=True)
class Case:
    """`arguments` may hold {here}, the folder that `make` fills, and {place}, what all cases share (see `Place`).

    {here}/site.toml is the site file.
    """

    name: str
    arguments: tuple[str, ...]
    names: tuple[str, ...]  # what the line must name
    make: Make = nothing


def unclear(case: Case, place: Path, here: Path) -> str:
    """Why the end of a case is not clear; nothing where it is."""
    here.mkdir(parents=True)
    case.make(here)
    before = (_files(place), _files(here))
    out, err = io.StringIO(), io.StringIO()
    site = patch.object(load, "SITE", here / "site.toml")
    with site, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code: object = run_all.main([one.format(here=here, place=place) for one in case.arguments])
        except SystemExit as ended:  # argparse's
            code = ended.code
        except BaseException as error:
            return f"traceback: {type(error).__name__}: {str(error)[:200]}"
    said = err.getvalue().strip()
    if code != 2:
        return f"accepted: exit code {code}: {(said or out.getvalue())[-200:]}"
    _, mark, message = said.partition("error: ")
    if not mark or "\n" in message:
        return f"not one line: {said[-400:]}"
    if len(message) > LONGEST:
        return f"a line of {len(message)} characters: {message[:200]}"
    if unnamed := [name for name in case.names if name.format(here=here, place=place) not in message]:
        return f"does not name {unnamed[0]!r}: {message}"
    written = {*_files(place), *_files(here)} - {*before[0], *before[1]}
    return f"wrote {min(written)[0]}" if written else ""


def _files(folder: Path) -> list[tuple[str, int, int]]:
    """Files by path, size and time, but locks, and prepared text, which is known by its content."""
    return list(_walk(folder))


def _walk(folder: Path) -> Iterator[tuple[str, int, int]]:
    for path in folder.rglob("*"):
        if ".lock" not in path.suffixes and path.name != "lock" and "data" not in path.parts and path.is_file():
            with contextlib.suppress(OSError):
                stat = path.stat()
                yield str(path), stat.st_size, stat.st_mtime_ns
