"""The table of the same rows with a suite's own options, with tuned ones, and with the search charged."""

from __future__ import annotations

from dataclasses import dataclass

from analysis import notes
from analysis.exhibits import TableExhibit, View
from analysis.pretraining import METRICS
from analysis.study import Study
from analysis.tables import Block, Cell, Column, Table, TableRow, mark_best

WAYS = {"Own options": "", "Tuned": "-tuned", "Tuned, search charged": "-tuned-charged"}  # to ends of suites' names


@dataclass(frozen=True, kw_only=True)
class TuningTable(TableExhibit):
    """AP and AP+ after the last domain, a block a suite; tuned runs are those of `study.tuned`."""

    def build(self, study: Study, view: View = "ours") -> Table:
        columns = [Column(metric, way, lower=True) for way in WAYS for metric in METRICS]
        if view == "printed":
            return self.table(columns, [], [], view)
        everything = Study(study.name, [*study.runs, *study.tuned]) if study.tuned else study
        blocks, below = [], []
        for suite in study.suites:
            names = [suite + end for end in WAYS.values()]
            last = len(study.of(suite)[0].domains) - 1
            ends = everything.ends[everything.ends["stage"] == last].groupby(["suite", "row"])
            values = ends[list(METRICS.values())].agg(tuple).to_dict("index")
            rows = []
            for row in dict.fromkeys(run.row for run in study.of(suite)):
                found = [values.get((name, row), {}).get(metric, ()) for name in names for metric in METRICS.values()]
                rows.append(TableRow((row,), tuple(Cell(one, missing=not one) for one in found)))
            blocks.append(mark_best(Block(self.heading(study, suite), tuple(rows), suite), columns, study.references))
            for way, end in WAYS.items():
                below += [f"{way}: {note}" for note in notes.probes(everything, [suite + end])]
            below += notes.notes(everything, [name for name in names if everything.of(name)])
        if any(cell.missing for block in blocks for row in block.rows for cell in row.cells):
            below.append(
                "-- is not measured yet; `python run_all.py run SUITE` fills in own options, `tune` and `run SUITE "
                "--options FILE` tuned ones, and `--charge-search` those whose search is charged."
            )
        return self.table(columns, blocks, below, view)
