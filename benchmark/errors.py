"""Errors that a user can fix: shown as one message, without a traceback."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable


class UserError(ValueError):
    """Base of errors in a suite, on the command line, or in somebody's data."""


def describe_error(error: UserError | ModuleNotFoundError | OSError | MemoryError) -> str:
    """The message of an error in one line.

    A question mark replaces each unprintable character, because it could control the terminal.
    """
    text = str(error)
    if isinstance(error, OSError):
        text = f"{error.filename2 or error.filename}: {error.strerror}"
    elif isinstance(error, ModuleNotFoundError):
        # most often the package is installed for another Python
        text = (
            f"{sys.executable} has no package {error.name!r}: `make demo` installs all into .venv; "
            "begin commands with `.venv/bin/python run_all.py`, or call `. .venv/bin/activate` "
            "first"
        )
    elif isinstance(error, MemoryError):
        text = (
            "no memory is left: free some, or let this process have more "
            "(`ulimit -v`, a job's or container's limit)"
        )
    line = " ".join(text.splitlines())
    return "".join(character if character.isprintable() else "?" for character in line)


def run_command(command: Callable[[], int], ended: str = "ended") -> int:
    """Run a command and flush its output.

    Returns its exit status, or 2 after the message of an error that a user can fix. If Ctrl-C or
    SIGTERM ends the command, it prints `ended`.
    """
    try:
        status = command()
        sys.stdout.flush()
        return status
    except BrokenPipeError:  # the reader, such as `head`, has closed the pipe
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())  # Python flushes the rest when it exits
        return 141  # 128 + SIGPIPE, as shells report it
    except (UserError, ModuleNotFoundError, OSError, MemoryError) as error:
        if isinstance(error, OSError) and error.filename is None:
            raise
        print(f"error: {describe_error(error)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"\n{ended}", file=sys.stderr)
        return 130
