"""The table of regrets: how much worse than models that are trained anew on all domains so far."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from analysis import metrics, notes
from analysis.exhibits import TableExhibit, View
from analysis.metrics import Floats
from analysis.study import Study, of_text
from analysis.tables import Block, Cell, Column, Table, TableRow, mark_best
from benchmark.records import RunRecords

ORACLE = "oracle"  # the method that others are measured against
MEANS = (
    Column("In distribution", lower=True),
    Column("Backward", lower=True),
    Column("Forward", lower=True),
)


@dataclass(frozen=True, kw_only=True)
class RegretTable(TableExhibit):
    """One line a row of a suite: means of its regrets over the matrix of stages and domains, and those at its end.

    Runs that finished, each against the oracle of its seed (definitions: `analysis.metrics.regrets`).
    """

    def build(self, study: Study, view: View = "ours") -> Table:
        if view == "printed":
            return self.table(MEANS, [], [], view)
        suites = self.suites(study)
        titles = max((study.stage_titles(suite) for suite in suites), key=len)
        columns = (*MEANS, *(Column(title, "After the last domain", lower=True) for title in titles))
        found = [self._block(study, suite, len(columns)) for suite in suites]
        blocks = [mark_best(block, columns, study.references) for block in found]
        about = (
            "Nats above the oracle of a text, a model that was trained anew on all domains up to that text's, for what "
            "all stages up to it cost; columns are domains in the order of the stream."
        )
        below = [about, *notes.missing(study, blocks, suites), *notes.notes(study, suites)]
        return self.table(columns, blocks, below, view)

    def _block(self, study: Study, suite: str, width: int) -> Block:
        runs = study.of(suite)
        oracles = {run.seed: loss_matrix(run) for run in runs if run.line["method"] == ORACLE}
        measured: dict[str, list[tuple[float, ...]]] = {run.row: [] for run in runs}
        for run in runs:
            if run.seed in oracles:
                regrets = metrics.regrets(loss_matrix(run), oracles[run.seed])
                if np.isfinite(regrets).all():
                    measured[run.row].append((*metrics.mean_regrets(regrets), *regrets[-1]))
        rows = tuple(_row(row, lines, width) for row, lines in measured.items())
        return Block(self.heading(study, suite), rows, suite)


def loss_matrix(run: RunRecords) -> Floats:
    """The perplexity of each domain after each stage, (D, D); NaN for what is not measured."""
    names = [domain["name"] for domain in run.domains]
    found = [[of_text(measured, name) for name in names] for measured in run.matrix]
    return np.array(found + [[np.nan] * len(names)] * (len(names) - len(found)), float)


def _row(label: str, runs: Sequence[tuple[float, ...]], width: int) -> TableRow:
    if not runs:
        return TableRow((label,), (Cell(missing=True),) * width)
    cells = [Cell(values, 3) for values in zip(*runs, strict=True)]
    return TableRow((label,), (*cells, *[Cell()] * (width - len(cells))))
