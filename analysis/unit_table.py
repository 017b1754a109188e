"""The table that ranks the same runs by every unit of a budget that was recorded: wall time, steps, tokens, FLOPs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from analysis import notes
from analysis.exhibits import TableExhibit, View
from analysis.study import Curve, Study
from analysis.tables import Block, Cell, Column, Table, TableRow, mark_best
from benchmark.settings.units import UNITS, recorded


@dataclass(frozen=True, kw_only=True)
class UnitTable(TableExhibit):
    """AP in the last stage when every run has spent as much there as the run that spent least, in each unit.

    The stages before are as they were, at the suite's budget. Only runs that finished are compared.
    """

    def build(self, study: Study, view: View = "ours") -> Table:
        columns = [Column(name, UNITS[unit].label, lower) for unit in recorded() for name, lower in _COLUMNS]
        if view == "printed":
            return self.table(columns, [], [], view)
        suites, blocks, turns = self.suites(study), [], []
        for suite in suites:
            values = at_equal_cost(study.curves(suite))
            compared = values.drop(index=study.references, level="row", errors="ignore")
            ranks = compared.groupby(["row"]).mean().rank(method="min")
            rows = list(dict.fromkeys(run.row for run in study.of(suite)))
            lines = [TableRow((row,), tuple(_cells(row, values, ranks))) for row in rows]
            blocks.append(mark_best(Block(self.heading(study, suite), tuple(lines), suite), columns, study.references))
            turns += turning_points(ranks, study.of(suite)[0].line["config"]["budget"]["unit"])
        about = "A unit that is empty was not recorded for every run. Ranks are of the means, and not tested."
        below = [about, *turns, *notes.missing(study, blocks, suites), *notes.notes(study, suites)]
        return self.table(columns, blocks, below, view)


_COLUMNS = (("AP", True), ("Rank", None))


def at_equal_cost(curves: dict[tuple[str, int], Curve]) -> pd.DataFrame:
    """The AP of each finished run (by row and seed) at the smallest last stage of all, a column a unit.

    Between evaluations log AP is linear in the cost. NaN where a run did not record a unit.
    """
    last = {key: _last_stage(curve) for key, curve in curves.items()}
    index = pd.MultiIndex.from_tuples(list(curves), names=["row", "seed"])
    values = pd.DataFrame(np.nan, index=index, columns=recorded())
    for unit in recorded():
        least = np.min([stage[unit][-1] for stage in last.values()]) if last else np.nan
        if least > 0:
            logs = [np.interp(least, stage[unit], np.log(stage["ap"])) for stage in last.values()]
            values[unit] = np.exp(logs)
    return values


def turning_points(ranks: pd.DataFrame, unit: str) -> list[str]:
    """Say of each unit which rows rank otherwise in it than in the budget's own, and how."""
    found = []
    for other in ranks.columns if unit in ranks else []:
        moved = ranks[(ranks[other] != ranks[unit]) & ranks[[other, unit]].notna().all(axis=1)]
        if len(moved):
            texts = (f"{row} from {line[unit]:.0f} to {line[other]:.0f}" for row, line in moved.iterrows())
            found.append(f"By {other} instead of {unit} the order turns: {', '.join(texts)}.")
    return found


def _last_stage(curve: Curve) -> Curve:
    """A run's curve in its last stage, its amounts from the beginning of that stage."""
    inside = curve["stage"] == curve["stage"][-1]
    before = np.flatnonzero(~inside)
    spent = {unit: curve[unit][before[-1]] if len(before) else 0.0 for unit in recorded()}
    return {"ap": curve["ap"][inside], **{unit: curve[unit][inside] - spent[unit] for unit in recorded()}}


def _cells(row: str, values: pd.DataFrame, ranks: pd.DataFrame) -> list[Cell]:
    if row not in values.index.unique("row"):
        return [Cell(missing=True)] * (len(_COLUMNS) * len(recorded()))
    cells = []
    for unit in recorded():
        found = tuple(values.xs(row, level="row")[unit].dropna())
        cells += [Cell(found), Cell(text=f"{ranks[unit][row]:.0f}" if found and row in ranks.index else "")]
    return cells
