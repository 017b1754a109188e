"""Tables of models: ladders of sizes with their training settings."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from analysis import notes, paper_suites
from analysis.exhibits import PrintedValue, TableExhibit, add_printed
from analysis.paper_suites import GROWING
from analysis.study import Study
from analysis.tables import Block, Cell, Column, Table, TableRow
from benchmark.ledger.runs import RunRecords
from benchmark.settings.names import make_slug
from benchmark.settings.suite import pick_for_stage


def _format_count(value: float) -> str:
    """Three digits: 30.3M, 62.5k, 512."""
    for size, suffix in ((1e6, "M"), (1e3, "k")):
        if value >= size:
            style = ".3g" if value < 1000 * size else ".0f"
            return f"{value / size:{style}}{suffix}"
    return f"{value:.0f}"


def _format_power(value: float) -> str:
    """A power of ten with two digits: `5.0e-4`."""
    mantissa, _, exponent = f"{value:.1e}".partition("e")
    return f"{mantissa}e{int(exponent)}"


Show = Callable[[float], str]
PROPERTIES: Mapping[str, tuple[str, Show]] = {
    "parameters": ("Parameters", _format_count),
    "layers": ("Layers", "{:.0f}".format),
    "hidden size": ("Hidden", "{:.0f}".format),
    "heads": ("Heads", "{:.0f}".format),
    "feed-forward size": ("FFN", "{:.0f}".format),
    "learning rate": ("Learning rate", _format_power),
    "recover steps": ("FRW steps", _format_count),
    "adapt steps": ("Steps", _format_count),
    "warm-up": ("Warm-up", "{:.0%}".format),
    "train wall time": ("Measured wall time (s)", _format_power),
}
SIZE = tuple(PROPERTIES)[:6]
Printed = Mapping[tuple[str, str, str, str], PrintedValue]
MEASURED = ("recover steps", "adapt steps", "train wall time")  # so they differ between seeds


@dataclass(frozen=True, kw_only=True)
class ArchitectureTable(TableExhibit):
    """The models of a ladder, one line per stage.

    Sizes are as built, training as recorded (mean over seeds). `rows` maps each printed block to a
    row of the suite, which gets a block. Without it, each suite has one block, of ELLE's row or
    else the last row.
    """

    properties: tuple[str, ...] = tuple(PROPERTIES)
    rows: Mapping[str, str] | None = None

    def _build(self, study: Study) -> Table:
        columns = [Column(PROPERTIES[name][0]) for name in self.properties]
        blocks = []
        for part in study.parts:
            rows = self.rows or {"": _choose_row(part)}
            for block, row in rows.items():
                slug = make_slug(row)
                runs = [run for run in part.runs if make_slug(run.row) == slug]
                if not runs:
                    continue
                heading = row
                if not self.rows:
                    heading = f"{self.choose_heading(replace(part, runs=runs))} ({row})"
                printed: Printed = {}
                if self.rows or slug == GROWING:
                    printed = self.select_printed(part, row, block)
                lines = self._make_rows(part, runs, printed)
                blocks.append(Block(heading, tuple(lines), part.suite))
        footnotes = [
            *notes.note_missing_cells(study, blocks),
            *notes.note_times(study),
            *notes.collect_notes(study),
        ]
        return self.finish_table(columns, blocks, footnotes, "Model")

    def _make_rows(self, part: Study, runs: list[RunRecords], printed: Printed) -> list[TableRow]:
        """The lines of a block, one per stage, with the paper's values from `printed`."""
        ids = [run.id for run in runs]
        stages = part.stages[part.stages["run"].isin(ids)]
        is_growing = runs[0].line.method == GROWING
        rows = []
        for index in range(len(runs[0].domains)):
            number = str(index + 1)
            lines = stages[stages["stage"] == index]
            properties = _collect_properties(runs[0], index, lines)
            finished = lines["done"].sum()  # runs whose stage has ended
            cells = []
            for name in self.properties:
                value = properties[name]
                is_unknown = math.isnan(value)
                _, show = PROPERTIES[name]
                is_expected = name != "recover steps" or (index > 0 and is_growing)
                is_measured = name in MEASURED and not is_unknown
                cell = Cell(
                    text="" if is_unknown else show(value),
                    missing=is_unknown and not finished and is_expected,
                    few_seeds=int(is_measured and finished == 1),
                )
                cells.append(add_printed(cell, printed.get((f"m{number}", number, name, ""))))
            rows.append(TableRow(f"M{number}", tuple(cells)))
        return rows


def _choose_row(part: Study) -> str:
    """The row of ELLE, or else the last row."""
    rows = [run.row for run in part.runs if run.line.method == GROWING]
    return rows[0] if rows else part.runs[-1].row


def _collect_properties(run: RunRecords, index: int, stages: pd.DataFrame) -> dict[str, float]:
    """The properties of one stage's model.

    Before training, the size is the ladder's, and what only training tells is NaN.
    """
    model = run.line.config["model"]
    training = run.line.config["training"]
    size = stages.iloc[0] if len(stages) else model["ladder"][index]
    means = stages[["parameters", "recover", "adapt", "seconds"]].astype(float).mean()
    return {
        "parameters": means["parameters"],
        "layers": size["layers"],
        "hidden size": size["hidden_size"],
        "heads": size["hidden_size"] / model["head_size"],
        "feed-forward size": 4 * size["hidden_size"],
        "learning rate": pick_for_stage(training["learning_rate"], index),
        "recover steps": means["recover"],
        "adapt steps": means["adapt"],
        "warm-up": pick_for_stage(training["warmup"], index),
        "train wall time": means["seconds"],
    }


SETTINGS: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    "Learning Rate": lambda task: _format_power(task["learning_rate"]).replace(".0e", "e"),
    "Batch Size": lambda task: str(task["batch_size"]),
    "Weight Decay": lambda task: str(task["weight_decay"]),
    "Max Epochs": lambda task: str(task["max_epochs"]),
    "Learning Rate Decay": lambda task: task["schedule"].capitalize(),
    "Warmup Ratio": lambda task: str(task["warmup"]),
}


@dataclass(frozen=True, kw_only=True)
class HyperparameterTable(TableExhibit):
    """The settings of each downstream task, from the suite's task definitions."""

    def _build(self, study: Study) -> Table:
        tasks = {}
        printed: dict[tuple[str, str], PrintedValue] = {}
        for part in study.parts:
            suite = self.find_paper_suite(part)
            for task in part.runs[0].line.tasks:
                if not task["domain"]:
                    continue
                title = task["title"] or task["name"]
                tasks[title] = task
                if paper_suites.is_paper_task(task, suite):
                    for number in self.printed:
                        if number.column == title:
                            printed[number.row, title] = number
        rows = []
        for name, show in SETTINGS.items():
            cells = [
                add_printed(Cell(text=show(task)), printed.get((name, title)))
                for title, task in tasks.items()
            ]
            rows.append(TableRow(name, tuple(cells)))
        columns = [Column(title) for title in tasks]
        blocks = [Block("", tuple(rows))]
        footnotes = [] if tasks else ["This suite has no downstream tasks."]
        return self.finish_table(columns, blocks, footnotes, "Setting")
