"""The table that ranks the same runs by every unit of a budget that was recorded: wall time, steps, tokens, FLOPs."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from itertools import compress

import numpy as np
import pandas as pd

from analysis import notes
from analysis.exhibits import TableExhibit, View
from analysis.study import Curve, Study
from analysis.tables import Block, Cell, Column, Table, TableRow, mark_best
from benchmark.records import ENOUGH_CORES
from benchmark.settings.units import UNITS, recorded


@dataclass(frozen=True, kw_only=True)
class UnitTable(TableExhibit):
    """AP in the last stage when every run has spent as much there as the run that spent least, in each unit.

    The stages before are as they were, at the suite's budget. Only runs that finished are compared, and in wall time
    only those that had their cores in the last stage. Rows that pool the budgets of several stages are left out: cut at
    the length of one stage they are runs that nobody would make.
    """

    def build(self, study: Study, view: View = "ours") -> Table:
        columns = [Column(name, UNITS[unit].label, lower) for unit in recorded() for name, lower in _COLUMNS]
        if view == "printed":
            return self.table(columns, [], [], view)
        suites, blocks, below, shown = self.suites(study), [], [], []
        for suite in suites:
            curves = {key: curve for key, curve in study.curves(suite).items() if key[0] not in study.pooled}
            slowed = _slowed(study, suite) & curves.keys()
            values = at_equal_cost(curves, slowed)
            ranks = values.groupby(["row"]).mean().rank(method="min")
            rows = [row for row in dict.fromkeys(run.row for run in study.of(suite)) if row not in study.pooled]
            lines = [TableRow((row,), tuple(_cells(row, values, ranks))) for row in rows]
            blocks.append(mark_best(Block(self.heading(study, suite), tuple(lines), suite), columns))
            below += turning_points(ranks, study.of(suite)[0].line["config"]["budget"]["unit"])
            below += _left_out(study, suite, len(slowed), len(curves))
            shown += rows
        about = "A unit that is empty was not recorded for every run. Ranks are of the means, and not tested."
        whole = [_of_all_runs(block) for block in blocks]
        below = [about, *below, *notes.missing(study, whole, suites), *notes.notes(study, suites, shown)]
        return self.table(columns, blocks, below, view)


_COLUMNS = (("AP", True), ("Rank", None))


def at_equal_cost(
    curves: Mapping[tuple[str, int], Curve], slowed: Collection[tuple[str, int]] = frozenset()
) -> pd.DataFrame:
    """The AP of each finished run (by row and seed) at the smallest last stage of all, a column a unit.

    Between evaluations log AP is linear in the cost. NaN where a run did not record a unit; wall times of `slowed` runs
    count as not recorded.
    """
    last = {key: _last_stage(curve) for key, curve in curves.items()}
    index = pd.MultiIndex.from_tuples(list(curves), names=["row", "seed"])
    values = pd.DataFrame(np.nan, index=index, columns=recorded())
    for unit in recorded():
        timed = [key for key in last if not (UNITS[unit].is_wall_time and key in slowed)]
        least = np.min([last[key][unit][-1] for key in timed]) if timed else np.nan
        if least > 0:
            for key in timed:
                values.loc[key, unit] = np.exp(np.interp(least, last[key][unit], np.log(last[key]["ap"])))
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


def _slowed(study: Study, suite: str) -> set[tuple[str, int]]:
    """The runs, by row and seed, whose last stage had less than ENOUGH_CORES of its cores."""
    stages, last = study.stages, len(study.of(suite)[0].domains) - 1
    found = stages[(stages["suite"] == suite) & (stages["stage"] == last) & (stages["cores"] < ENOUGH_CORES)]
    return {(row, seed) for row, seed in found[["row", "seed"]].itertuples(index=False)}


def _left_out(study: Study, suite: str, slowed: int, finished: int) -> list[str]:
    """Say which rows and runs are not compared, and why."""
    pooled = [row for row in dict.fromkeys(run.row for run in study.of(suite)) if row in study.pooled]
    found = [f"Left out, as stages of theirs take the budgets of several: {', '.join(pooled)}."] if pooled else []
    if slowed:
        runs = f"{slowed} of {finished} runs"
        found.append(f"By wall time {runs} are left out: other programs took cores in their last stage.")
    return found


def _of_all_runs(block: Block) -> Block:
    """The cells of units that other programs do not change: where these lack a seed it has not run."""
    kept = [not UNITS[unit].is_wall_time for unit in recorded() for _ in _COLUMNS]
    rows = (replace(row, cells=tuple(compress(row.cells, kept))) for row in block.rows)
    return replace(block, rows=tuple(rows))


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
