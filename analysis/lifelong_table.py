"""The table of what the paper does not measure: forgetting in nats, transfer, and efficiency."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from analysis import metrics, notes
from analysis.exhibits import TableExhibit, View
from analysis.study import Curve, Study, of_text
from analysis.tables import Block, Cell, Column, Table, TableRow, mark_best
from benchmark.record_lines import Measured
from benchmark.settings.names import UNTOUCHED

TARGET = "ER"
SINCE_START = "Nats above the start model"
COLUMNS = (
    Column("AP", lower=True),
    Column("AP⁺", lower=True),
    Column("log AP⁺", lower=True),
    Column("Bits per byte", lower=True),
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
        suites = self.suites(study)
        runs = [run for suite in suites for run in study.of(suite)]
        probes = {probe["name"]: probe["title"] for run in runs for probe in run.line["probes"]}
        groups = ["Probe perplexity", *[SINCE_START] * any(run.start for run in runs)]
        columns = (*COLUMNS, *(Column(title, group, lower=True) for group in groups for title in probes.values()))
        found = [self._block(study, suite, columns, list(probes)) for suite in suites]
        blocks = [mark_best(block, columns, study.references) for block in found]
        about = (
            "log AP⁺ and transfer in nats, bits per byte a mean over the domains. log AP⁺ with the sign turned is "
            "backward transfer; forward transfer is how much better than by its unigram distribution a domain is "
            "predicted before its own stage. Mean AP: over the budget from the second domain on. Seconds and tokens: "
            f"charged in the last stage until its AP is {TARGET}'s final one, mean of the seeds that get there."
        )
        if SINCE_START in groups:
            about += f" {SINCE_START}: what was forgotten of a probe, the log of its perplexity over the untouched one."
        below = [about, *notes.missing(study, blocks, suites), *notes.notes(study, suites)]
        return self.table(columns, blocks, below, view)

    def _block(self, study: Study, suite: str, columns: Sequence[Column], probes: Sequence[str]) -> Block:
        curves = study.curves(suite)
        targets = {seed: curve["ap"][-1] for (row, seed), curve in curves.items() if row == TARGET}
        runs = {(run.row, run.seed): run for run in study.of(suite)}
        measured: dict[str, list[tuple[float, ...]]] = {run.row: [] for run in study.of(suite)}
        for (row, seed), curve in curves.items():
            run = runs[row, seed]
            own = {domain["name"]: run.line["unigram"].get(domain["name"], np.nan) for domain in run.domains}
            values = _measure(curve, run.matrix[-1], own, targets.get(seed, np.nan), probes)
            since = (np.log(of_text(run.matrix[-1], name) / of_text(run.start, name)) for name in probes)
            measured[row].append((*values, *since)[: len(columns)])
        rows = [_row(row, lines, columns) for row, lines in measured.items()]
        return Block(self.heading(study, suite), (*rows, *_starts(study, suite, columns, probes)), suite)


def _measure(
    curve: Curve,
    end: Mapping[str, Measured],
    unigram: Mapping[str, float],
    target: float,
    probes: Sequence[str],
) -> tuple[float, ...]:
    """The columns' values of one run. `end` is what it measures at its end, by domain or probe."""
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
        float(np.mean([of_text(end, name, "bits_per_byte") for name in unigram])),
        metrics.forward_transfer(matrix, list(unigram.values())),
        metrics.area_under_curve(curve["charged"][later], curve["ap"][later]),
        *to_target,
        *(of_text(end, name) for name in probes),
    )


def _starts(study: Study, suite: str, columns: Sequence[Column], probes: Sequence[str]) -> Iterator[TableRow]:
    """What each start model measures, untouched; the order of the domains is nothing to these numbers."""
    for name, runs in study.starts(suite).items():
        start, names = runs[0].start, [domain["name"] for domain in runs[0].domains]
        values = {
            "AP": float(metrics.average_perplexity([of_text(start, one) for one in names], len(names) - 1)),
            "Bits per byte": float(np.mean([of_text(start, one, "bits_per_byte") for one in names])),
        }
        known = [values.get(column.name, np.nan) for column in COLUMNS] + [of_text(start, one) for one in probes]
        known += [np.nan] * (len(columns) - len(known))
        pairs = zip(known, columns, strict=True)
        cells = (Cell() if np.isnan(value) else _cell((value,), column) for value, column in pairs)
        yield TableRow((name + UNTOUCHED,), tuple(cells), competes=False)


def _row(label: str, runs: list[tuple[float, ...]], columns: Sequence[Column]) -> TableRow:
    cells = map(_cell, zip(*runs, strict=True), columns) if runs else (Cell(missing=True) for _ in columns)
    return TableRow((label,), tuple(cells))


def _cell(values: tuple[float, ...], column: Column) -> Cell:
    found = tuple(value for value in values if not np.isnan(value))
    in_nats_or_bits = column.group == SINCE_START or any(word in column.name for word in ("log", "transfer", "Bits"))
    digits = 3 if in_nats_or_bits else 0 if "Tokens" in column.name else 2
    return Cell(found, digits, text="" if found else "never" if " to " in column.name else "")
