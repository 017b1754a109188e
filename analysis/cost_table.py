"""The table of forgetting against cost: what each row forgets, what that took, and which rows nothing beats in both."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from analysis import metrics, notes
from analysis.cost_figure import ends_of, units_apart
from analysis.exhibits import TableExhibit, View
from analysis.study import Study
from analysis.tables import Block, Cell, Column, Table, TableRow, mark_best
from benchmark.settings.units import UNITS, recorded


@dataclass(frozen=True, kw_only=True)
class ForgettingCostTable(TableExhibit):
    """AP+ after the last stage and what the whole stream cost, one line a row, on runs that finished.

    Costs are over those of the row that spent least; the Pareto fronts are those of `ForgettingCostFigure`.
    """

    def build(self, study: Study, view: View = "ours") -> Table:
        costs = [Column(UNITS[unit].label.partition(" (")[0]) for unit in recorded()]
        columns = [Column("AP⁺", lower=True), *costs, Column("On the Pareto front by")]
        if view == "printed":
            return self.table(columns, [], [], view)
        suites = self.suites(study)
        found = [Block(self.heading(study, suite), tuple(_rows(study, suite)), suite) for suite in suites]
        blocks = [mark_best(block, columns, study.references) for block in found]
        about = (
            "Costs are of the whole stream, over those of the row that spent least. No row is at once cheaper and less "
            "forgetful than one on the Pareto front."
        )
        below = [about, *notes.missing(study, blocks, suites), *notes.notes(study, suites)]
        return self.table(columns, blocks, below, view)


def _rows(study: Study, suite: str) -> Iterator[TableRow]:
    ends = ends_of(study, suite)
    means = ends.groupby("row")[["ap_plus", *recorded()]].mean()
    fronts = {
        unit: means.index[metrics.pareto_front(means[unit], means["ap_plus"])]
        for unit in units_apart(ends, study, suite)
    }
    for row in dict.fromkeys(run.row for run in study.of(suite)):
        mine = ends[ends["row"] == row]
        spent = [tuple((mine[unit] / means[unit].min()).dropna()) for unit in recorded()]
        on = ", ".join(unit for unit, front in fronts.items() if row in front)
        forgotten = Cell(tuple(mine["ap_plus"]), missing=mine.empty)
        yield TableRow((row,), (forgotten, *map(Cell, spent), Cell(text=on)))
