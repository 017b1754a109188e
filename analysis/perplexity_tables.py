"""Tables of AP and AP+ after each domain."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from analysis import metrics, notes
from analysis.exhibits import TableExhibit, View
from analysis.metrics import AP, AP_PLUS, PERPLEXITIES
from analysis.study import Study, of_text
from analysis.tables import Block, Cell, Column, Table, TableRow, mark_best, number
from benchmark.settings.names import UNIGRAM, UNTOUCHED, slug


@dataclass(frozen=True, kw_only=True)
class PerplexityTable(TableExhibit):
    """AP and AP+ of every row of a suite after each domain; a block a suite. AP+ begins with the second domain.

    `only`: the rows to show of a suite, where it is not all of them.
    """

    only: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def build(self, study: Study, view: View = "ours") -> Table:
        suites = self.suites(study)
        titles = max((study.stage_titles(suite) for suite in suites), key=len)
        pairs = [(title, metric) for i, title in enumerate(titles) for metric in PERPLEXITIES if i or metric is AP]
        columns = [Column(metric.name, title, metric.lower) for title, metric in pairs]
        found = [self._block(study, suite, columns, view) for suite in suites]
        blocks = [mark_best(block, columns, study.references) for block in found]
        below = [*notes.missing(study, blocks, suites), *notes.probes(study, suites), *notes.notes(study, suites)]
        return self.table(columns, blocks, below, view)

    def _block(self, study: Study, suite: str, columns: list[Column], view: View) -> Block:
        ends = study.ends[study.ends["suite"] == suite]
        values = {metric.name: ends[metric.column].to_numpy() for metric in PERPLEXITIES}
        cells = {
            place: {name: tuple(column[at].tolist()) for name, column in values.items()}
            for place, at in ends.groupby(["row", "stage"], sort=False).indices.items()
        }
        block = self.printed_block(study, suite) if view == "both" else None
        printed = {
            (slug(v.row), int(v.stage) - 1, v.metric): v.value
            for v in self.printed
            if v.block == block and v.value is not None
        }
        chosen = self.only.get(suite, ())
        runs = {run.row: run for run in study.of(suite) if not chosen or run.row in chosen}
        done = study.stages[(study.stages["suite"] == suite) & study.stages["done"]]
        untrained = set(zip(done["row"], done["stage"], strict=True)) - set(cells)
        rows = [
            TableRow(
                (label,), tuple(_cell(label, c, len(run.domains), cells, printed, untrained) for c in _places(columns))
            )
            for label, run in runs.items()
        ]
        if not chosen:
            unigram = {run.seed: [run.line.unigram[d.name] for d in run.domains] for run in study.on_most_texts(suite)}
            rows += [*_starts(study, suite, columns), _not_competing(UNIGRAM, list(unigram.values()), columns)]
        return Block(self.heading(study, suite), tuple(rows), suite)


def _places(columns: list[Column]) -> list[tuple[int, str]]:
    """The stage and the metric of each column."""
    titles = list(dict.fromkeys(column.group for column in columns))
    return [(titles.index(column.group), column.name) for column in columns]


def _cell(
    label: str,
    place: tuple[int, str],
    stages: int,
    cells: Mapping[Any, Mapping[Any, tuple[float, ...]]],
    printed: Mapping[tuple[str, int, str], float],
    untrained: set[tuple[str, int]],
) -> Cell:
    stage, metric = place
    # a method may train nothing in early stages: then there is no AP, nor anything for a later AP+ to be above
    needed = range(stage + 1) if metric == AP_PLUS.name else (stage,)
    if stage >= stages or any((label, one) in untrained for one in needed):
        return Cell()
    values = cells.get((label, stage), {}).get(metric, ())
    beside = printed.get((slug(label), *place))
    return Cell(values, printed="" if beside is None else number(beside, 2), missing=not values)


def _starts(study: Study, suite: str, columns: list[Column]) -> Iterator[TableRow]:
    """The AP of each start model, untouched, on the domains that have come with each column."""
    for name, runs in study.starts(suite).items():
        found = []
        for run in runs:
            values = [of_text(run.start, domain.name) for domain in run.domains]
            found.append(metrics.average_perplexity(values, np.arange(len(values))).tolist())
        yield _not_competing(name + UNTOUCHED, found, columns)


def _not_competing(label: str, orders: list[list[float]], columns: list[Column]) -> TableRow:
    """A row to compare with: a value for each column of AP, by seed in `orders`."""
    if all(order == orders[0] for order in orders):  # then it is one number, whatever the seed
        orders = orders[:1]
    cells = [
        Cell(tuple(order[stage] for order in orders if stage < len(order))) if metric == "AP" else Cell()
        for stage, metric in _places(columns)
    ]
    return TableRow((label,), tuple(cells), competes=False)
