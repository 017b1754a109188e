"""Tables of AP and AP+ after each domain."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from analysis import metrics, notes
from analysis.exhibits import TableExhibit, View
from analysis.metrics import AP, AP_PLUS, PERPLEXITIES, Metric
from analysis.study import Study, of_text
from analysis.tables import Block, Cell, Column, Table, TableRow, mark_best, number
from benchmark.settings.names import UNIGRAM, UNTOUCHED, slug

Place = tuple[int, Metric]  # of a column: a stage, and what is measured after it


@dataclass(frozen=True, kw_only=True)
class PerplexityTable(TableExhibit):
    """AP and AP+ of every row of a suite after each domain; a block a suite. AP+ begins with the second domain.

    `only`: the rows to show of a suite, where it is not all of them.
    """

    only: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def build(self, study: Study, view: View = "ours") -> Table:
        suites = self.suites(study)
        titles = max((study.stage_titles(suite) for suite in suites), key=len)
        places = [(stage, metric) for stage in range(len(titles)) for metric in PERPLEXITIES if stage or metric is AP]
        columns = [Column(metric.name, titles[stage], metric.lower) for stage, metric in places]
        blocks = [mark_best(self._block(study, suite, places, view), columns, study.references) for suite in suites]
        below = [*notes.missing(study, blocks, suites), *notes.probes(study, suites), *notes.notes(study, suites)]
        return self.table(columns, blocks, below, view)

    def _block(self, study: Study, suite: str, places: Sequence[Place], view: View) -> Block:
        ends = study.ends[study.ends["suite"] == suite].groupby(["row", "stage"])
        values = {metric: ends[metric.column].agg(tuple).to_dict() for metric in PERPLEXITIES}
        done = study.stages[(study.stages["suite"] == suite) & study.stages["done"]]
        untrained = set(zip(done["row"], done["stage"], strict=True)) - set(values[AP])
        printed = self._printed(self.printed_block(study, suite)) if view == "both" else {}
        chosen = self.only.get(suite, ())
        rows = []
        for label, run in {run.row: run for run in study.of(suite) if not chosen or run.row in chosen}.items():
            cells = []
            for stage, metric in places:
                # a method may train nothing in early stages: then there is no AP, nor is a later AP+ above anything
                needed = range(stage + 1) if metric is AP_PLUS else [stage]
                if stage < len(run.domains) and not untrained & {(label, earlier) for earlier in needed}:
                    measured = values[metric].get((label, stage), ())
                    beside = printed.get((slug(label), stage, metric.name), "")
                    cells.append(Cell(measured, printed=beside, missing=not measured))
                else:
                    cells.append(Cell())
            rows.append(TableRow((label,), tuple(cells)))
        if not chosen:
            rows += _rows_to_compare_with(study, suite, places)
        return Block(self.heading(study, suite), tuple(rows), suite)

    def _printed(self, block: str) -> dict[tuple[str, int, str], str]:
        """What the paper has in a block, by row, stage and metric."""
        values = [(v, v.value) for v in self.printed if v.block == block]
        return {(slug(v.row), int(v.stage) - 1, v.metric): number(x, 2) for v, x in values if x is not None}


def _rows_to_compare_with(study: Study, suite: str, places: Sequence[Place]) -> Iterator[TableRow]:
    """AP of each start model, untouched, and of the unigram distributions, on the domains that have come so far."""
    for name, runs in study.starts(suite).items():
        found = []
        for run in runs:
            values = [of_text(run.start, domain.name) for domain in run.domains]
            found.append(metrics.average_perplexity(values, np.arange(len(values))).tolist())
        yield _not_competing(name + UNTOUCHED, found, places)
    unigram = {run.seed: [run.line.unigram[d.name] for d in run.domains] for run in study.on_most_texts(suite)}
    yield _not_competing(UNIGRAM, list(unigram.values()), places)


def _not_competing(label: str, orders: list[list[float]], places: Sequence[Place]) -> TableRow:
    """A row to compare with: a value for each column of AP, by seed in `orders`."""
    if all(order == orders[0] for order in orders):  # then it is one number, whatever the seed
        orders = orders[:1]
    cells = [
        Cell(tuple(order[stage] for order in orders if stage < len(order))) if metric is AP else Cell()
        for stage, metric in places
    ]
    return TableRow((label,), tuple(cells), competes=False)
