"""What a user can fix: shown as one message, without a traceback."""

from __future__ import annotations

import errno
import io
import os
import sys
import traceback

LONGEST = 2000  # characters of what is told
END = 400  # of these the last ones, where the cure is


class UserError(ValueError):
    """Base of errors in a suite, on the command line, or in somebody's data."""


def told(error: UserError | ModuleNotFoundError | OSError | MemoryError) -> str:
    """What the command line says, in one line: names of files and of fields in them may hold anything.

    A package that is missing is most often that of another Python's installation.
    """
    text = str(error)
    if isinstance(error, OSError):
        text = f"{error.filename2 or error.filename or 'what was printed cannot be written'}: {error.strerror}"
    elif isinstance(error, ModuleNotFoundError):
        text = _without_package(error)
    elif isinstance(error, MemoryError):
        text = _without_memory(error)
    text = shown(" ".join(text.splitlines()))
    return text if len(text) <= LONGEST else f"{text[: LONGEST - END]} ... {text[-END:]}"


def _without_package(error: ModuleNotFoundError) -> str:
    return (
        f"{sys.executable} has no package {error.name!r}: `make demo` installs all into .venv; begin commands with "
        "`.venv/bin/python run_all.py`, or call `. .venv/bin/activate` first"
    )


def _without_memory(error: MemoryError) -> str:
    place = traceback.extract_tb(error.__traceback__)[-1:]
    where = "".join(f" ({one.filename}:{one.lineno})" for one in place)
    return (
        f"no memory is left for what was read or computed{where}: free some, or let this process have more "
        "(`ulimit -v`, a job's or a container's limit)"
    )


def print_anything() -> int:
    """Let what is printed hold any character, whatever the encoding, and go nowhere where standard output is closed."""
    sys.stdout = sys.stdout or io.StringIO()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    return 0


def flushed(status: int) -> int:
    """The status, once all that was printed is written. Raises OSError."""
    sys.stdout.flush()
    return status


def unprinted(error: OSError) -> bool:
    """Whether what was printed could not be written, as on a full disk: errors of files have their names.

    Then it is let go, or Python would try again as it ends.
    """
    found = error.filename is None and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO)
    if found:
        stop_printing()
    return found


def stop_printing() -> int:
    """Let what is still to be printed go nowhere, as Python flushes it at its end. Returns what SIGPIPE's status is."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 141


def shown(text: str) -> str:
    """The text as it may be printed: with a question mark for each character that would steer a terminal."""
    return "".join(character if character.isprintable() else "?" for character in text)
