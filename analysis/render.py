"""Write tables and figures of a study to a folder."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from analysis.entry import Entry, View
from analysis.frames import Study


def render(study: Study, entries: Sequence[Entry], out: Path, view: View = "ours") -> list[Path]:
    """Write NAME.tex, NAME.csv, NAME.md of each table and NAME.pdf, NAME.png of each figure, and return the paths.

    The same records give the same bytes. Views other than "ours" are files of their own: NAME.printed.tex.
    """
    middle = "" if view == "ours" else f".{view}"
    paths = []
    for entry in entries:
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
