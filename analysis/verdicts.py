"""Holds claims against measurements: held, not held, or not decidable.

A claim is a set of comparisons of two rows, each paired by pre-training seed. It is held when every
comparison is significantly on the claim's side of its bound (an intersection-union test, which
needs no correction), not held when at least one is significantly on the other side (corrected for
the claim's comparisons, by Bonferroni, which is Holm's first step and all that "at least one"
needs), else not decidable. Both directions of all claims of a scorecard are then corrected
together, by Holm, so that a scorecard has a wrong verdict in at most 5% of cases.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import product
from typing import Literal, NamedTuple, cast

import numpy as np

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
from analysis.metrics import METRICS, Floats
from analysis.study import Study, average_by_domain
from benchmark.records import MetricsLine
from benchmark.settings.names import make_slug

State = Literal["held", "not held", "not decidable"]


@dataclass(frozen=True)
class Comparison:
    """A claim's `row` against `other` after one stage (from 0), on one task's domain if it is about
    scores.

    `changes` (seeds,) is what the row makes of the other's value, and `excess` (bounds, seeds) how
    far that is on the claim's side of its bounds; a claim of sameness has two bounds. Both are
    empty where nothing is measured.
    """

    row: str
    other: str
    stage: int
    column: str
    changes: Floats
    excess: Floats
    text_variance: float = (
        0.0  # of the mean change, by the choice of the validation text's documents
    )

    @cached_property
    def p_values(self) -> tuple[float, float]:
        """The p-values of "within all bounds" and of "beyond one of them", the latter corrected for
        their number.
        """
        above, below = compute_one_sided_p(self.excess.T)
        return float(above.max()), min(1.0, len(self.excess) * float(below.min()))

    @property
    def margin(self) -> Floats:
        """The distance of each seed from the bound that is nearest on average, on the claim's side,
        shape (seeds,).
        """
        return self.excess[int(np.argmin(self.excess.mean(axis=1)))]


@dataclass(frozen=True)
class Verdict:
    """A claim with its comparisons, the state of both together, and the corrected p-value of that
    state.

    `tests` is what p was corrected for, `printed` holds the same comparisons in the paper's
    numbers.
    """

    claim: Claim
    comparisons: tuple[Comparison, ...]
    printed: tuple[Comparison, ...]
    state: State
    p: float
    tests: int

    @property
    def seeds(self) -> int:
        """The seeds of the comparison that has most."""
        return max(len(comparison.changes) for comparison in self.comparisons)

    @property
    def weakest(self) -> Comparison:
        """The measured comparison that is least on the claim's side."""
        return find_weakest(self.comparisons)

    @property
    def reason(self) -> str:
        """Why it is not decidable, where that is not because the seeds differ too much."""
        if self.state != "not decidable":
            return ""
        missing = [comparison for comparison in self.comparisons if not comparison.changes.size]
        present = {
            make_slug(name) for c in self.comparisons if c.changes.size for name in (c.row, c.other)
        }
        absent = dict.fromkeys(
            name for c in missing for name in (c.row, c.other) if make_slug(name) not in present
        )
        if absent:
            return f"nothing measured of {', '.join(absent)}"
        if missing:
            return f"{len(missing)} of {len(self.comparisons)} comparisons not measured yet"
        if any(not np.isfinite(comparison.changes).all() for comparison in self.comparisons):
            return "a run diverged"
        fewest = min(len(comparison.changes) for comparison in self.comparisons)
        needed = count_fewest_seeds(self._tests_of_the_weakest)
        if fewest >= needed:
            return ""
        return f"{fewest} of at least {needed} seeds" + (
            " to refute" if fewest >= count_fewest_seeds(self.tests) else ""
        )

    @property
    def decidable_from(self) -> float:
        """The smallest true distance from the bound that these seeds would have decided in four of
        five cases.

        Of the weakest comparison alone, on the side of the bound on which it is. NaN where they
        decided, or could not.
        """
        values = self.weakest.margin
        if self.state != "not decidable" or self.reason or len(values) < 2:
            return math.nan
        return find_detectable_mean(
            float(np.std(values, ddof=1)), len(values), self._tests_of_the_weakest
        )

    @property
    def _tests_of_the_weakest(self) -> int:
        """The tests that its p is corrected for: one of many may refute a claim by chance, but all
        must hold it.
        """
        bounds = sum(len(comparison.excess) for comparison in self.comparisons)
        return self.tests * (bounds if self.weakest.margin.mean() < 0 else 1)


def find_weakest(comparisons: Sequence[Comparison]) -> Comparison:
    """The measured comparison that is least on the claim's side: the largest p-value, then the
    smallest mean.
    """
    measured = [comparison for comparison in comparisons if comparison.changes.size]
    return max(
        measured, key=lambda comparison: (comparison.p_values[0], -float(comparison.margin.mean()))
    )


def compare(claim: Claim, values: Measurements) -> tuple[Comparison, ...]:
    """All comparisons of a claim, each over the seeds that both of its rows have; none where none
    has any.
    """
    stages = range(1, len(values.stages)) if claim.stages == "each" else [values.last]
    tasks = list(values.tasks) if claim.columns == "each" else [AVERAGE]
    columns = tasks if claim.metric == "score" else [""]
    than = claim.than or [row for row in PAPER if row not in claim.rows]
    pairs = product(claim.rows, than, stages, columns)
    comparisons = tuple(_compare(claim, values, *pair) for pair in pairs)
    return comparisons if any(comparison.changes.size for comparison in comparisons) else ()


def _compare(
    claim: Claim, values: Measurements, row: str, other: str, stage: int, column: str
) -> Comparison:
    name, metric = claim.metric, METRICS[claim.metric]
    ours = values.get(Key(name, make_slug(row), stage, column))
    theirs = (
        values.get(Key(name, make_slug(other), stage, column))
        if other != ZERO
        else dict.fromkeys(ours, 0.0)
    )
    seeds = sorted(set(ours) & set(theirs))
    with np.errstate(invalid="ignore"):  # two runs that diverged
        changes = metric.measure_change(
            *(np.array([side[seed] for seed in seeds], float) for side in (ours, theirs))
        )
    if claim.within is not None:
        excess = np.array(
            [changes - metric.to_change(-claim.within), metric.to_change(claim.within) - changes]
        )
    else:
        excess = np.array([(-changes if metric.lower else changes) - metric.to_change(claim.by)])
    text_variance = values.compute_text_variance(row, other, stage) if name == "AP" else 0.0
    return Comparison(row, other, stage, column, changes, excess, text_variance)


def judge(
    claims: Sequence[tuple[Claim, tuple[Comparison, ...], tuple[Comparison, ...]]], others: int = 0
) -> list[Verdict]:
    """The verdicts of a scorecard on all its claims, each with its comparisons in our numbers and
    in the paper's.

    They are corrected for as many `others`, too: claims of the scorecard that are not among these.
    """
    if not claims:
        return []
    both = np.array(
        [combine_p_values([c.p_values for c in ours]) for _, ours, _ in claims]
        + [(1.0, 1.0)] * others
    )
    held, not_held = np.split(correct_by_holm(both.T.ravel()), 2)
    verdicts = []
    for (claim, ours, theirs), p, q in zip(claims, held, not_held, strict=False):
        state: State = "held" if p <= ERRORS else "not held" if q <= ERRORS else "not decidable"
        verdicts.append(Verdict(claim, ours, theirs, state, float(min(p, q)), 2 * len(both)))
    return verdicts


def combine_p_values(comparisons: Sequence[tuple[float, float]] | Floats) -> tuple[Floats, Floats]:
    """The p-values of "held" and of "not held" from those of the comparisons, shape (comparisons,
    2, ...).
    """
    p = np.asarray(comparisons, float)
    return p[:, 0].max(axis=0), np.minimum(1.0, len(p) * p[:, 1].min(axis=0))


class Key(NamedTuple):
    metric: str  # AP, AP⁺, area, score, positive, ARS, fall (of ARS), attention
    row: str  # its slug
    stage: int  # from 0
    column: str = ""  # a task's domain, or AVERAGE


@dataclass
class Measurements:
    """The values of one suite (or of one printed block), by seed. The paper's have the single seed
    0.

    `stages` are what the stages are called, `tasks` the titles of the domains' tasks, by the
    domain's name.
    """

    stages: Sequence[str]
    tasks: Mapping[str, str]
    values: dict[Key, dict[int, float]] = field(default_factory=dict)
    compute_text_variance: Callable[[str, str, int], float] = lambda row, other, stage: (
        0.0
    )  # as Study's

    @property
    def last(self) -> int:
        return len(self.stages) - 1

    def get(self, key: Key) -> Mapping[int, float]:
        return self.values.get(key, {})

    def put(
        self, metric: str, row: str, stage: int, seed: int, value: float, column: str = ""
    ) -> None:
        self.values.setdefault(Key(metric, make_slug(row), stage, column), {})[seed] = value


def collect_measurements(part: Study) -> Measurements:
    """All numbers of a suite's runs, but for perplexities on other texts than most rows have."""
    numbers, apart = Measurements(part.stage_titles, part.tasks), part.apart
    numbers.compute_text_variance = partial(part.compute_text_variance, part.suite)
    ends = part.ends[~part.ends["row"].isin(apart)]
    for row, stage, seed, ap, ap_plus in ends[["row", "stage", "seed", "ap", "ap_plus"]].itertuples(
        index=False
    ):
        numbers.put("AP", row, stage, seed, ap)
        if stage:
            numbers.put("AP⁺", row, stage, seed, ap_plus)
    curves = part.finished[~part.finished["row"].isin(apart)]
    for key, curve in curves.groupby(["row", "seed"], sort=False):
        row, seed = cast(tuple[str, int], key)
        later = curve[curve["stage"] > 0]  # from the second domain on
        numbers.put(
            "area",
            row,
            numbers.last,
            seed,
            metrics.compute_area_under_curve(later["charged"], later["ap"]),
        )
    _put_scores(numbers, part)
    _put_products(numbers, part)
    _put_similarities(numbers, part)
    _put_failures(numbers, part)
    return numbers


def convert_printed(values: Iterable[PrintedValue], block: str) -> Measurements:
    """The paper's (corrected) numbers of one block of a table of perplexities or scores."""
    chosen = [(v, v.value) for v in values if v.block == block and v.stage]
    titles = {v.column: v.column for v, _ in chosen if v.column != AVERAGE}
    numbers = Measurements(list(titles), titles)
    for v, value in chosen:
        if value is not None:
            score = v.metric == "F1"
            row = PROMPT_ROWS.get(v.row, v.row)
            metric, column = ("score", v.column) if score else (v.metric, "")
            numbers.put(metric, row, int(v.stage) - 1, 0, value, column)
    return numbers


def _put_scores(numbers: Measurements, part: Study) -> None:
    """Mean over fine-tuning seeds in percent, and the average of all tasks; of each prompt under a
    row of its own.

    No linear probes: the paper fine-tunes, and its claims are of that.
    """
    scores = part.scores[part.scores["how"] == "finetune"]
    final = scores[scores["stage"] == numbers.last]
    with_prompts = final[final["row"].isin(_find_prompted_rows(part))]
    named = with_prompts.assign(row=with_prompts["prompt"].map(PROMPT_ROWS)).dropna(subset=["row"])
    for shown in (scores[scores["headline"]], named):
        means = average_by_domain(shown, ["row", "stage", "seed"]).mul(100)
        means = means.reindex(columns=list(numbers.tasks))
        means[AVERAGE] = means.mean(axis=1, skipna=False)
        for (row, stage, seed), line in zip(means.index, means.to_dict("records"), strict=True):
            for column, value in line.items():
                if value == value:
                    numbers.put("score", row, stage, seed, value, str(column))


def _find_prompted_rows(part: Study) -> set[str]:
    """The rows whose models have domain prompts."""
    return set(part.scores.loc[part.scores["prompt"] == "right", "row"])


def _put_failures(numbers: Measurements, part: Study) -> None:
    """An infinite number for a run that failed, wherever another one has a number from that stage
    on.

    It must not be left out: what it was about cannot be decided.
    """
    places = {(key.metric, key.stage, key.column) for key in numbers.values}
    prompted = _find_prompted_rows(part)
    for run in part.runs:
        if run.failure:
            rows = [run.row, *(PROMPT_ROWS.values() if run.row in prompted else ())]
            for row, (metric, stage, column) in product(rows, places):
                if stage >= run.failure.stage:
                    numbers.put(metric, row, stage, run.seed, math.inf, column)


def _put_products(numbers: Measurements, part: Study) -> None:
    """Share of A-GEM's steps whose gradient did not conflict with the memory's, in percent, over
    all stages.
    """
    for run in part.runs:
        last = {}
        for index, stage in enumerate(run.stages):
            for line in stage:
                if (
                    isinstance(line, MetricsLine)
                    and (conflicts := line.values.get("conflicts")) is not None
                ):
                    # of a method that counts conflicts, but not the steps that had a memory, all
                    # steps count
                    last[index, line.phase] = (line.values.get("steps") or line.step, conflicts)
        steps = sum(steps for steps, _ in last.values())
        if steps:
            share = 100 * (1 - sum(steps * conflicts for steps, conflicts in last.values()) / steps)
            numbers.put("positive", run.row, numbers.last, run.seed, share)


def _put_similarities(numbers: Measurements, part: Study) -> None:
    """ARS; how much it falls a stage, by least squares; how much more a head attends as its
    ancestor than as others.
    """
    ars = part.similarities.dropna(subset=["ars"])
    for row, stage, seed, value in ars[["row", "stage", "seed", "ars"]].itertuples(index=False):
        numbers.put("ARS", row, stage, seed, value)
    # of runs that have it after each stage; a line a stage, a column a run
    whole = ars.astype({"ars": float}).pivot_table("ars", "stage", ["row", "seed"]).dropna(axis=1)
    if whole.size and len(whole) == numbers.last > 1:
        slopes = np.polyfit(whole.index, whole, 1)[0]
        for (row, seed), slope in zip(whole.columns, slopes, strict=True):
            numbers.put("fall", row, numbers.last, seed, -slope)
    heads = part.attentions.dropna(subset=["own", "others"])
    for row, stage, seed, own, others in heads[
        ["row", "stage", "seed", "own", "others"]
    ].itertuples(index=False):
        numbers.put("attention", row, stage, seed, own - others)
