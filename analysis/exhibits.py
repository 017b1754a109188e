"""Exhibits, which is what journals call tables and figures together: each file of `paper_tables/` declares one."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from analysis.notes import missing, notes
from analysis.study import Study
from analysis.tables import FORMATS, Block, Column, Table, mark_best, mark_few_seeds
from benchmark.store import RunRecords

View = Literal["ours", "both"]


@dataclass(frozen=True, kw_only=True)
class Exhibit:
    """What one table or figure shows. `blocks` are the paper's suites that it shows, each with its heading.

    `name` (of the file) and `printed` (the paper's numbers) are filled in by `paper_tables.load`.
    """

    caption: str
    label: str
    blocks: Mapping[str, str]
    name: str = ""
    printed: tuple[PrintedValue, ...] = field(default=(), repr=False)

    def render(self, study: Study) -> dict[str, bytes]:
        """The content of each file, by its suffix."""
        raise NotImplementedError

    def suites(self, study: Study) -> list[str]:
        """The study's suites that the exhibit shows: those of the paper, or all if none of them is one of these."""
        return [suite for suite in self.blocks if suite in study.suites] or study.suites

    def heading(self, study: Study, suite: str) -> str:
        """The heading of a suite's block: the paper's for a suite of the paper, else what the runs did."""
        return self.blocks.get(suite) or growth(study.of(suite)[0])

    def printed_block(self, study: Study, suite: str) -> str:
        """The printed block to compare a suite with: its own, else the first of the same architecture."""
        if suite in self.blocks or not self.blocks:
            return suite
        architecture = study.of(suite)[0].line.config["model"]["architecture"]
        return next((block for block in self.blocks if block.startswith(architecture[:3])), next(iter(self.blocks)))


@dataclass(frozen=True, kw_only=True)
class TableExhibit(Exhibit):
    """An exhibit that renders as LaTeX, CSV and Markdown."""

    def build(self, study: Study, view: View = "ours") -> Table:
        """The table of a study's runs; view "both" has the paper's numbers in brackets."""
        raise NotImplementedError

    def measured(
        self,
        study: Study,
        columns: Sequence[Column],
        blocks: Sequence[Block],
        about: Sequence[str],
        view: View,
        scores: bool = False,
    ) -> Table:
        """The finished table of measurements, with the best marked, and below it what is said of all its suites.

        `scores` compare whatever text a model was measured on.
        """
        never = {block.suite: study.references if scores else study.never_best(block.suite) for block in blocks}
        blocks = [mark_best(block, columns, never[block.suite]) for block in blocks]
        suites = self.suites(study)
        below = [*about, *missing(study, columns, blocks, suites), *notes(study, suites)]
        return self.table(columns, blocks, below, view)

    def table(
        self, columns: Sequence[Column], blocks: Sequence[Block], below: Sequence[str], view: View, stub: str = "Method"
    ) -> Table:
        """The finished table, its caption saying what is in brackets, and numbers of few seeds marked."""
        blocks, seeds = mark_few_seeds(blocks)
        few = {cell.few_seeds for block in blocks for row in block.rows for cell in row.cells} - {0}
        fewer = ", or over n where it is said" if few - {1} else ""
        over = [f"Mean ± standard deviation over {seeds} seeds{fewer}."] if seeds > 1 else []
        over += ["† One seed: how much another would differ is not known."] * (1 in few)
        below = [*over, *below]
        caption = self.caption
        if view == "both":
            caption += " In brackets: printed in the paper."
            below += corrections(self.printed)
        return Table(self.name, self.label, caption, (stub,), tuple(columns), tuple(blocks), tuple(below))


def to_files(table: Table) -> dict[str, bytes]:
    return {suffix: to_text(table).encode() for suffix, to_text in FORMATS.items()}


def growth(run: RunRecords) -> str:
    """What grows, in words, e.g. "BERT from L6_D384 to L12_D768"."""
    model = run.line.config["model"]
    sizes = [f"L{size['layers']}_D{size['hidden_size']}" for size in model["ladder"]]
    span = sizes[0] if sizes[0] == sizes[-1] else f"from {sizes[0]} to {sizes[-1]}"
    return f"{model['architecture'].upper()} {span}"


_SUFFIX = {"": 1.0, "%": 0.01, "k": 1e3, "M": 1e6}


@dataclass(frozen=True, kw_only=True)
class PrintedValue:
    """A number of the paper's, and its place there: the columns of the files in `paper_tables/printed`."""

    table: str
    block: str
    row: str
    stage: str
    column: str
    metric: str
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


def read_printed(path: Path) -> tuple[PrintedValue, ...]:
    """Read one file of printed numbers; a table that the paper has no numbers for has no file."""
    if not path.exists():
        return ()
    with path.open(encoding="utf-8", newline="") as file:
        return tuple(PrintedValue(**line) for line in csv.DictReader(file, strict=True))


def corrections(printed: Iterable[PrintedValue]) -> list[str]:
    """Footnotes on numbers that the paper printed and that cannot be right."""
    return [
        f"{v.row}, {v.column}{f' after stage {v.stage}' if v.stage else ''}: printed {v.printed}; {v.flag}."
        for v in printed
        if v.corrected
    ]
