"""Columns of text for the terminal."""

from __future__ import annotations

from collections.abc import Sequence


def align(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows as lines of text, the titles first, without columns that are empty below their title."""
    padded = []
    for column in zip(*rows, strict=True):
        if not any(column[1:]):
            continue
        width = max(map(len, column))
        padded.append([cell.ljust(width) for cell in column])
    lines = []
    for cells in zip(*padded, strict=True):
        line = "  ".join(cells)
        lines.append(line.rstrip())
    return lines
