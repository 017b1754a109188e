"""Tables of models and settings: ladders of sizes with their training settings, and the
fine-tuning's settings.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from analysis import notes
from analysis.exhibits import PrintedValue, TableExhibit, add_printed
from analysis.study import Study
from analysis.tables import Block, Cell, Column, Table, TableRow
from benchmark.records import DoneLine, find_last
from benchmark.settings.names import make_slug
from benchmark.settings.suite import pick_for_stage
from benchmark.store import RunRecords


def _format_count(value: float) -> str:
    """Three digits: 30.3M, 62.5k, 512."""
    for size, suffix in ((1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:{'.3g' if value < 1000 * size else '.0f'}}{suffix}"
    return f"{value:.0f}"


def _format_power(value: float) -> str:
    """A power of ten with two digits: `5.0e-4`."""
    mantissa, _, exponent = f"{value:.1e}".partition("e")
    return f"{mantissa}e{int(exponent)}"


PROPERTIES: Mapping[str, tuple[str, Callable[[float], str]]] = {
    "parameters": ("Parameters", _format_count),
    "layers": ("Layers", lambda value: f"{value:.0f}"),
    "hidden size": ("Hidden", lambda value: f"{value:.0f}"),
    "heads": ("Heads", lambda value: f"{value:.0f}"),
    "feed-forward size": ("FFN", lambda value: f"{value:.0f}"),
    "learning rate": ("Learning rate", _format_power),
    "recover steps": ("FRW steps", _format_count),
    "adapt steps": ("Steps", _format_count),
    "warm-up": ("Warm-up", lambda value: f"{value:.0%}"),
    "train wall time": ("Measured wall time (s)", _format_power),
}
SIZE = tuple(PROPERTIES)[:6]
Printed = Mapping[tuple[str, str, str, str], PrintedValue]
GROWING = "elle"  # the method that the ladders are of, and the paper's row
MEASURED = ("recover steps", "adapt steps", "train wall time")  # and not the same with every seed


@dataclass(frozen=True, kw_only=True)
class ArchitectureTable(TableExhibit):
    """The models of a ladder, one row a stage: sizes as built, training as recorded (mean over
    seeds).

    `rows`: printed block to row of the suite, a block each; without it a block a suite, of ELLE's
    row or the last.
    """

    properties: tuple[str, ...] = tuple(PROPERTIES)
    rows: Mapping[str, str] | None = None

    def _build(self, study: Study) -> Table:
        columns = [Column(PROPERTIES[name][0]) for name in self.properties]
        blocks = []
        for part in study.parts:
            growing = next(
                (run.row for run in part.runs if run.line.method == GROWING), part.runs[-1].row
            )
            for block, row in (self.rows or {"": growing}).items():
                runs = [run for run in part.runs if make_slug(run.row) == make_slug(row)]
                heading = row if self.rows else f"{self.choose_heading(part)} ({row})"
                if runs:
                    printed = (
                        self.select_printed(part, block)
                        if self.rows or make_slug(row) == GROWING
                        else {}
                    )
                    blocks.append(
                        Block(heading, tuple(self._make_rows(part, runs, printed)), part.suite)
                    )
        below = [*notes.note_missing_cells(study, blocks), *notes.collect_notes(study)]
        return self.finish_table(columns, blocks, below, "Model")

    def _make_rows(self, part: Study, runs: list[RunRecords], printed: Printed) -> list[TableRow]:
        stages = part.stages[part.stages["run"].isin([run.id for run in runs])]
        rows = []
        for i in range(len(runs[0].domains)):
            properties = _collect_properties(runs, i, stages[stages["stage"] == i])
            ended = sum(find_last(run.stages[i], DoneLine) is not None for run in runs)
            recovers = i > 0 and runs[0].line.method == GROWING
            cells = [
                add_printed(
                    Cell(
                        text="" if math.isnan(value) else PROPERTIES[name][1](value),
                        missing=math.isnan(value)
                        and not ended
                        and (recovers or name != "recover steps"),
                        few_seeds=int(ended == 1 and name in MEASURED and not math.isnan(value)),
                    ),
                    printed.get((f"m{i + 1}", str(i + 1), name, "")),
                )
                for name in self.properties
                for value in [properties[name]]
            ]
            rows.append(TableRow(f"M{i + 1}", tuple(cells)))
        return rows


def _collect_properties(
    runs: list[RunRecords], index: int, stages: pd.DataFrame
) -> dict[str, float]:
    """The properties of one stage's model: the ladder's size before training; NaN for what only
    training tells.
    """
    config = runs[0].line.config
    rung = config["model"]["ladder"][index]
    done = [line for run in runs if (line := find_last(run.stages[index], DoneLine))]
    steps = [{phase["name"]: phase["steps"] for phase in line.phases} for line in done]
    hidden = stages["hidden_size"].iloc[0] if len(stages) else rung["hidden_size"]
    return {
        "parameters": stages["parameters"].mean(),
        "layers": stages["layers"].iloc[0] if len(stages) else rung["layers"],
        "hidden size": hidden,
        "heads": hidden / config["model"]["head_size"],
        "feed-forward size": 4 * hidden,
        "learning rate": pick_for_stage(config["training"]["learning_rate"], index),
        "recover steps": pd.Series([line.get("recover") for line in steps], dtype=float).mean(),
        "adapt steps": pd.Series([line.get("adapt") for line in steps], dtype=float).mean(),
        "warm-up": pick_for_stage(config["training"]["warmup"], index),
        "train wall time": stages["seconds"].mean(),
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
        of_paper = all(study.printed.get(suite, suite) for suite in study.suites)
        printed = {(v.row, v.column): v for v in self.printed if of_paper}
        tasks = [task for part in study.parts for task in part.runs[0].line.tasks if task["domain"]]
        by_title = {task["title"] or task["name"]: task for task in tasks}
        rows = [
            TableRow(
                name,
                tuple(
                    add_printed(Cell(text=show(task)), printed.get((name, title)))
                    for title, task in by_title.items()
                ),
            )
            for name, show in SETTINGS.items()
        ]
        below = [] if tasks else ["This suite has no downstream tasks."]
        return self.finish_table(
            [Column(title) for title in by_title], [Block("", tuple(rows))], below, "Setting"
        )
