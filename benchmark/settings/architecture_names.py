"""Names of the architectures, those of the files in `benchmark/models/architectures/`, found without torch."""

from __future__ import annotations

import difflib
import pkgutil
from pathlib import Path

FOLDERS = [str(Path(__file__).parents[1] / "models" / "architectures")]
"""Where the files are. Append a folder to add architectures from outside of the project."""


def names() -> list[str]:
    """Names of all architectures; a file that begins with an underscore holds what several of them share."""
    return sorted(module.name for module in pkgutil.iter_modules(FOLDERS) if not module.name.startswith("_"))


def known(name: str) -> str:
    """The name. Raises ValueError with the choices where there is no such architecture."""
    if name not in names():
        near = difflib.get_close_matches(name, names(), n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise ValueError(f"unknown architecture {name!r}; {hint}choose from {', '.join(names())}")
    return name
