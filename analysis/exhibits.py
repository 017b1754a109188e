"""Exhibits, as journals call tables and figures: each file of `paper_tables/` declares one."""

from __future__ import annotations

import csv
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from analysis import paper_suites
from analysis.notes import (
    collect_notes,
    group_names,
    note_missing_cells,
    note_times,
    warn_of_baselines,
    warn_of_counting,
)
from analysis.study import Study
from analysis.tables import FORMATS, Block, Cell, Column, Table, mark_best, mark_few_seeds
from benchmark.ledger.runs import RunRecords
from benchmark.settings.names import make_slug
from benchmark.settings.units import UNITS

View = Literal["ours", "both"]
ONE_SEED = "One seed: how much another would differ is not known."
AVERAGE = "AVG"  # column of the tasks' average, in tables and in printed numbers
PROMPT_ROWS = {"none": "no prompt", "wrong": "wrong prompt", "right": "right prompt"}


@dataclass(frozen=True, kw_only=True)
class Exhibit:
    """One table or figure.

    `suites`: the paper's suites that it shows. If a study has none of these, all its suites are
    shown. `only`: by suite, the rows to show if not all. `told`: what headings say besides the
    model. `reading`: how to read the numbers, in which a sentence on the names of sizes replaces
    `{size}`. In `caption`, the name of the scores replaces `{score}`, and "the same budget", of all
    suites or per suite, replaces `{budget}`. `analysis.catalogue.load` fills in `name` (of the
    file) and `printed` (the paper's numbers).
    """

    caption: str
    label: str
    suites: tuple[str, ...] = ()
    only: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    reading: str = ""
    told: tuple[Literal["budget", "memory"], ...] = ()
    name: str = ""
    printed: tuple[PrintedValue, ...] = field(default=(), repr=False)

    def select(self, study: Study) -> Study:
        """The part of a study that the exhibit shows.

        It has the suites in `suites`, or all if the study has none of these. It has the rows in
        `only`, or all if the study has none of these.
        """
        suites = [suite for suite in self.suites if suite in study.suites]
        selection = study.select_suites(suites) if suites and suites != study.suites else study
        if not self.only:
            return selection
        rows = self.only
        runs = [run for run in selection.runs if run.row in rows.get(run.suite, [run.row])]
        return replace(selection, runs=runs) if runs else selection

    def choose_heading(self, part: Study) -> str:
        """The heading of a suite's block: its models, and what `told` names.

        Where another suite of the study has the same, it ends with the suite's name.
        """
        heading = self._describe_suite(part)
        parts = part.whole.parts if part.whole else []
        others = [other for other in parts if other.suite != part.suite]
        if any(self._describe_suite(other) == heading for other in others):
            return f"{heading} ({part.suite})"
        return heading

    def _describe_suite(self, part: Study) -> str:
        """The models of a suite, and what `told` names."""
        phrases = [describe_growth(part.runs)]
        configs = [run.line.config for run in part.runs]
        if "budget" in self.told:
            budgets = {_describe_budget(config["budget"]) for config in configs}
            phrases.append(_say_if_one(budgets, "{} per stage", "budgets differ by row"))
        memories = [config["data"]["memory_tokens"] for config in configs if "data" in config]
        if "memory" in self.told and memories:
            words = "a memory of {:,} tokens per domain"
            phrases.append(_say_if_one(set(memories), words, "memories differ by row"))
        return ", ".join(phrases)

    def describe(self, study: Study) -> str:
        """The caption, with the name of the scores that the study has, and whose budget it is."""
        budgets = {_describe_budget(run.line.config["budget"]) for run in study.runs}
        is_one = len(study.suites) == 1 or len(budgets) == 1
        budget = "the same budget" if is_one else "the same budget per suite"
        caption = self.caption.replace("{score}", name_scores(study))
        return caption.replace("{budget}", budget)

    def find_paper_suite(self, part: Study) -> str:
        """The paper's suite whose numbers this exhibit shows beside ours, "" for none."""
        suite = part.printed.get(part.suite, part.suite)
        if suite in self.suites:
            return suite
        return ""

    def select_printed(
        self, part: Study, row: str, block: str = ""
    ) -> Mapping[tuple[str, str, str, str], PrintedValue]:
        """The paper's numbers of a block that may stand beside a row of the study.

        They are by slug of the printed row, stage from 1, column and metric. The default block is
        the suite's. Empty if the row does not train what the paper's suite does.
        """
        suite = self.find_paper_suite(part)
        if make_slug(row) not in paper_suites.find_rows(part, suite):
            return {}
        return {
            (make_slug(value.row), value.stage, value.column, value.metric): value
            for value in self.printed
            if value.block == (block or suite)
        }


@dataclass(frozen=True, kw_only=True)
class TableExhibit(Exhibit):
    """An exhibit that renders as LaTeX, CSV and Markdown."""

    def build(self, study: Study, view: View = "ours") -> Table:
        """The table of a study's runs, in view "both" with the paper's numbers in brackets."""
        exhibit = self if view == "both" else replace(self, printed=())
        selection = self.select(study)
        table = exhibit._build(selection)
        caption = self.describe(selection)
        reading = table.reading.replace("{size}", describe_size(selection.runs[0]))
        table = replace(table, reading=reading)
        if not table.has_printed:
            return replace(table, caption=caption)
        lines = []
        for part in selection.parts:
            suite = self.find_paper_suite(part)
            rows = paper_suites.find_rows(part, suite)
            lines += paper_suites.note_differences(part, suite, rows)
        caption = f"{caption} In brackets: printed in the paper."
        return replace(table, caption=caption, notes=(*table.notes, *dict.fromkeys(lines)))

    def _build(self, study: Study) -> Table:
        """The table of a study that has only what the exhibit shows.

        It includes the paper's numbers in `printed`.
        """
        raise NotImplementedError

    def finish_measurements(
        self,
        study: Study,
        columns: Sequence[Column],
        blocks: Sequence[Block],
        about: Sequence[str],
        scores: bool = False,
    ) -> Table:
        """The finished table of measurements, with the best marked and the notes on all its suites.

        A row that is no better than the unigram distributions is never the best, also in tables
        that do not show these distributions.

        `scores`: the numbers are scores of downstream tasks. These can be compared even if rows
        have different validation texts.
        """
        never_best = {}
        for part in study.parts:
            never_best[part.suite] = part.references
            if not scores:
                never_best[part.suite] = part.never_best.union(part.above_unigram["row"])
        for block in blocks:
            mark_best(block, columns, never_best[block.suite])
        times = [] if scores else note_times(study, self.note_untimed)
        notes = [*about, *note_missing_cells(study, blocks), *times, *collect_notes(study)]
        warnings = warn_of_baselines(study) if scores else warn_of_counting(study)
        return self.finish_table(columns, blocks, notes, warnings=warnings)

    def note_untimed(self, part: Study) -> Sequence[str]:
        """Sentences on runs of a suite that the table's wall times leave out."""
        return ()

    def finish_table(
        self,
        columns: Sequence[Column],
        blocks: Sequence[Block],
        notes: Sequence[str],
        stub: str = "Method",
        warnings: Sequence[str] = (),
    ) -> Table:
        """The finished table, with numbers of few seeds marked."""
        seeds = mark_few_seeds(blocks)
        cells = [cell for block in blocks for row in block.rows for cell in row.cells]
        counts = {cell.few_seeds for cell in cells} - {0}
        lines = []
        if seeds > 1:
            suffix = ", or over n where it is said" if counts - {1} else ""
            lines.append(f"Mean ± standard deviation over {seeds} seeds{suffix}.")
        if 1 in counts:
            lines.append("† One seed: how much another would differ is not known.")
        if any(cell.best for cell in cells):
            lines.append("Bold: better with each seed than each other row with any.")
        lines += [*notes, *list_corrections(blocks, columns)]
        return Table(
            name=self.name,
            label=self.label,
            caption=self.caption,
            reading=f"{self.reading} {ONE_SEED}".strip() if seeds == 1 else self.reading,
            stub=stub,
            columns=tuple(columns),
            blocks=tuple(blocks),
            notes=tuple(lines),
            warnings=tuple(warnings),
        )


def describe_size(run: RunRecords) -> str:
    """Explain the names of sizes by the first size of a run."""
    size = run.line.config["model"]["ladder"][0]
    layers = "1 layer" if size["layers"] == 1 else f"{size['layers']} layers"
    return f"{describe_ladder(run)[0]}: {layers}, hidden size {size['hidden_size']}."


def to_files(name: str, table: Table) -> dict[str, bytes]:
    return {f"{name}.{suffix}": to_text(table).encode() for suffix, to_text in FORMATS.items()}


def describe_growth(runs: Sequence[RunRecords]) -> str:
    """The growth of a suite's runs in words, e.g. "BERT from L6_D384 to L12_D768"."""
    architectures: dict[str, None] = {}
    spans: dict[str, None] = {}
    for run in runs:
        sizes = describe_ladder(run)
        first = sizes[0]
        last = sizes[-1]
        span = first if first == last else f"from {first} to {last}"
        spans[span] = None
        architectures[run.line.config["model"]["architecture"].upper()] = None
    names = " and ".join(architectures)
    return f"{names}{_say_if_one(spans, ' {}', ', sizes differ by row')}"


def _describe_budget(budget: Mapping[str, Any]) -> str:
    """The amounts of a budget, as `60,000, 24,000 seconds` or `10 steps`."""
    amount = budget["amount"]
    amounts = amount if isinstance(amount, list | tuple) else [amount]
    unit = UNITS[budget["unit"]]
    numbers = [f"{value:,.4g}" if value < 1000 else f"{value:,.0f}" for value in amounts]
    return f"{', '.join(numbers)} {unit.full_name or unit.name}"


def _say_if_one(values: Collection[object], words: str, otherwise: str) -> str:
    """`words` with the value that all rows have, or `otherwise` if rows have several."""
    if len(values) > 1:
        return otherwise
    [value] = values
    return words.format(value)


def describe_ladder(run: RunRecords) -> list[str]:
    """The sizes of a run's ladder, e.g. "L6_D384"."""
    ladder = run.line.config["model"]["ladder"]
    return [f"L{size['layers']}_D{size['hidden_size']}" for size in ladder]


def name_scores(study: Study) -> str:
    """The metrics of a study's downstream tasks in words: F1, accuracy, or both.

    They are read from recorded scores, or if there are none, from the tasks.
    """
    recorded = [line.metric for run in study.runs for stage in run.scores for line in stage]
    planned = [task.get("metric", "") for run in study.runs for task in run.line.tasks]
    metrics = recorded or planned
    names = ["accuracy" if metric == "accuracy" else "F1" for metric in metrics]
    if names:
        return " or ".join(sorted({*names}))
    return "F1"


_SUFFIX = {"": 1.0, "%": 0.01, "k": 1e3, "M": 1e6}


@dataclass(frozen=True, kw_only=True)
class PrintedValue:
    """A number that the paper prints, and its place in the paper.

    Its fields are the columns of the files in `paper_tables/printed`.
    """

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
    def value(self) -> float | None:
        """The corrected number, or else the printed one, or None for a word."""
        match = re.fullmatch(r"(-?[\d.]+(?:e-?\d+)?)([%kM]?)", self.corrected or self.printed)
        if match:
            return float(match[1]) * _SUFFIX[match[2]]
        return None


def read_printed(path: Path) -> tuple[PrintedValue, ...]:
    """Read a file of printed numbers, which is missing if the paper prints none for a table."""
    if not path.exists():
        return ()
    with path.open(encoding="utf-8", newline="") as file:
        return tuple(PrintedValue(**line) for line in csv.DictReader(file, strict=True))


def add_printed(cell: Cell, value: PrintedValue | None) -> Cell:
    """Put a printed number, if any, beside the cell's own, and return the cell."""
    if value is None:
        return cell
    cell.printed = re.sub("^-", "−", value.printed)
    cell.corrected = value.corrected
    cell.doubt = value.flag
    return cell


def list_corrections(blocks: Iterable[Block], columns: Sequence[Column]) -> list[str]:
    """Why printed numbers that are shown cannot be right, or are odd.

    Each reason comes once, with its cells.
    """
    pairs = []
    for block in blocks:
        for row in block.rows:
            for cell, column in zip(row.cells, columns, strict=True):
                if cell.doubt:
                    place = f"{row.label} {column.name}" if cell.corrected else "all of it"
                    pairs.append((cell.doubt, f"{block.title}, {place}"))
    return [
        f"Printed and corrected: {'; '.join(places)}: {doubt}."
        for doubt, places in group_names(pairs).items()
    ]
