"""Tables of perplexities: AP and AP+ after each domain, and measures beyond the paper.

The latter are forgetting in nats, transfer, efficiency, and costs in other units.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from analysis import metrics, notes
from analysis.exhibits import TableExhibit, add_printed
from analysis.metrics import AP, AP_PLUS, PERPLEXITIES, Floats, Metric
from analysis.study import Study, select_measure
from analysis.tables import Block, Cell, Column, Table, TableRow, mark_best
from benchmark.metrics import average_perplexity
from benchmark.settings.names import make_slug
from benchmark.settings.units import UNITS, list_recorded_units
from benchmark.store import ENOUGH_CORES, MEASURABLE, RunRecords

LONG = 12  # stages at most, of which a page shows each
Place = tuple[int, Metric]  # of a column: a stage, and the metric after it


@dataclass(frozen=True, kw_only=True)
class PerplexityTable(TableExhibit):
    """AP and AP+ of every row of a suite after each domain; a block a suite. AP+ begins with the
    second domain.

    `only`: the rows to show of a suite, where it is not all of them.
    """

    only: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def _build(self, study: Study) -> Table:
        titles = study.column_titles
        places = [
            (stage, metric)
            for stage in range(len(titles))
            for metric in PERPLEXITIES
            if stage or metric is AP
        ]
        columns = [
            Column(
                metric.name,
                titles[stage],
                metric.lower,
                in_csv_alone=_is_between(stage, len(titles)),
            )
            for stage, metric in places
        ]
        blocks = [self._make_block(part, places) for part in study.parts]
        below = notes.note_probes(study)
        for part in study.parts:
            for stage, title in enumerate(part.stage_titles[:-1]):
                below += notes.note_without_copies(part, title, stage)
        return self.finish_measurements(study, columns, blocks, below)

    def _make_block(self, part: Study, places: Sequence[Place]) -> Block:
        ends = part.ends.groupby(["row", "stage"])
        values = {metric: ends[metric.column].agg(tuple).to_dict() for metric in PERPLEXITIES}
        done = part.stages[part.stages["done"]]
        untrained = set(zip(done["row"], done["stage"], strict=True)) - set(values[AP])
        printed = self.select_printed(part)
        chosen = self.only.get(part.suite, ())
        rows = []
        for label, run in {
            run.row: run for run in part.runs if not chosen or run.row in chosen
        }.items():
            cells, row, same = [], make_slug(label), True
            for stage, metric in places:
                title = run.domains[stage].title if stage < len(run.domains) else ""
                # AP after a stage is of all domains so far
                same &= metric is not AP or (row, str(stage + 1), title, "AP") in printed
                # a method may train nothing in early stages: then there is no AP, nor is a later
                # AP+ above anything
                needed = range(stage + 1) if metric is AP_PLUS else [stage]
                if stage < len(run.domains) and not untrained & {
                    (label, earlier) for earlier in needed
                }:
                    measured = values[metric].get((label, stage), ())
                    beside = (
                        printed.get((row, str(stage + 1), title, metric.name)) if same else None
                    )
                    cells.append(add_printed(Cell(measured, missing=not measured), beside))
                else:
                    cells.append(Cell())
            rows.append(TableRow(label, tuple(cells)))
        if not chosen:
            rows += _make_reference_rows(part, places)
        return Block(self.choose_heading(part), tuple(rows), part.suite)


def _is_between(stage: int, stages: int) -> bool:
    """Whether a page leaves a stage out: of a long stream it has six, evenly apart, the last one
    among them.
    """
    return stages > LONG and (stages - 1 - stage) % -(-stages // 6) > 0


def _make_reference_rows(part: Study, places: Sequence[Place]) -> Iterator[TableRow]:
    """AP of each start model, untouched, and of the unigram distributions, on the domains that have
    come so far.
    """
    for name, runs in part.starts.items():
        starts = [
            [select_measure(run.start, domain.name) for domain in run.domains] for run in runs
        ]
        yield _make_reference_row(f"{name}, untouched", starts, places)
    most = part.on_most_texts
    unigram = {run.seed: [run.line.unigram[domain.name] for domain in run.domains] for run in most}
    yield _make_reference_row("Unigram distributions", list(unigram.values()), places)


def _make_reference_row(label: str, orders: list[list[float]], places: Sequence[Place]) -> TableRow:
    """A row to compare with: AP of the perplexities of each seed's `orders` of the domains."""
    averages = [average_perplexity(order, np.arange(len(order))).tolist() for order in orders]
    if all(
        average == averages[0] for average in averages
    ):  # then it is one number, whatever the seed
        averages = averages[:1]
    cells = [
        Cell(tuple(average[stage] for average in averages if stage < len(average)))
        if metric is AP
        else Cell()
        for stage, metric in places
    ]
    return TableRow(label, tuple(cells), competes=False)


TARGET = "ER"
NEVER = -np.inf  # stands for a budget that does not get there
OF_PROBE, SINCE_START = (
    "Probe perplexity",
    "Nats above the start model",
)  # groups of columns, one a probe
COLUMNS = (
    Column("AP", lower=True),
    Column("AP⁺", lower=True),
    Column("log AP⁺", lower=True, digits=3),
    Column("Bits per byte", lower=True, digits=3),
    Column("Forward transfer", lower=False, digits=3),
    Column("Mean AP", lower=True),
    Column(f"Measured seconds to {TARGET}'s AP", lower=True),
    Column(f"Tokens to {TARGET}'s AP", lower=True, digits=0),
)


@dataclass(frozen=True, kw_only=True)
class LifelongTable(TableExhibit):
    """One line a row of a suite, measured on runs that finished (definitions: `analysis.metrics`)."""

    def _build(self, study: Study) -> Table:
        probes = {probe.name: probe.title for run in study.runs for probe in run.line.probes}
        groups = {OF_PROBE: 2} | ({SINCE_START: 3} if any(run.start for run in study.runs) else {})
        columns = (
            *COLUMNS,
            *(
                Column(title, group, True, digits)
                for group, digits in groups.items()
                for title in probes.values()
            ),
        )
        blocks = [self._make_block(part, columns, probes) for part in study.parts]
        about = (
            "log AP⁺ and transfer in nats, bits per byte a mean over the domains. log AP⁺ with the "
            "sign turned is "
            "backward transfer; forward transfer is how much better than by its unigram "
            "distribution a domain is "
            "predicted before its own stage. Mean AP: over the budget from the second domain on. "
            "Seconds and tokens: "
            f"from the begin of the last stage until AP stays at {TARGET}'s final one or below, "
            "mean of the seeds that "
            "get there."
        )
        if SINCE_START in groups:
            about += f" {SINCE_START}: what was forgotten of a probe, the log of its perplexity over the untouched one."
        below = [about, *(note for part in study.parts for note in _note_untimed_runs(part))]
        return self.finish_measurements(study, columns, blocks, below)

    def find_never_best(self, part: Study) -> Collection[str]:
        """Nor rows that counts of tokens beat, as no line here shows these."""
        return part.never_best.union(part.above_unigram["row"])

    def _make_block(
        self, part: Study, columns: Sequence[Column], probes: Mapping[str, str]
    ) -> Block:
        runs = {run.id: run for run in part.runs}
        curves = [(runs[str(id)], curve) for id, curve in part.finished.groupby("run", sort=False)]
        targets = {
            run.seed: curve["ap"].iloc[-1]
            for run, curve in curves
            if run.row == TARGET and (curve["timed"].all() or not _has_timed_budget(run))
        }
        measured: dict[str, list[tuple[float, ...]]] = {run.row: [] for run in part.runs}
        missing = [Cell(missing=True)] * len(columns)
        for run, curve in curves:
            target = targets.get(run.seed, np.nan) if not part.apart & {run.row, TARGET} else np.nan
            measured[run.row].append(_measure(run, curve, target, list(probes)))
        rows = [
            TableRow(
                row, tuple(map(_make_cell, zip(*lines, strict=True), columns) if lines else missing)
            )
            for row, lines in measured.items()
        ]
        return Block(self.choose_heading(part), tuple(rows), part.suite)


def _measure(
    run: RunRecords, curve: pd.DataFrame, target: float, probes: Sequence[str]
) -> tuple[float, ...]:
    """The values of a run, one a column: NEVER for a target that it does not reach, no wall time if
    none is comparable.

    `target` is NaN where there is none. Values above a start model come last; tables without one
    have no columns for them.
    """
    names, end = [domain.name for domain in run.domains], run.matrix[-1]
    later, last = curve[curve["stage"] > 0], _select_last_stage(curve)
    unigram = [run.line.unigram.get(name, np.nan) for name in names]
    reached = [
        metrics.find_budget_to_reach(last[unit], last["ap"], target)
        for unit in ("seconds", "tokens")
    ]
    seconds, tokens = (
        NEVER if np.isnan(value) and not np.isnan(target) else value for value in reached
    )
    return (
        *(curve[name].iloc[-1] for name in ("ap", "ap_plus", "log_ap_plus")),
        float(np.mean([select_measure(end, name, "bits_per_byte") for name in names])),
        metrics.compute_forward_transfer(_make_perplexity_matrix(run), unigram),
        metrics.compute_area_under_curve(later["charged"], later["ap"]),
        seconds if curve["timed"].all() else np.nan,
        tokens,
        *(select_measure(end, name) for name in probes),
        *(np.log(select_measure(end, name) / select_measure(run.start, name)) for name in probes),
    )


def _has_timed_budget(run: RunRecords) -> bool:
    """Whether a run's budget was wall time, of which other programs may have taken some."""
    return UNITS[run.line.config["budget"]["unit"]].is_wall_time


def _make_cell(values: tuple[float, ...], column: Column) -> Cell:
    known = [value for value in values if not np.isnan(value)]
    numbers = tuple(value for value in known if value != NEVER)
    return Cell(numbers, column.digits, text="never" if known and not numbers else "")


def _make_perplexity_matrix(run: RunRecords) -> Floats:
    """The perplexity of each domain after each stage, (D, D); NaN where nothing is measured."""
    names = [domain.name for domain in run.domains]
    rows = [[select_measure(measured, name) for name in names] for measured in run.matrix]
    return np.array(rows + [[np.nan] * len(names)] * (len(names) - len(rows)), float)


@dataclass(frozen=True, kw_only=True)
class UnitTable(TableExhibit):
    """Each run's AP in the last stage, read when it had spent as much there as the run that spent
    least.

    The stages before are as they were, at the suite's budget. Only runs that finished are compared,
    and in wall time only those that are known to have had their cores in the last stage. Rows that
    pool the budgets of several stages are left out: cut at the length of one stage they are runs
    that nobody would make.
    """

    def _build(self, study: Study) -> Table:
        columns = [
            Column(name, UNITS[unit].label, lower)
            for unit in list_recorded_units()
            for name, lower in _OF_UNIT
        ]
        rows = dict.fromkeys(run.row for run in study.runs)
        compared, blocks = study.select_rows(rows.keys() - study.pooled), []
        below = ["Ranks are of the means, and not tested."]
        if pooled := [row for row in rows if row in study.pooled]:
            below.append(
                f"Left out, as stages of theirs take the budgets of several: {', '.join(pooled)}."
            )
        for part in compared.parts:
            values = compare_at_equal_cost(part.finished, part.apart)
            ranks = (
                values.groupby(["row"])
                .mean()
                .drop(index=list(part.apart), errors="ignore")
                .rank(method="min")
            )
            ranks.loc[:, ranks.count() < 2] = np.nan  # one row that is left has no rank
            of_suite = dict.fromkeys(run.row for run in part.runs)
            never = part.apart.union(part.above_unigram["row"])
            lines = tuple(
                TableRow(row, tuple(_make_unit_cells(row, values, ranks))) for row in of_suite
            )
            blocks.append(
                mark_best(Block(self.choose_heading(part), lines, part.suite), columns, never)
            )
            below += [*_note_untimed_runs(part), *_note_empty_costs(part, values)]
        below += [*notes.note_missing_cells(compared, blocks), *notes.collect_notes(compared)]
        warnings = notes.warn_of_counting(compared)
        return self.finish_table(columns, blocks, below, warnings=warnings)


_OF_UNIT = (("AP", True), ("Rank", None))


def compare_at_equal_cost(finished: pd.DataFrame, apart: Collection[str]) -> pd.DataFrame:
    """The AP of each finished run (by row and seed) at the smallest last stage of all, a column a
    unit.

    Between evaluations log AP is linear in the cost. NaN in a unit that a run did not record, and
    in wall time for runs that are not known to have had their cores. Rows that stand `apart` set no
    stage's length; where they spent less they have no number.
    """
    last = {
        key: _select_last_stage(curve)
        for key, curve in finished.groupby(["row", "seed"], sort=False)
    }
    index = pd.MultiIndex.from_tuples(list(last), names=["row", "seed"])
    values = pd.DataFrame(np.nan, index=index, columns=list_recorded_units())
    for unit in list_recorded_units():
        timed = {
            key: of for key, of in last.items() if of["timed"].all() or not UNITS[unit].is_wall_time
        }
        least = np.min(
            [of[unit].iloc[-1] for (row, _), of in timed.items() if row not in apart] or [np.nan]
        )
        if least > 0:
            for key, of in timed.items():
                values.loc[key, unit] = np.exp(
                    np.interp(least, of[unit], np.log(of["ap"]), right=np.nan)
                )
    return values


def _note_untimed_runs(part: Study) -> list[str]:
    """Say how many finished runs are not compared by wall time, and why."""
    shares = part.finished.groupby("run")["cores"].first()
    reasons = {
        "other programs took cores in their last stage": (shares < ENOUGH_CORES).sum(),
        f"their last stage took less than {MEASURABLE:g} s, too short to tell whether other "
        "programs "
        "took cores": shares.isna().sum(),
    }
    return [
        f"By measured wall time {count} of {len(shares)} runs are left out: {why}."
        for why, count in reasons.items()
        if count
    ]


def _note_empty_costs(part: Study, values: pd.DataFrame) -> list[str]:
    """Say why finished rows have no number at equal costs; wall times have `_note_untimed_runs`."""
    curves = part.finished.groupby(["row", "seed"], sort=False)
    spent = curves.apply(lambda curve: _select_last_stage(curve).iloc[-1])
    lines = []
    for unit in [str(name) for name in values if not UNITS[str(name)].is_wall_time]:
        label = UNITS[unit].label
        unrecorded = spent.index[spent[unit].isna()].unique("row")
        empty = values.index[values[unit].isna()].unique("row")
        fewer = [row for row in empty if row in part.apart and row not in unrecorded]
        if len(unrecorded):
            lines.append(f"{label}: not every run recorded them: {', '.join(unrecorded)}.")
        elif fewer:
            lines.append(f"{label}: these rows spent less than all others did: {', '.join(fewer)}.")
    return lines


def _select_last_stage(curve: pd.DataFrame) -> pd.DataFrame:
    """A run's evaluations in its last stage, their amounts from the beginning of that stage."""
    inside = curve[curve["stage"] == curve["stage"].max()]
    begun = inside["begun"].iloc[0]
    return inside.assign(**{unit: inside[unit] - begun[unit] for unit in list_recorded_units()})


def _make_unit_cells(row: str, values: pd.DataFrame, ranks: pd.DataFrame) -> list[Cell]:
    if row not in values.index.unique("row"):
        return [Cell(missing=True)] * (len(_OF_UNIT) * len(list_recorded_units()))
    cells = []
    for unit in list_recorded_units():
        measured = tuple(values.xs(row, level="row")[unit].dropna())
        rank = ranks[unit].get(row, np.nan)
        cells += [Cell(measured), Cell(text="" if np.isnan(rank) else f"{rank:.0f}")]
    return cells
