"""A table, and its three renderings: LaTeX (booktabs), Markdown, CSV.

All text in a table is plain Unicode; the renderings escape it. LaTeX needs the packages booktabs, amssymb, graphicx.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import groupby

import numpy as np

from analysis.inference import interval

MISSING = "--"


@dataclass(frozen=True)
class Cell:
    """A number with its spread over seeds, or a text. `printed` is what the paper has in the same cell.

    No values, no text and no printed number: nothing is expected here. Missing: it is expected and not there yet.
    `few_seeds`: over how many seeds a number of ours is, where that is one or fewer than others of its table.
    """

    values: tuple[float, ...] = ()
    digits: int = 2
    text: str = ""
    printed: str = ""
    best: bool = False
    missing: bool = False
    few_seeds: int = 0

    @cached_property
    def mean(self) -> float:
        return float(np.mean(self.values)) if self.values else math.nan

    @cached_property
    def sd(self) -> float:
        """Standard deviation of the seeds (n - 1), NaN for a single one."""
        return float(np.std(self.values, ddof=1)) if len(self.values) > 1 else math.nan

    @property
    def number(self) -> str:
        return self.text or (number(self.mean, self.digits) if self.values else MISSING if self.missing else "")

    @property
    def spread(self) -> str:
        return number(self.sd, self.digits) if math.isfinite(self.sd) else ""

    @property
    def over(self) -> str:
        """What stands at a number of few seeds."""
        return "†" if self.few_seeds == 1 else f"(n = {self.few_seeds})" if self.few_seeds else ""


@dataclass(frozen=True)
class TableRow:
    """One line: `stub` names it (one text a stub column); one that does not compete is never the best.

    `details` is a table that the page lets readers open below the row. `row` is the suite's whose runs the line is
    about, where the stub says something else.
    """

    stub: tuple[str, ...]
    cells: tuple[Cell, ...]
    competes: bool = True
    details: Table | None = None
    row: str = ""


@dataclass(frozen=True)
class Block:
    """Lines under a title; `suite` is the one that they are about."""

    title: str
    rows: tuple[TableRow, ...]
    suite: str = ""


@dataclass(frozen=True)
class Column:
    """`group` spans neighbouring columns of the same group; `lower` says which end is best, None: neither."""

    name: str
    group: str = ""
    lower: bool | None = None


@dataclass(frozen=True)
class Table:
    name: str
    label: str
    caption: str
    stubs: tuple[str, ...]
    columns: tuple[Column, ...]
    blocks: tuple[Block, ...]
    notes: tuple[str, ...] = field(default=())

    @property
    def missing(self) -> int:
        """Number of cells still to be measured."""
        return sum(cell.missing for block in self.blocks for row in block.rows for cell in row.cells)

    def _repr_markdown_(self) -> str:
        """What a notebook shows."""
        return to_markdown(self)


def number(value: float, digits: int) -> str:
    """Fixed decimals, none and commas for numbers of a thousand and more; the minus is U+2212."""
    if not math.isfinite(value):
        return "∞" if value > 0 else "diverged"
    text = f"{value:,.{0 if abs(value) >= 1000 else digits}f}"
    return text.replace("-", "−") if text.strip("-0.") else text.lstrip("-")


def mark_best(block: Block, columns: Sequence[Column], references: Collection[str] = ()) -> Block:
    """Mark the best cell of each column as it is shown, ties too; no cell where all are the same.

    `references`: labels of rows that others are measured against, and that are never the best.
    """
    rows = [list(row.cells) for row in block.rows]
    compete = [row.competes and row.stub[0] not in references for row in block.rows]
    for j, column in enumerate(columns):
        if column.lower is None:
            continue
        shown = {i: round(cells[j].mean, cells[j].digits) for i, cells in enumerate(rows)}
        shown = {i: v for i, v in shown.items() if not math.isnan(v) and compete[i]}
        best = (min if column.lower else max)(shown.values(), default=math.nan)
        for i, value in shown.items():
            if value == best and len(set(shown.values())) > 1:
                rows[i][j] = replace(rows[i][j], best=True)
    marked = (replace(row, cells=tuple(cells)) for row, cells in zip(block.rows, rows, strict=True))
    return replace(block, rows=tuple(marked))


def mark_few_seeds(blocks: Sequence[Block]) -> tuple[list[Block], int]:
    """Mark the numbers of competing rows that stem from one seed, or from fewer than most; also return these."""
    rows = [row for block in blocks for row in block.rows if row.competes]
    most = max((len(cell.values) for row in rows for cell in row.cells), default=0)

    def marked(row: TableRow) -> TableRow:
        counts = [len(cell.values) if row.competes else 0 for cell in row.cells]
        few = [count if count == 1 or count < most else 0 for count in counts]
        cells = (replace(cell, few_seeds=n or cell.few_seeds) for cell, n in zip(row.cells, few, strict=True))
        return replace(row, cells=tuple(cells))

    return [replace(block, rows=tuple(map(marked, block.rows))) for block in blocks], most


# ---------------------------------------------------------------------------------------------------- Markdown


def to_markdown(table: Table) -> str:
    heads = [*table.stubs, *(f"{column.group} {column.name}".strip() for column in table.columns)]
    align = [":--"] * len(table.stubs) + ["--:"] * len(table.columns)
    lines = [f"**{_markdown(table.caption)}**", "", _pipes(map(_markdown, heads)), _pipes(align)]
    for block in table.blocks:
        if block.title:
            lines.append(_pipes([f"*{_markdown(block.title)}*"] + [""] * (len(heads) - 1)))
        for row in block.rows:
            lines.append(_pipes([*map(_markdown, row.stub), *map(_markdown_cell, row.cells)]))
    return "\n".join(lines + [""] * bool(table.notes) + [f"- {_markdown(note)}" for note in table.notes]) + "\n"


def _pipes(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _markdown(text: str) -> str:
    """Escape what Markdown (or HTML inside it) would act on, outside of `code`."""
    parts = text.split("`")
    if len(parts) % 2 == 0:
        return text.translate(_MARKDOWN | {ord("`"): "\\`"})
    return "`".join(part.replace("|", "\\|") if i % 2 else part.translate(_MARKDOWN) for i, part in enumerate(parts))


def _markdown_cell(cell: Cell) -> str:
    text = f"**{cell.number}**" if cell.best else cell.number
    text += f" ± {cell.spread}" if cell.spread else ""
    text += cell.over if cell.few_seeds == 1 else f" {cell.over}" if cell.over else ""
    return text + (f" [{_markdown(cell.printed)}]" if cell.printed else "")


_MARKDOWN = {ord(c): "\\" + c for c in "\\*_|[]<>#~$"} | {ord("&"): "&amp;", ord("\n"): " "}


# ------------------------------------------------------------------------------------------------------- LaTeX


def to_latex(table: Table) -> str:
    """A table environment, shrunk where it is wider than the text."""
    wide = len(table.columns) > 7
    lines = [
        "\\begin{table*}[t]" if wide else "\\begin{table}[t]",
        "\\centering\\small",
        "\\resizebox{\\ifdim\\width>\\linewidth\\linewidth\\else\\width\\fi}{!}{%",
        f"\\begin{{tabular}}{{{'l' * len(table.stubs)}{'r' * len(table.columns)}}}",
        "\\toprule",
        *_latex_head(table),
    ]
    for block in table.blocks:
        lines.append("\\midrule")
        if block.title:
            span = len(table.stubs) + len(table.columns)
            lines.append(f"\\multicolumn{{{span}}}{{l}}{{\\textit{{{latex(block.title)}}}}} \\\\")
        for row in block.rows:
            lines.append(" & ".join([*map(latex, row.stub), *map(_latex_cell, row.cells)]) + " \\\\")
    lines += ["\\bottomrule", "\\end{tabular}}"]
    if table.notes:
        text = " ".join(map(_latex_note, table.notes))
        lines.append(f"\\par\\smallskip\\parbox{{\\linewidth}}{{\\footnotesize\\raggedright {text}}}")
    lines += [f"\\caption{{{latex(table.caption)}}}", f"\\label{{{table.label}}}"]
    return "\n".join(lines) + ("\n\\end{table*}\n" if wide else "\n\\end{table}\n")


def _latex_head(table: Table) -> list[str]:
    names = [*map(latex, table.stubs), *(latex(column.name) for column in table.columns)]
    if not any(column.group for column in table.columns):
        return [" & ".join(names) + " \\\\"]
    groups, rules, start = [""] * len(table.stubs), [], len(table.stubs) + 1
    for group, columns in groupby(table.columns, lambda column: column.group):
        span = len(list(columns))
        groups.append(f"\\multicolumn{{{span}}}{{c}}{{{latex(group)}}}")
        rules.append(f"\\cmidrule(lr){{{start}-{start + span - 1}}}")
        start += span
    return [" & ".join(groups) + " \\\\", "".join(rules), " & ".join(names) + " \\\\"]


def _latex_cell(cell: Cell) -> str:
    text = latex(cell.number)
    text = f"\\textbf{{{text}}}" if cell.best else text
    text += f"\\,{{\\scriptsize$\\pm$\\,{latex(cell.spread)}}}" if cell.spread else ""
    text += "$^\\dagger$" if cell.few_seeds == 1 else f" {{\\scriptsize{latex(cell.over)}}}" if cell.over else ""
    return text + (f" {{\\scriptsize[{latex(cell.printed)}]}}" if cell.printed else "")


def _latex_note(text: str) -> str:
    return "".join(f"\\texttt{{{latex(part)}}}" if i % 2 else latex(part) for i, part in enumerate(text.split("`")))


def latex(text: str) -> str:
    """Escape for LaTeX with T1 fonts: accented Latin letters pass; other unknown characters show their code point."""
    return "".join(
        _LATEX.get(c) or (c if (c.isascii() and c.isprintable()) or "À" <= c <= "ž" else f"[U+{ord(c):04X}]")
        for c in text
    )


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


# --------------------------------------------------------------------------------------------------------- CSV


_CSV = ("mean", "sd", "low", "high", "n", "text", "printed")


def to_csv(table: Table) -> str:
    """One line a cell, for other programs; low and high: the 95% Student t interval of the mean over the n values."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["table", "block", *map(_no_formula, table.stubs), "group", "column", *_CSV])
    for block in table.blocks:
        for row in block.rows:
            for column, cell in zip(table.columns, row.cells, strict=True):
                values = [*map(_plain, (cell.mean, cell.sd, *interval(cell.values))), len(cell.values) or ""]
                place = [table.name, block.title, *row.stub, column.group, column.name]
                writer.writerow([*map(_no_formula, place), *values, *map(_no_formula, (cell.text, cell.printed))])
    return out.getvalue()


def _no_formula(text: str) -> str:
    """Text that a spreadsheet takes for text: what begins like a formula gets an apostrophe, numbers do not."""
    text = text.replace("\r", " ")  # csv quotes line feeds alone
    return f"'{text}" if text.lstrip(" ")[:1] in _FORMULA and not _is_number(text) else text


_FORMULA = {"=", "+", "-", "@", "\t"}


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def _plain(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.6g}"


FORMATS: dict[str, Callable[[Table], str]] = {"tex": to_latex, "csv": to_csv, "md": to_markdown}
