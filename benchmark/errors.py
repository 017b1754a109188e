"""What a user can fix: shown as one message, without a traceback."""

from __future__ import annotations

import sys


class UserError(ValueError):
    """Base of errors in a suite, on the command line, or in somebody's data."""


def told(error: UserError | ModuleNotFoundError) -> str:
    """What the command line says. A package that is missing is most often that of another Python's installation."""
    if isinstance(error, UserError):
        return str(error)
    return (
        f"{sys.executable} has no package {error.name!r}: `make demo` installs all into .venv; begin commands with "
        "`.venv/bin/python run_all.py`, or call `. .venv/bin/activate` first"
    )
