"""A table, and its three renderings: LaTeX (booktabs), Markdown, CSV.

All text in a table is plain Unicode, which the renderings escape. LaTeX needs the packages
booktabs, amssymb, graphicx.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path

import numpy as np
from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from markupsafe import Markup
from rich.box import SIMPLE, Box
from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text

from analysis.inference import compute_interval

MISSING = "--"
# of a number: equal numbers may differ by this, because each CPU has its own logarithm
ROUNDING = 1e-12


@dataclass
class Cell:
    """A number with its spread over seeds, or a text.

    `printed` is what the paper has in the same cell, `corrected` what it must have meant, `doubt`
    why it cannot be right, or is odd. A cell without values, text or printed number is meant to be
    empty, unless it is `missing`: a value is expected but not there yet. `few_seeds`: the number of
    seeds of our number, if a mark is to say that they are few, else 0. Marks are mostly set when
    the table is complete.
    """

    values: tuple[float, ...] = ()
    digits: int = 2
    text: str = ""
    printed: str = ""
    corrected: str = ""
    doubt: str = ""
    best: bool = False
    missing: bool = False
    few_seeds: int = 0

    @cached_property
    def mean(self) -> float:
        if self.values:
            return float(np.mean(self.values))
        return math.nan

    @cached_property
    def sd(self) -> float:
        """Standard deviation of the seeds (n - 1), NaN for a single one."""
        if len(self.values) < 2:
            return math.nan
        sd = float(np.std(self.values, ddof=1))
        if sd < ROUNDING * abs(self.mean):
            return 0.0
        return sd

    @property
    def number(self) -> str:
        if self.text:
            return self.text
        if self.values:
            return format_number(self.mean, self.digits)
        return MISSING if self.missing else ""

    @property
    def is_filled(self) -> bool:
        """Whether the cell shows anything."""
        return bool(self.number or self.printed)

    @property
    def spread(self) -> str:
        if math.isfinite(self.sd):
            return format_number(self.sd, self.digits)
        return ""

    @property
    def printed_and_corrected(self) -> str:
        """The number that the paper prints, and its correction."""
        if self.corrected:
            return f"{self.printed}, corrected {self.corrected}"
        return self.printed

    @property
    def seeds_mark(self) -> str:
        """The mark at a number of few seeds."""
        if self.few_seeds == 1:
            return "†"
        if self.few_seeds:
            return f"(n = {self.few_seeds})"
        return ""


@dataclass(frozen=True)
class TableRow:
    """A line with its label. Unless it competes, it is never the best."""

    label: str
    cells: tuple[Cell, ...]
    competes: bool = True


@dataclass(frozen=True)
class Block:
    """Lines under a title, and the suite that they are about."""

    title: str
    rows: tuple[TableRow, ...]
    suite: str = ""


@dataclass(frozen=True)
class Column:
    """A column, and how to read its numbers.

    `group` is a heading over all neighbouring columns that have it. `lower` says whether the lowest
    number is best, None if neither end is. `digits` are the decimals of its numbers.
    `in_csv_alone`: only the CSV file has it, because the stream is too long for a page.
    """

    name: str
    group: str = ""
    lower: bool | None = None
    digits: int = 2
    in_csv_alone: bool = False


@dataclass(frozen=True)
class Table:
    """A table with `warnings` before its numbers and `notes` below them.

    `reading`: sentences on how to read its numbers, which go with the caption.
    """

    name: str
    label: str
    caption: str
    reading: str = field(default="", kw_only=True)
    stub: str  # the heading above the rows' labels
    columns: tuple[Column, ...]
    blocks: tuple[Block, ...]
    notes: tuple[str, ...] = field(default=())
    warnings: tuple[str, ...] = field(default=())

    @property
    def shown(self) -> Table:
        """The table with only those columns that are not empty and have room on a page."""
        lines = [row.cells for block in self.blocks for row in block.rows]
        places = []
        for place, column in enumerate(self.columns):
            is_filled = not lines or any(cells[place].is_filled for cells in lines)
            if is_filled and not column.in_csv_alone:
                places.append(place)
        blocks = []
        for block in self.blocks:
            rows = []
            for row in block.rows:
                cells = tuple(row.cells[place] for place in places)
                rows.append(replace(row, cells=cells))
            blocks.append(replace(block, rows=tuple(rows)))
        columns = tuple(self.columns[place] for place in places)
        notes = self.notes
        if any(column.in_csv_alone for column in self.columns):
            note = f"{len(columns)} of {len(self.columns)} columns. The CSV file has all."
            notes = (*notes, note)
        return replace(self, columns=columns, blocks=tuple(blocks), notes=notes)

    @property
    def has_printed(self) -> bool:
        """Whether any cell has a number of the paper."""
        return any(
            cell.printed for block in self.blocks for row in block.rows for cell in row.cells
        )

    def _repr_markdown_(self) -> str:
        """The Markdown that a notebook shows."""
        return to_markdown(self)


def format_number(value: float, digits: int) -> str:
    """A number with `digits` decimals, or none and commas from 1,000 on, and U+2212 as minus."""
    if not math.isfinite(value):
        return "∞" if value > 0 else "diverged"
    text = f"{value:,.{0 if abs(value) >= 1000 else digits}f}"
    if text.strip("-0."):
        return text.replace("-", "−")
    return text.lstrip("-")


def mark_best(block: Block, columns: Sequence[Column], ignored_rows: Collection[str] = ()) -> None:
    """Mark the cell of each column whose seeds are all better than all seeds of each other row.

    A cell is not marked if it has one seed, if another row has the same value, or if all its seeds
    are equal (PNN's forgetting is 0 by construction). It must also be better than rows that do not
    compete, such as unigram distributions. `ignored_rows`: labels of rows that are never the best,
    and that the best need not beat.
    """
    for place, column in enumerate(columns):
        if column.lower is None:
            continue
        sign = 1 if column.lower else -1  # makes the lower value the better one
        candidates = []  # the worst and the best value of each row that competes, and its cell
        bounds = []  # the best value of each row that the best must beat
        for row in block.rows:
            cell = row.cells[place]
            if not cell.values or row.label in ignored_rows:
                continue
            values = [sign * value for value in cell.values]
            bounds.append(min(values))
            if row.competes:
                candidates.append((max(values), min(values), cell))
        if len(candidates) < 2:
            continue
        worst, best, cell = min(candidates, key=lambda candidate: candidate[0])
        bounds.remove(best)  # its own
        seeds_differ = best < worst
        cell.best = seeds_differ and worst < min(bounds)


def mark_few_seeds(blocks: Sequence[Block]) -> int:
    """Mark numbers of competing rows with fewer seeds than the maximum, and return the maximum.

    If that is one, nothing is marked, because the caption says it.
    """
    competing = [row for block in blocks for row in block.rows if row.competes]
    cells = [cell for row in competing for cell in row.cells]
    most = max((len(cell.values) for cell in cells), default=0)
    for cell in cells:
        count = len(cell.values)
        if most > 1 and 0 < count < most:
            cell.few_seeds = count
    return most


# -------------------------------------------------------------------------------------------
# Markdown and LaTeX


def to_markdown(table: Table) -> str:
    return _load_template("table.md", _escape_markdown).render(table=table.shown)


def to_latex(table: Table) -> str:
    """A table environment, shrunk if it is wider than the text."""
    return _load_template("table.tex", escape_latex).render(table=table.shown)


def to_text(table: Table) -> str:
    """A table for a terminal, with as many of the last columns as it has room for.

    If the output is piped, all columns are shown, without drawn lines.
    """
    table = table.shown
    endless = Console(width=10_000)
    console = Console()
    box: Box | None = SIMPLE
    if not console.is_terminal:
        console = endless
        box = None
    most = len(table.columns) - 1
    left_out = 0
    while endless.measure(_draw(table, box, left_out)).maximum > console.width and left_out < most:
        left_out += 1
    notes = list(table.notes)
    if left_out:
        notes.append(
            f"The terminal has no room for the first {left_out} of {len(table.columns)} columns."
        )
    with console.capture() as captured:
        warnings = [Text(f"! {warning}") for warning in table.warnings]
        grid = _draw(table, box, left_out)
        console.print(Text(table.caption, "italic"), *warnings, grid, *map(Text, notes), sep="\n")
    return "\n".join(line.rstrip() for line in captured.get().splitlines())


def _draw(table: Table, box: Box | None, left_out: int) -> Grid:
    """The table without its first `left_out` columns."""
    grid = Grid(box=box)
    grid.add_column(Text(table.stub), no_wrap=True)
    for column in table.columns[left_out:]:
        title = f"{column.group}\n{column.name}".strip()
        grid.add_column(Text(title), justify="right", no_wrap=True)
    for block in table.blocks:
        if block.title:
            grid.add_row(Text(block.title, "italic"))
        for row in block.rows:
            cells = map(_draw_cell, row.cells[left_out:])
            grid.add_row(Text(row.label), *cells)
        grid.add_section()
    return grid


def _draw_cell(cell: Cell) -> Text:
    """A cell in the form of `to_markdown`."""
    spread = f" ± {cell.spread}" if cell.spread else ""
    printed = f" [{cell.printed_and_corrected}]" if cell.printed else ""
    style = "bold" if cell.best else ""
    return Text(f"{cell.number}{spread}{cell.seeds_mark}{printed}", style)


@cache
def _load_template(name: str, escape: Callable[[object], str]) -> Template:
    """A template beside this file, with every value passed through `escape`.

    Its delimiters are << >> and <% %>.
    """
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        finalize=escape,
        undefined=StrictUndefined,
        variable_start_string="<<",
        variable_end_string=">>",
        block_start_string="<%",
        block_end_string="%>",
        trim_blocks=True,
        keep_trailing_newline=True,
    )
    return environment.get_template(name)


def _escape_markdown(value: object) -> str:
    """Escape what Markdown (or HTML inside it) would act on, outside of `code`."""

    def escape(match: re.Match[str]) -> str:
        found = match[0]
        if len(found) > 1:
            return found.replace("|", "\\|")  # code
        return _MARKDOWN.get(found, f"\\{found}")

    return re.sub(r"`[^`]*`|[\\*_|\[\]<>#~$`&\n]", escape, str(value))


_MARKDOWN = {"&": "&amp;", "\n": " "}  # other characters get a backslash before them


def escape_latex(value: object) -> str:
    """Escape for LaTeX with T1 fonts.

    Accented Latin letters pass. Other unknown characters show their code point. Text marked as safe
    is LaTeX already.
    """
    if isinstance(value, Markup):
        return value
    return "".join(map(_escape_character, str(value)))


def _escape_character(character: str) -> str:
    if character in _LATEX:
        return _LATEX[character]
    is_plain = character.isascii() and character.isprintable()
    if is_plain or "À" <= character <= "ž":
        return character
    return f"[U+{ord(character):04X}]"


_LATEX = {c: "\\" + c for c in "&%$#_{}"} | {
    "\\": "\\textbackslash{}",
    "~": "\\textasciitilde{}",
    "^": "\\textasciicircum{}",
    "<": "\\textless{}",
    ">": "\\textgreater{}",
    "|": "\\textbar{}",
    '"': "\\textquotedbl{}",
    "-": "{-}",  # no ligatures: "--" is two characters
    "`": "\\textasciigrave{}",
    "\n": " ",
    "\t": " ",
    "−": "$-$",
    "±": "$\\pm$",
    "×": "$\\times$",
    "·": "$\\cdot$",
    "⁺": "$^+$",
    "→": "$\\to$",
    "∞": "$\\infty$",
    "≤": "$\\leq$",
    "≥": "$\\geq$",
    "δ": "$\\delta$",
    "λ": "$\\lambda$",
    "τ": "$\\tau$",
    "✓": "\\checkmark{}",
    "†": "$\\dagger$",
    "¬": "$\\lnot$",
    "–": "--",
    "’": "'",
}


# -------------------------------------------------------------------------------------------
# CSV


_CSV = ("mean", "sd", "ci_low", "ci_high", "n_seeds", "text", "paper_value", "paper_corrected")


# changes and intervals such as "+1.2%" and "−3 to +4 pt", which begin like formulas but are not
_NUMBERS = re.compile(r"[-+][\d.,]+ ?(%|pt)?( to [-+−]?[\d.,]+ ?(%|pt)?)?")


def _escape_csv(text: str) -> str:
    """A text, with an apostrophe before it if a spreadsheet would take it for a formula."""
    is_formula = text[:1] in tuple("=+-@\t\r") and not _NUMBERS.fullmatch(text)
    return f"'{text}" if is_formula else text


def to_csv(table: Table) -> str:
    """One line per cell, for other programs.

    ci_low and ci_high: the 95% Student t interval of the mean over n_seeds values. With
    `keep_default_na=False, na_values=""`, pandas reads numbers as numbers, and a domain called NA
    as text.
    """
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["table", "block", _escape_csv(table.stub), "group", "column", *_CSV])
    for block in table.blocks:
        for row in block.rows:
            for column, cell in zip(table.columns, row.cells, strict=True):
                place = [table.name, block.title, row.label, column.group, column.name]
                numbers = (cell.mean, cell.sd, *compute_interval(cell.values))
                values = ["" if math.isnan(value) else f"{value:.6g}" for value in numbers]
                count = len(cell.values) or ""
                texts = [cell.text, cell.printed, cell.corrected]
                names = map(_escape_csv, place)
                writer.writerow([*names, *values, count, *map(_escape_csv, texts)])
    return out.getvalue()


FORMATS: dict[str, Callable[[Table], str]] = {"tex": to_latex, "csv": to_csv, "md": to_markdown}
