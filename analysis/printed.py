"""The numbers that the paper prints, as transcribed in `paper_tables/printed/*.csv`.

Columns of a file: table (the paper's label), block, row, stage (domains learned so far, from 1; empty where there is
none), column (a domain, or "AVG", or a property of an architecture), metric, printed (as in the paper, without
typesetting), corrected (what it should be, where the paper slipped), flag (why).
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable
from dataclasses import dataclass, fields
from pathlib import Path

COLUMNS = ("table", "block", "row", "stage", "column", "metric", "printed", "corrected", "flag")
_SUFFIX = {"": 1.0, "%": 0.01, "k": 1e3, "M": 1e6}


@dataclass(frozen=True, kw_only=True)
class PrintedNumber:
    printed: str
    corrected: str = ""
    flag: str = ""

    @property
    def text(self) -> str:
        """The corrected number, or the printed one."""
        return self.corrected or self.printed

    @property
    def value(self) -> float | None:
        """What `text` says; None for a word."""
        match = re.fullmatch(r"(-?[\d.]+(?:e-?\d+)?)([%kM]?)", self.text)
        return float(match[1]) * _SUFFIX[match[2]] if match else None


@dataclass(frozen=True, kw_only=True)
class PrintedValue:
    """A number and its place in the paper."""

    table: str
    block: str
    row: str
    stage: str
    column: str
    metric: str
    number: PrintedNumber


def read_printed(path: Path) -> tuple[PrintedValue, ...]:
    """Read one file of printed numbers; a table that the paper has no numbers for has no file."""
    if not path.exists():
        return ()
    with path.open(encoding="utf-8", newline="") as file:
        return tuple(map(_value, csv.DictReader(file, strict=True)))


def _value(line: dict[str, str]) -> PrintedValue:
    number = PrintedNumber(**{field.name: line.pop(field.name) for field in fields(PrintedNumber)})
    return PrintedValue(**line, number=number)


def corrections(printed: Iterable[PrintedValue]) -> list[str]:
    """Footnotes on numbers that the paper printed and that cannot be right."""
    return [
        f"{v.row}, {v.column}{f' after stage {v.stage}' if v.stage else ''}: printed {number.printed}; {number.flag}."
        for v in printed
        if (number := v.number).corrected
    ]
