"""One small file a table or figure. The file's name is the exhibit's name, and that of the files it renders to.

To add one, add a file with a module-level `EXHIBIT`, and name it under `tables` in a suite. What the paper prints for
it, if anything, goes to `printed/NAME.csv` (columns: see `analysis.printed`).
"""

from __future__ import annotations

import dataclasses
import difflib
import importlib
from pathlib import Path

from analysis.exhibits import Exhibit
from analysis.printed import read_printed
from benchmark.settings.config import ConfigError

_FOLDER = Path(__file__).parent


def names() -> list[str]:
    """All exhibits, tables and figures, in alphabetical order."""
    return sorted(path.stem for path in _FOLDER.glob("*.py") if path.stem != "__init__")


def catalogue() -> dict[str, Exhibit]:
    """All exhibits by name."""
    return {name: load(name) for name in names()}


def load(name: str) -> Exhibit:
    """The exhibit of a table or figure, with the paper's numbers. Raises ConfigError for a name that is none."""
    if name not in names():
        near = difflib.get_close_matches(name, names(), n=1)
        hint = f"Did you mean {near[0]!r}? " if near else ""
        raise ConfigError(f"no table or figure {name!r}. {hint}There are {', '.join(names())}")
    exhibit: Exhibit = importlib.import_module(f"paper_tables.{name}").EXHIBIT
    return dataclasses.replace(exhibit, name=name, printed=read_printed(_FOLDER / "printed" / f"{name}.csv"))
