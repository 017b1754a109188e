"""Tables of perplexities: AP and AP+ after each domain, and measures beyond the paper.

The latter are forgetting in nats, transfer, efficiency, and costs in other units.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from analysis import metrics
from analysis.exhibits import TableExhibit, add_printed
from analysis.metrics import AP, AP_PLUS, PERPLEXITIES, Floats, Metric
from analysis.study import ENOUGH_CORES, Study, select_measure
from analysis.tables import Block, Cell, Column, Table, TableRow
from benchmark.ledger.records import SECONDS_TO_MEASURE_CORES
from benchmark.ledger.runs import RunRecords
from benchmark.metrics import average_perplexity
from benchmark.settings.names import make_slug
from benchmark.settings.units import UNITS, list_recorded_units

LONG = 12  # a page shows every stage if there are at most this many
Place = tuple[int, Metric]  # of a column: a stage, and the metric after it


@dataclass(frozen=True, kw_only=True)
class PerplexityTable(TableExhibit):
    """AP and AP+ of every row of a suite after each domain, with a block for each suite.

    AP+ begins with the second domain.
    """

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
                in_csv_alone=_is_left_out(stage, len(titles)),
            )
            for stage, metric in places
        ]
        blocks = [self._make_block(part, places) for part in study.parts]
        return self.finish_measurements(study, columns, blocks, [])

    def _make_block(self, part: Study, places: Sequence[Place]) -> Block:
        ends = part.ends.groupby(["row", "stage"])
        values = {metric: ends[metric.column].agg(tuple).to_dict() for metric in PERPLEXITIES}
        done = part.stages[part.stages["done"]]
        finished = set(zip(done["row"], done["stage"], strict=True))
        untrained = finished - set(values[AP])
        runs = {run.row: run for run in part.runs}
        rows = []
        for label in part.ranked_rows:
            run = runs[label]
            printed = self.select_printed(part, label)
            cells = []
            for stage, metric in places:
                # A method may train nothing in early stages. These have no AP, and later AP+
                # has nothing to start from.
                needed_stages = range(stage + 1) if metric is AP_PLUS else [stage]
                needed_stages_of_row = {(label, needed_stage) for needed_stage in needed_stages}
                if stage >= len(run.domains) or untrained & needed_stages_of_row:
                    cells.append(Cell())
                    continue
                measured = values[metric].get((label, stage), ())
                cell = Cell(measured, missing=not measured)
                key = (make_slug(label), str(stage + 1), run.domains[stage].title, metric.name)
                cells.append(add_printed(cell, printed.get(key)))
            rows.append(TableRow(label, tuple(cells)))
        if part.suite not in self.only:
            rows += _make_reference_rows(part, places)
        return Block(self.choose_heading(part), tuple(rows), part.suite)


def _is_left_out(stage: int, stages: int) -> bool:
    """Whether a page leaves a stage out.

    Of a long stream a page shows at most six stages, evenly spaced, with the last one among them.
    """
    if stages <= LONG:
        return False
    interval = -(-stages // 6)
    return (stages - 1 - stage) % interval > 0


def _make_reference_rows(part: Study, places: Sequence[Place]) -> Iterator[TableRow]:
    """AP of each untouched start model and of the unigram distributions, on the domains so far."""
    for name, runs in part.starts.items():
        of_start_model = []
        for run in runs:
            perplexities = [select_measure(run.start, domain.name) for domain in run.domains]
            of_start_model.append(perplexities)
        yield _make_reference_row(f"{name}, untouched", of_start_model, places)
    unigram_of_seed = {}
    for run in part.on_most_texts:
        unigram_of_seed[run.seed] = [run.line.unigram[domain.name] for domain in run.domains]
    yield _make_reference_row("Unigram distributions", list(unigram_of_seed.values()), places)


def _make_reference_row(
    label: str, perplexities_of_seeds: list[list[float]], places: Sequence[Place]
) -> TableRow:
    """A row to compare with: AP from each seed's perplexities, in the order of its domains."""
    ap_of_seeds = []  # of each seed, AP after each stage
    for perplexities in perplexities_of_seeds:
        stages = np.arange(len(perplexities))
        ap_of_seeds.append(average_perplexity(perplexities, stages).tolist())
    if all(ap == ap_of_seeds[0] for ap in ap_of_seeds):
        ap_of_seeds = ap_of_seeds[:1]  # one number, because all seeds have the same
    cells = []
    for stage, metric in places:
        values = [ap[stage] for ap in ap_of_seeds if metric is AP and stage < len(ap)]
        cells.append(Cell(tuple(values)))
    return TableRow(label, tuple(cells), competes=False)


TARGET = "ER"
NEVER = -np.inf  # stands for a budget that does not reach the target
# groups of columns, with a column per probe
OF_PROBE = "Probe perplexity"
SINCE_START = "Nats above the start model"
COLUMNS = {  # by the name of the measure
    "ap": Column("AP", lower=True),
    "ap_plus": Column("AP⁺", lower=True),
    "log_ap_plus": Column("log AP⁺", lower=True, digits=3),
    "forgetting": Column("Forgetting", lower=True, digits=3),
    "bits_per_byte": Column("Bits per byte", lower=True, digits=3),
    "forward_transfer": Column("Forward transfer", lower=False, digits=3),
    "mean_ap": Column("Mean AP", lower=True),
    "seconds_to_target": Column(f"Measured seconds to {TARGET}'s AP", lower=True),
    "tokens_to_target": Column(f"Tokens to {TARGET}'s AP", lower=True, digits=0),
}
DEFINITIONS = (
    "log AP⁺: rise of an earlier domain's loss since the end of its own stage, in nats. With the "
    "sign turned it is backward transfer.",
    "Forgetting: rise of an earlier domain's loss over the best model before, in nats (Chaudhry et "
    "al. 2018). It equals log AP⁺ where the best model was that of the domain's own stage.",
    "Bits per byte: mean over the domains.",
    "Forward transfer: how much better than by its unigram distribution a domain is predicted "
    "before its own stage, in nats. Higher is better.",
    "Mean AP: over the budget from the second domain on.",
    f"Seconds and tokens to {TARGET}'s AP: what the last stage spends until AP stays at {TARGET}'s "
    "final AP or below, mean of the seeds that get there. 0: AP is there before the first step. "
    "never: no seed gets there.",
    "Between evaluations AP is taken to change in a straight line.",
)


@dataclass(frozen=True, kw_only=True)
class LifelongTable(TableExhibit):
    """One line per row of a suite, measured on runs that finished.

    `analysis.metrics` defines the measures.
    """

    def _build(self, study: Study) -> Table:
        probes = {}
        for run in study.runs:
            for probe in run.line.probes:
                probes[probe.name] = probe.title
        groups = {OF_PROBE: 2}
        if any(run.start for run in study.runs):
            groups[SINCE_START] = 3
        columns = dict(COLUMNS)
        for group, digits in groups.items():
            for name, title in probes.items():
                columns[f"{group} {name}"] = Column(title, group, True, digits)
        blocks = [self._make_block(part, columns, probes) for part in study.parts]
        lines = [*DEFINITIONS]
        if SINCE_START in groups:
            lines.append(
                f"{SINCE_START}: what was forgotten of a probe, the log of its perplexity over "
                "the untouched one."
            )
        exhibit = replace(self, reading=" ".join(lines))
        return exhibit.finish_measurements(study, [*columns.values()], blocks, [])

    def note_untimed(self, part: Study) -> Sequence[str]:
        return _note_untimed_runs(part)

    def _make_block(
        self, part: Study, columns: Mapping[str, Column], probes: Mapping[str, str]
    ) -> Block:
        runs = {run.id: run for run in part.runs}
        curves = part.finished.groupby("run", sort=False)
        pairs = [(runs[str(id)], curve) for id, curve in curves]
        targets = {}
        for run, curve in pairs:
            compares = curve["timed"].all() or not _has_timed_budget(run)
            if run.row == TARGET and compares:
                targets[run.seed] = curve["ap"].iloc[-1]
        measured: dict[str, list[dict[str, float]]] = {}
        for run, curve in pairs:
            target = np.nan
            if not part.apart & {run.row, TARGET}:
                target = targets.get(run.seed, np.nan)
            values = _measure(run, curve, target, probes)
            measured.setdefault(run.row, []).append(values)
        rows = _make_rows(part, columns, measured)
        return Block(self.choose_heading(part), rows, part.suite)


def _make_rows(
    part: Study,
    columns: Mapping[str, Column],
    measured: Mapping[str, Sequence[Mapping[str, float]]],
) -> tuple[TableRow, ...]:
    """A line for each row of a suite, from the measured values of each of its finished runs."""
    rows = []
    for row in part.ranked_rows:
        lines = measured.get(row, [])
        cells = []
        for name, column in columns.items():
            cell = _make_cell([line[name] for line in lines], column)
            cells.append(cell if lines else Cell(missing=True))
        rows.append(TableRow(row, tuple(cells)))
    return tuple(rows)


def _measure(
    run: RunRecords, curve: pd.DataFrame, target: float, probes: Collection[str]
) -> dict[str, float]:
    """The values of a run, by the names of their columns.

    NEVER stands for a target that the run does not reach, NaN for a wall time that is not
    comparable. `target` is NaN if there is none. Without a start model, the values relative to it
    are NaN, and tables have no columns for them.
    """
    names = [domain.name for domain in run.domains]
    matrix = _make_perplexity_matrix(run)
    end = run.matrix[-1]
    later = curve[curve["stage"] > 0]
    last = _select_last_stage(curve)
    unigram = [run.line.unigram.get(name, np.nan) for name in names]
    bits = [select_measure(end, name, "bits_per_byte") for name in names]
    seconds = _find_budget(last, "seconds", target)
    values = {
        "ap": curve["ap"].iloc[-1],
        "ap_plus": curve["ap_plus"].iloc[-1],
        "log_ap_plus": curve["log_ap_plus"].iloc[-1],
        "forgetting": metrics.compute_forgetting(matrix),
        "bits_per_byte": float(np.mean(bits)),
        "forward_transfer": metrics.compute_forward_transfer(matrix, unigram),
        "mean_ap": metrics.compute_area_under_curve(later["charged"], later["ap"]),
        "seconds_to_target": seconds if curve["timed"].all() else np.nan,
        "tokens_to_target": _find_budget(last, "tokens", target),
    }
    for name in probes:
        perplexity = select_measure(end, name)
        values[f"{OF_PROBE} {name}"] = perplexity
        start_perplexity = select_measure(run.start, name)
        values[f"{SINCE_START} {name}"] = np.log(perplexity / start_perplexity)
    return values


TIMES = {name: Column(name, lower=True) for name in metrics.TIMES}


@dataclass(frozen=True, kw_only=True)
class TimeTable(TableExhibit):
    """For streams in time: perplexity on each stage's own period, on earlier and on later ones.

    `analysis.metrics.average_over_time` defines the columns. Only runs that finished count.
    """

    def _build(self, study: Study) -> Table:
        blocks = [self._make_block(part) for part in study.parts]
        about = (
            "Backward: mean over all stages and the domains before the stage's own. Same time: of "
            "each stage's own domain. Forward: of the domains after it. Means are geometric "
            "(TiC-LM, Li et al. 2025)."
        )
        return self.finish_measurements(study, [*TIMES.values()], blocks, [about])

    def _make_block(self, part: Study) -> Block:
        finished = {*part.finished["run"]}
        measured: dict[str, list[dict[str, float]]] = {}
        for run in part.runs:
            if run.id in finished:
                averages = metrics.average_over_time(_make_perplexity_matrix(run))
                measured.setdefault(run.row, []).append(averages)
        rows = _make_rows(part, TIMES, measured)
        return Block(self.choose_heading(part), rows, part.suite)


def _find_budget(last: pd.DataFrame, unit: str, target: float) -> float:
    """What a run's last stage spends until AP stays at a target or below.

    NEVER if AP does not get there, NaN if there is no target.
    """
    amount = metrics.find_budget_to_reach(last[unit], last["ap"], target)
    if np.isnan(amount) and not np.isnan(target):
        return NEVER
    return amount


def _has_timed_budget(run: RunRecords) -> bool:
    """Whether a run's budget was wall time, of which other programs may have taken some."""
    return UNITS[run.line.config["budget"]["unit"]].is_wall_time


def _make_cell(values: Sequence[float], column: Column) -> Cell:
    measured = [value for value in values if not np.isnan(value)]
    numbers = tuple(value for value in measured if value != NEVER)
    return Cell(numbers, column.digits, text="never" if measured and not numbers else "")


def _make_perplexity_matrix(run: RunRecords) -> Floats:
    """The perplexity of each domain after each stage, shape (D, D), NaN if not measured."""
    names = [domain.name for domain in run.domains]
    rows = [[select_measure(measured, name) for name in names] for measured in run.matrix]
    empty = [np.nan] * len(names)
    rest = [empty] * (len(names) - len(rows))
    return np.array(rows + rest, float)


@dataclass(frozen=True, kw_only=True)
class UnitTable(TableExhibit):
    """Each run's AP in the last stage, when it had spent as much as the run that spent least.

    The stages before keep the suite's budget. Only runs that finished are compared, and by wall
    time only those that are known to have had their cores in the last stage. Rows that pool the
    budgets of several stages are left out, because nobody would end such a run after the budget of
    one stage. Rows on other texts than most are also left out, because they compare with no others.
    """

    def _build(self, study: Study) -> Table:
        columns = [
            Column(name, UNITS[unit].label, lower)
            for unit in list_recorded_units()
            for name, lower in _OF_UNIT
        ]
        rows = dict.fromkeys(run.row for run in study.runs)
        compared = study.select_rows(rows.keys() - study.pooled)
        apart = frozenset().union(*(part.apart for part in compared.parts))
        reasons = {
            "as stages of theirs take the budgets of several": study.pooled,
            "as their text is another": apart,
        }
        lines = []
        for reason, left_out in reasons.items():
            names = [row for row in rows if row in left_out]
            if names:
                lines.append(f"Left out, {reason}: {', '.join(names)}.")
        blocks = [self._make_block(part) for part in compared.parts]
        return self.finish_measurements(compared, columns, blocks, lines)

    def note_untimed(self, part: Study) -> Sequence[str]:
        rows = {run.row for run in part.runs}
        return _note_untimed_runs(part.select_rows(rows - part.apart))

    def _make_block(self, part: Study) -> Block:
        is_apart = part.finished["row"].isin(part.apart)
        values = compare_at_equal_cost(part.finished[~is_apart])
        ranks = values.groupby(["row"]).mean().rank(method="min")
        ranks.loc[:, ranks.count() < 2] = np.nan  # a single row has no rank
        rows = []
        for row in part.ranked_rows:
            if row not in part.apart:
                cells = _make_unit_cells(row, values, ranks)
                rows.append(TableRow(row, tuple(cells)))
        return Block(self.choose_heading(part), tuple(rows), part.suite)


_OF_UNIT = (("AP", True), ("Rank", None))


def compare_at_equal_cost(finished: pd.DataFrame) -> pd.DataFrame:
    """The AP of each finished run at equal cost in its last stage, with a column per unit.

    Lines are indexed by row and seed. The cost is that of the run that spent least. Log AP is
    interpolated linearly between evaluations. A unit that some run did not record is NaN for all
    runs. Wall time is NaN for runs that are not known to have had their cores.
    """
    last_stages = {
        key: _select_last_stage(curve)
        for key, curve in finished.groupby(["row", "seed"], sort=False)
    }
    index = pd.MultiIndex.from_tuples(list(last_stages), names=["row", "seed"])
    values = pd.DataFrame(np.nan, index=index, columns=list_recorded_units())
    for unit in list_recorded_units():
        compared = {}
        for key, stage in last_stages.items():
            if stage["timed"].all() or not UNITS[unit].is_wall_time:
                compared[key] = stage
        costs = [stage[unit].iloc[-1] for stage in compared.values()]
        least = np.min(costs or [np.nan])
        if least > 0:  # not NaN: some runs are compared, and all recorded the unit
            for key, stage in compared.items():
                log_ap = np.interp(least, stage[unit], np.log(stage["ap"]))
                values.loc[key, unit] = np.exp(log_ap)
    return values


def _note_untimed_runs(part: Study) -> list[str]:
    """Say which stages tell whether wall times compare, and how many finished runs do not."""
    shares = part.finished.groupby("run")["cores"].first()
    contended = "other programs took cores"
    short = (
        f"their stages took less than {SECONDS_TO_MEASURE_CORES:g} s each, "
        "too short to tell whether other programs took cores"
    )
    reasons = {
        contended: (shares < ENOUGH_CORES).sum(),
        short: shares.isna().sum(),
    }
    lines = []
    for reason, count in reasons.items():
        if count == len(shares):
            lines.append(f"Measured wall times are left out of all runs: {reason}.")
        elif count:
            lines.append(
                f"By measured wall time {count} of {len(shares)} runs are left out: {reason}."
            )
    last_stages = part.stages[part.stages["stage"] == part.last_stage]
    unmeasured = last_stages.loc[last_stages["cores"].isna(), "run"]
    judged_by_others = shares[shares.index.isin(unmeasured)].notna().sum()
    if judged_by_others:
        lines.append(
            f"Of {judged_by_others} runs the last stage took less than "
            f"{SECONDS_TO_MEASURE_CORES:g} s. "
            "Their other stages tell whether other programs took cores."
        )
    return lines


def _select_last_stage(curve: pd.DataFrame) -> pd.DataFrame:
    """A run's evaluations in its last stage, with amounts from the beginning of that stage."""
    inside = curve[curve["stage"] == curve["stage"].max()]
    origin = inside["begun"].iloc[0]
    amounts = {unit: inside[unit] - origin[unit] for unit in list_recorded_units()}
    return inside.assign(**amounts)


def _make_unit_cells(row: str, values: pd.DataFrame, ranks: pd.DataFrame) -> list[Cell]:
    seeds = values[values.index.get_level_values("row") == row]
    cells = []
    for unit in list_recorded_units():
        cells.append(Cell(tuple(seeds[unit].dropna()), missing=seeds.empty))
        rank = ranks[unit].get(row, np.nan)
        text = "" if np.isnan(rank) else f"{rank:.0f}"
        cells.append(Cell(text=text, missing=seeds.empty))
    return cells
