"""Write tables and figures to a folder."""

from __future__ import annotations

import importlib
import os
from collections.abc import Sequence
from pathlib import Path

from analysis.entry import Entry, View
from analysis.frames import Study
from benchmark.records import RunRecords


def render(
    suite_name: str, runs: Sequence[RunRecords], tables: Sequence[str], out: Path, view: View = "ours"
) -> list[Path]:
    """Write NAME.tex, NAME.csv, NAME.md of each table and NAME.pdf, NAME.png of each figure, and return the paths.

    The same records give the same bytes. Views other than "ours" are files of their own, NAME.both.tex, of tables
    only: the paper prints no numbers for its curves. Several suites' runs in one call give tables with a block a
    suite. Raises ConfigError for a name that is no entry.
    """
    return render_study(Study(suite_name, runs), load_entries(tables), out, view)


def load_entries(names: Sequence[str]) -> list[Entry]:
    """Entries are plug-ins, found by name: nothing in `analysis` knows which tables the paper has."""
    return [importlib.import_module("paper_tables").load(name) for name in names]


def render_study(study: Study, entries: Sequence[Entry], out: Path, view: View = "ours") -> list[Path]:
    """What `render` does, for entries at hand and a study whose numbers are then computed once."""
    middle = "" if view == "ours" else f".{view}"
    paths = []
    for entry in entries:
        if entry.kind == "figure" and view != "ours":
            continue
        for suffix, content in entry.render(study, view).items():
            paths.append(out / f"{entry.name}{middle}.{suffix}")
            write(paths[-1], content)
    return paths


def write(path: Path, content: bytes) -> None:
    """Write a file whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    beside.write_bytes(content)
    os.replace(beside, path)
