"""The table of what the paper does not measure: forgetting in nats, transfer, and efficiency."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from analysis import metrics, notes
from analysis.exhibits import TableExhibit, View
from analysis.study import Curve, Study
from analysis.tables import Block, Cell, Column, Table, TableRow, mark_best

TARGET = "ER"
COLUMNS = (
    Column("AP", lower=True),
    Column("AP⁺", lower=True),
    Column("log AP⁺", lower=True),
    Column("Forward transfer", lower=False),
    Column("Mean AP", lower=True),
    Column(f"Seconds to {TARGET}'s AP", lower=True),
    Column(f"Tokens to {TARGET}'s AP", lower=True),
)


@dataclass(frozen=True, kw_only=True)
class LifelongTable(TableExhibit):
    """One line a row of a suite, measured on runs that finished (definitions: `analysis.metrics`)."""

    def build(self, study: Study, view: View = "ours") -> Table:
        if view == "printed":
            return self.table(COLUMNS, [], [], view)
        blocks = [mark_best(self._block(study, suite), COLUMNS) for suite in self.suites(study)]
        about = (
            "log AP⁺ and transfer in nats. log AP⁺ with the sign turned is backward transfer; forward transfer is how "
            "much better than by its unigram distribution a domain is predicted before its own stage. Mean AP: over "
            f"the budget from the second domain on. Seconds and tokens: charged in the last stage until its AP is "
            f"{TARGET}'s final one, mean of the seeds that get there."
        )
        suites = self.suites(study)
        below = [about, *notes.missing(blocks, suites), *notes.notes(study, suites)]
        return self.table(COLUMNS, blocks, below, view)

    def _block(self, study: Study, suite: str) -> Block:
        curves = study.curves(suite)
        targets = {seed: curve["ap"][-1] for (row, seed), curve in curves.items() if row == TARGET}
        unigram = study.unigram(suite)
        names = {(run.row, run.seed): [domain["name"] for domain in run.domains] for run in study.of(suite)}
        measured: dict[str, list[tuple[float, ...]]] = {run.row: [] for run in study.of(suite)}
        for (row, seed), curve in curves.items():
            measured[row].append(
                _measure(curve, [unigram[name] for name in names[row, seed]], targets.get(seed, np.nan))
            )
        return Block(self.heading(study, suite), tuple(_row(row, lines) for row, lines in measured.items()))


def _measure(curve: Curve, unigram: list[float], target: float) -> tuple[float, ...]:
    """The columns' values of one run."""
    ends = np.flatnonzero(curve["is_end"])
    matrix = np.full((len(unigram), len(unigram)), np.nan)  # a method may leave stages out
    matrix[curve["stage"][ends]] = np.stack(list(curve["perplexity"][ends]))[:, : len(unigram)]
    later, last = curve["stage"] > 0, curve["stage"] == len(unigram) - 1
    to_target = [
        metrics.budget_to_reach(curve[unit][last], curve["ap"][last], target)
        - (curve[unit][ends[-2]] if len(ends) > 1 else 0)
        for unit in ("seconds", "tokens")
    ]
    return (
        *(curve[name][-1] for name in ("ap", "ap_plus", "log_ap_plus")),
        metrics.forward_transfer(matrix, unigram),
        metrics.area_under_curve(curve["charged"][later], curve["ap"][later]),
        *to_target,
    )


def _row(label: str, runs: list[tuple[float, ...]]) -> TableRow:
    cells = map(_cell, zip(*runs, strict=True), COLUMNS) if runs else (Cell(missing=True) for _ in COLUMNS)
    return TableRow((label,), tuple(cells))


def _cell(values: tuple[float, ...], column: Column) -> Cell:
    found = tuple(value for value in values if not np.isnan(value))
    digits = 3 if "log" in column.name or "transfer" in column.name else 0 if "Tokens" in column.name else 2
    return Cell(found, digits, text="" if found else "never" if " to " in column.name else "")
