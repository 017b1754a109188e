"""Judges claims by measurements: held, not held, or not decidable.

A claim is a set of comparisons of two rows, each paired by pre-training seed. It is held if every
comparison is significantly on the claim's side of its bound. This intersection-union test needs no
correction. It is not held if at least one comparison is significantly on the other side. This is
corrected for the claim's comparisons by Bonferroni, which is Holm's first step and all that "at
least one" needs. Else the claim is not decidable. Both directions of all claims of a scorecard are
then corrected together, by Holm, so that a scorecard has a wrong verdict in at most 5% of cases.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from typing import Literal, NamedTuple, cast

import numpy as np
import pandas as pd

from analysis import metrics
from analysis.claims import PAPER, ZERO, Claim
from analysis.exhibits import AVERAGE, PROMPT_ROWS, PrintedValue
from analysis.inference import (
    ERRORS,
    compute_one_sided_p,
    correct_by_holm,
    count_fewest_seeds,
    find_detectable_mean,
)
from analysis.metrics import AP_PLUS, METRICS, PERPLEXITIES, Floats
from analysis.study import Study, average_by_domain
from benchmark.ledger.records import MetricsLine, select_kind
from benchmark.settings.names import make_slug

State = Literal["held", "not held", "not decidable"]


@dataclass(frozen=True)
class Comparison:
    """A claim's `row` against `other` after one stage (from 0).

    `column`: the domain of the task, for a claim about scores. `changes` (seeds,): the change from
    the other row's value to the row's. `excess` (bounds, seeds): how far this change is on the
    claim's side of each bound. A claim of sameness has two bounds. Both arrays are empty if nothing
    is measured.
    """

    row: str
    other: str
    stage: int
    column: str
    changes: Floats
    excess: Floats
    # of the mean change, from the choice of validation documents
    text_variance: float = 0.0
    has_diverged: bool = False  # some value is infinite

    @cached_property
    def p_values(self) -> tuple[float, float]:
        """The p-values of "within all bounds" and of "beyond one of them".

        The latter is corrected for the number of bounds.
        """
        p_above, p_below = compute_one_sided_p(self.excess.T, self.text_variance)
        bounds = len(self.excess)
        return float(p_above.max()), min(1.0, bounds * float(p_below.min()))

    @property
    def margin(self) -> Floats:
        """The distance of each seed from the bound that is nearest on average, shape (seeds,).

        It is positive on the claim's side of the bound.
        """
        nearest = np.argmin(self.excess.mean(axis=1))
        return self.excess[int(nearest)]


@dataclass(frozen=True)
class Verdict:
    """A claim, its comparisons, the state that follows from them, and its corrected p-value.

    `p` is the smaller p-value, of "held" or "not held", `tests` the number of tests for which it
    was corrected. `printed` has the same comparisons in the paper's numbers.
    """

    claim: Claim
    comparisons: tuple[Comparison, ...]
    printed: tuple[Comparison, ...]
    state: State
    p: float
    tests: int

    @property
    def seeds(self) -> int:
        """The number of seeds of the comparison that has most."""
        return max(len(comparison.changes) for comparison in self.comparisons)

    @property
    def weakest(self) -> Comparison:
        """The measured comparison that is least on the claim's side."""
        return find_weakest(self.comparisons)

    @property
    def reason(self) -> str:
        """Why the claim is not decidable, "" if it is decided or its seeds just differ too much."""
        if self.state != "not decidable":
            return ""
        missing = [comparison for comparison in self.comparisons if not comparison.changes.size]
        measured = [comparison for comparison in self.comparisons if comparison.changes.size]
        compared = _list_rows(measured)
        others = [row for row in _list_rows(missing) if row not in compared]
        if others:
            return f"no comparison with {', '.join(others)}"
        if missing:
            return f"{len(missing)} of {len(self.comparisons)} comparisons not measured yet"
        if any(comparison.has_diverged for comparison in self.comparisons):
            return "a run diverged"
        if any(not np.isfinite(comparison.changes).all() for comparison in self.comparisons):
            return "a number is missing in the records of a seed"
        if any(np.isnan(comparison.text_variance) for comparison in self.comparisons):
            return "a domain has one validation document"
        seeds = min(len(comparison.changes) for comparison in self.comparisons)
        fewest = count_fewest_seeds(self._tests_of_the_weakest)
        if seeds >= fewest:
            weakest = self.weakest
            is_spread = bool(np.ptp(weakest.margin)) or weakest.text_variance > 0
            return "" if is_spread else "all differences are equal"
        purpose = " to refute" if seeds >= count_fewest_seeds(self.tests) else ""
        return f"{seeds} of at least {fewest} seeds{purpose}"

    @property
    def decidable_from(self) -> float:
        """The smallest true distance from the bound that these seeds would decide in 80% of cases.

        It is for the weakest comparison only, on its own side of the bound. NaN if the seeds
        decided, or could not decide.
        """
        if self.state != "not decidable" or self.reason or self.seeds < 2:
            return math.nan
        weakest = self.weakest
        values = weakest.margin
        sd = float(np.std(values, ddof=1))
        tests = self._tests_of_the_weakest
        return find_detectable_mean(sd, len(values), tests, weakest.text_variance)

    @property
    def _tests_of_the_weakest(self) -> int:
        """The number of tests for which the p-value of the weakest comparison is corrected.

        It is larger for refuting: one of many may refute a claim by chance, but all must hold it.
        """
        if self.weakest.margin.mean() < 0:
            return self.tests * sum(len(comparison.excess) for comparison in self.comparisons)
        return self.tests


def _list_rows(comparisons: Sequence[Comparison]) -> dict[str, None]:
    """The rows of comparisons, each once."""
    return dict.fromkeys(row for pair in comparisons for row in (pair.row, pair.other))


def find_weakest(comparisons: Sequence[Comparison]) -> Comparison:
    """The measured comparison that is least on the claim's side.

    It has the largest p-value and, among ties, the smallest mean. If none is measured, it is the
    first.
    """
    measured = [comparison for comparison in comparisons if comparison.changes.size]
    return max(measured, key=_rank_weakness, default=comparisons[0])


def _rank_weakness(comparison: Comparison) -> tuple[float, float]:
    p_above, _ = comparison.p_values
    return p_above, -float(comparison.margin.mean())


def compare(claim: Claim, measurements: Measurements) -> tuple[Comparison, ...]:
    """All comparisons of a claim, each over the seeds that both of its rows have.

    Empty if no comparison has such a seed.
    """
    all_stages = range(1, len(measurements.stages))
    stages = all_stages if claim.stages == "each" else [measurements.last]
    columns = [""]
    if claim.metric == "score":
        columns = list(measurements.tasks) if claim.columns == "each" else [AVERAGE]
    rivals = claim.than or [row for row in PAPER if row not in claim.rows]
    comparisons = tuple(
        _compare(claim, measurements, row, rival, stage, column)
        for row, rival, stage, column in product(claim.rows, rivals, stages, columns)
    )
    return comparisons if any(comparison.changes.size for comparison in comparisons) else ()


def _compare(
    claim: Claim, measurements: Measurements, row: str, other: str, stage: int, column: str
) -> Comparison:
    metric = METRICS[claim.metric]
    row_by_seed = measurements.get(Key(claim.metric, make_slug(row), stage, column))
    if other == ZERO:
        other_by_seed: Mapping[int, float] = dict.fromkeys(row_by_seed, 0.0)
    else:
        other_by_seed = measurements.get(Key(claim.metric, make_slug(other), stage, column))
    seeds = sorted(set(row_by_seed) & set(other_by_seed))
    row_values = np.array([row_by_seed[seed] for seed in seeds], float)
    other_values = np.array([other_by_seed[seed] for seed in seeds], float)
    with np.errstate(invalid="ignore"):  # two runs that diverged
        changes = metric.measure_change(row_values, other_values)
    if claim.within is not None:
        above_lower_bound = changes - metric.to_change(-claim.within)
        below_upper_bound = metric.to_change(claim.within) - changes
        excess = np.array([above_lower_bound, below_upper_bound])
    else:
        gains = -changes if metric.lower else changes
        excess = np.array([gains - metric.to_change(claim.by)])
    is_ap = claim.metric == "AP"
    return Comparison(
        row=row,
        other=other,
        stage=stage,
        column=column,
        changes=changes,
        excess=excess,
        text_variance=measurements.compute_text_variance(row, other, stage) if is_ap else 0.0,
        has_diverged=bool(np.isinf([*row_values, *other_values]).any()),
    )


Compared = tuple[Claim, tuple[Comparison, ...], tuple[Comparison, ...]]


def judge(claims: Sequence[Compared]) -> list[Verdict]:
    """The verdicts of a scorecard on all its claims.

    Each claim comes with its comparisons in our numbers and in the paper's.
    """
    if not claims:
        return []
    pairs = []
    for _, comparisons, _ in claims:
        pairs.append(combine_p_values([comparison.p_values for comparison in comparisons]))
    p_values = np.array(pairs)
    corrected = correct_by_holm(p_values.T.ravel())
    p_of_held, p_of_not_held = np.split(corrected, 2)
    verdicts = []
    for place, (claim, comparisons, printed) in enumerate(claims):
        p = p_of_held[place]
        q = p_of_not_held[place]
        state: State = "not decidable"
        if p <= ERRORS:
            state = "held"
        elif q <= ERRORS:
            state = "not held"
        verdict = Verdict(
            claim=claim,
            comparisons=comparisons,
            printed=printed,
            state=state,
            p=float(min(p, q)),
            tests=2 * len(p_values),
        )
        verdicts.append(verdict)
    return verdicts


def combine_p_values(comparisons: Sequence[tuple[float, float]] | Floats) -> tuple[Floats, Floats]:
    """The p-values of "held" and of "not held" from those of the comparisons.

    The input has the shape (comparisons, 2, ...).
    """
    p = np.asarray(comparisons, float)
    p_of_held = p[:, 0].max(axis=0)
    p_of_not_held = len(p) * p[:, 1].min(axis=0)
    return p_of_held, np.minimum(1.0, p_of_not_held)


class Key(NamedTuple):
    """The place of a number among the measurements of a suite."""

    metric: str  # AP, AP⁺, area, score, agreement, ARS, fall (of ARS), attention
    row: str  # its slug
    stage: int  # from 0
    column: str = ""  # a task's domain, or AVERAGE


@dataclass
class Measurements:
    """The values of one suite (or of one printed block), by seed.

    Printed values have the single seed 0. `stages` are the names of the stages, `tasks` the titles
    of the domains' tasks, by the domain's name.
    """

    stages: Sequence[str]
    tasks: Mapping[str, str]
    values: dict[Key, dict[int, float]] = field(default_factory=dict)
    # see Study
    compute_text_variance: Callable[[str, str, int], float] = lambda row, other, stage: 0.0

    @property
    def last(self) -> int:
        return len(self.stages) - 1

    def get(self, key: Key) -> Mapping[int, float]:
        return self.values.get(key, {})

    def put(
        self, metric: str, row: str, stage: int, seed: int, value: float, column: str = ""
    ) -> None:
        key = Key(metric, make_slug(row), stage, column)
        self.values.setdefault(key, {})[seed] = value

    def put_column(self, metric: str, table: pd.DataFrame, name: str) -> None:
        """Put the values of a column of one of the study's tables of runs."""
        values = table[["row", "stage", "seed", name]]
        for row, stage, seed, value in values.itertuples(index=False):
            self.put(metric, row, stage, seed, value)


def collect_measurements(part: Study) -> Measurements:
    """All numbers of a suite's runs, but no perplexities on other texts than most rows have."""
    numbers = Measurements(part.stage_titles, part.tasks)
    numbers.compute_text_variance = part.compute_text_variance
    ends = part.ends[~part.ends["row"].isin(part.apart)]
    for metric in PERPLEXITIES:
        first_stage = 1 if metric is AP_PLUS else 0  # AP⁺ begins with the second stage
        measured = ends[ends["stage"] >= first_stage]
        numbers.put_column(metric.name, measured, metric.column)
    curves = part.finished[~part.finished["row"].isin(part.apart)]
    for key, curve in curves.groupby(["row", "seed"], sort=False):
        row, seed = cast(tuple[str, int], key)
        later = curve[curve["stage"] > 0]  # from the second domain on
        area = metrics.compute_area_under_curve(later["charged"], later["ap"])
        numbers.put("area", row, numbers.last, seed, area)
    _put_scores(numbers, part)
    _put_gradient_agreement(numbers, part)
    _put_similarities(numbers, part)
    _put_failures(numbers, part)
    return numbers


def convert_printed(values: Iterable[PrintedValue], block: str) -> Measurements:
    """The paper's (corrected) numbers of one block of a table of perplexities or scores."""
    selection = [printed for printed in values if printed.block == block and printed.stage]
    columns = [printed.column for printed in selection if printed.column != AVERAGE]
    titles = {column: column for column in columns}
    numbers = Measurements(list(titles), titles)
    for printed in selection:
        value = printed.value
        if value is None:
            continue
        row = PROMPT_ROWS.get(printed.row, printed.row)
        stage = int(printed.stage) - 1
        if printed.metric == "F1":
            numbers.put("score", row, stage, 0, value, printed.column)
        else:
            numbers.put(printed.metric, row, stage, 0, value)
    return numbers


def _put_scores(numbers: Measurements, part: Study) -> None:
    """Put scores in percent, as means over fine-tuning seeds, and the average of all tasks.

    Each prompt's scores get a row of their own. Linear probes are left out, because the paper
    fine-tunes and its claims are about that.
    """
    scores = part.scores[part.scores["protocol"] == "finetune"]
    final = scores[scores["stage"] == numbers.last]
    prompted = final[final["row"].isin(_find_prompted_rows(part))]
    titles = prompted["prompt"].map(PROMPT_ROWS)
    named = prompted.assign(row=titles).dropna(subset=["row"])
    for selection in (scores[scores["headline"]], named):
        means = average_by_domain(selection, ["row", "stage", "seed"]).mul(100)
        means = means.reindex(columns=list(numbers.tasks))
        means[AVERAGE] = means.mean(axis=1, skipna=False)
        for (row, stage, seed, column), value in means.stack().dropna().items():
            numbers.put("score", row, stage, seed, value, column)


def _find_prompted_rows(part: Study) -> set[str]:
    """The rows whose models have domain prompts."""
    return set(part.scores.loc[part.scores["prompt"] == "right", "row"])


def _put_failures(numbers: Measurements, part: Study) -> None:
    """Put infinity in place of what a failed run did not reach, from the stage in which it failed.

    That is each metric, stage and column with a value of some row. A claim about it is undecidable.
    """
    places = {(key.metric, key.stage, key.column) for key in numbers.values}
    prompted = _find_prompted_rows(part)
    for run in part.runs:
        if run.failure:
            rows = [run.row, *(PROMPT_ROWS.values() if run.row in prompted else ())]
            for row, (metric, stage, column) in product(rows, places):
                if stage >= run.failure.stage:
                    numbers.put(metric, row, stage, run.seed, math.inf, column)


def _put_gradient_agreement(numbers: Measurements, part: Study) -> None:
    """Put the percentage of A-GEM's steps whose gradient did not conflict with the memory's.

    It is over all stages.
    """
    for run in part.runs:
        phases: dict[tuple[int, str], tuple[float, float]] = {}
        for index, stage in enumerate(run.stages):
            for line in select_kind(stage, MetricsLine):
                share = line.values.get("conflicts")
                if share is not None:
                    # if a method counts conflicts, but not the steps that had a memory, all its
                    # steps count
                    steps = line.values.get("steps") or line.step
                    # the last line replaces the others: its share is of all steps of the phase
                    phases[index, line.phase] = (steps, steps * share)
        steps, conflicts = np.sum([*phases.values(), (0, 0)], axis=0)
        if steps:
            percent = 100 * (1 - conflicts / steps)
            numbers.put("agreement", run.row, numbers.last, run.seed, percent)


def _put_similarities(numbers: Measurements, part: Study) -> None:
    """Put ARS, its fall per stage, and the attention of heads in relation to their ancestors.

    The fall is by least squares. The attention is how much more similar heads are to their own
    ancestors than to others.
    """
    ars = part.similarities.dropna(subset=["ars"])
    numbers.put_column("ARS", ars, "ars")
    # of runs that have ARS after each stage, with a line per stage and a column per run
    pivot = ars.astype({"ars": float}).pivot_table("ars", "stage", ["row", "seed"])
    complete = pivot.dropna(axis=1)
    has_all_stages = len(complete) == numbers.last  # ARS begins with the second stage
    if complete.size and has_all_stages and numbers.last > 1:  # one stage has no slope
        slopes = np.polyfit(complete.index, complete, 1)[0]
        for (row, seed), slope in zip(complete.columns, slopes, strict=True):
            numbers.put("fall", row, numbers.last, seed, -slope)
    heads = part.attentions.dropna(subset=["own", "others"])
    gains = heads.assign(gain=heads["own"] - heads["others"])
    numbers.put_column("attention", gains, "gain")
