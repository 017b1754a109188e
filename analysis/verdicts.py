"""Holds claims against measurements: held, not held, or not decidable.

A claim is a set of comparisons of two rows, each paired by pre-training seed. It is held when every comparison is
significantly on the claim's side of its bound (an intersection-union test, which needs no correction), not held when
at least one is significantly on the other side (corrected for the claim's comparisons, by Bonferroni, which is Holm's
first step and all that "at least one" needs), else not decidable. Both directions of all claims of a scorecard are
then corrected together, by Holm, so that a scorecard has a wrong verdict in at most 5% of cases.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Literal

import numpy as np

from analysis.claims import PAPER, ZERO, Claim, Criterion
from analysis.inference import ERRORS, detectable, fewest_seeds, holm, one_sided
from analysis.measurements import AVERAGE, Key, Measurements
from analysis.metrics import Floats
from benchmark.settings.names import slug

State = Literal["held", "not held", "not decidable"]


@dataclass(frozen=True)
class Metric:
    """How two values compare: whether the lower is better, and whether their ratio counts or their difference."""

    lower: bool
    ratio: bool = False
    unit: str = ""

    def change(self, one: Floats, other: Floats) -> Floats:
        """What `one` makes of `other`: a log ratio, or a difference."""
        return np.log(one) - np.log(other) if self.ratio else one - other

    def step(self, amount: float) -> float:
        """An amount as a claim says it (0.05: 5%, or two points) on the scale of `change`."""
        return math.log1p(amount) if self.ratio else amount

    def show(self, change: float) -> str:
        value, digits = (100 * math.expm1(change), 1) if self.ratio else (change, 2)
        return f"{round(value, digits) + 0.0:+.{digits}f}{self.unit}".replace("-", "−")


METRICS: Mapping[str, Metric] = {
    "AP": Metric(lower=True, ratio=True, unit="%"),
    "AP⁺": Metric(lower=True),
    "area": Metric(lower=True, ratio=True, unit="%"),
    "score": Metric(lower=False, unit=" pt"),
    "positive": Metric(lower=False, unit="%"),
    "ARS": Metric(lower=False),
    "fall": Metric(lower=False),
    "attention": Metric(lower=False),
}


@dataclass(frozen=True)
class Comparison:
    """A claim's `row` against `other` after one stage (from 0), on one task's domain if it is about scores.

    `changes` (seeds,) is what the row makes of the other's value, and `excess` (bounds, seeds) how far that is on the
    claim's side of its bounds; a claim of sameness has two bounds. Both are empty where nothing is measured.
    """

    row: str
    other: str
    stage: int
    column: str
    changes: Floats
    excess: Floats

    @cached_property
    def p_values(self) -> tuple[float, float]:
        """The p-values of "within all bounds" and of "beyond one of them", the latter corrected for their number."""
        above, below = one_sided(self.excess.T)
        return float(above.max()), min(1.0, len(self.excess) * float(below.min()))

    @property
    def margin(self) -> Floats:
        """How far each seed is on the claim's side of the bound that is nearest on average, shape (seeds,)."""
        return self.excess[int(np.argmin(self.excess.mean(axis=1)))]


@dataclass(frozen=True)
class Verdict:
    """A claim with its comparisons, the state of both together, and the corrected p-value of that state.

    `tests` is what p was corrected for, `printed` holds the same comparisons in the paper's numbers.
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
        return weakest(self.comparisons)

    @property
    def reason(self) -> str:
        """Why it is not decidable, where that is not because the seeds differ too much."""
        if self.state != "not decidable":
            return ""
        missing = [comparison for comparison in self.comparisons if not comparison.changes.size]
        present = {slug(name) for c in self.comparisons if c.changes.size for name in (c.row, c.other)}
        absent = dict.fromkeys(name for c in missing for name in (c.row, c.other) if slug(name) not in present)
        if absent:
            return f"nothing measured of {', '.join(absent)}"
        if missing:
            return f"{len(missing)} of {len(self.comparisons)} comparisons not measured yet"
        if any(not np.isfinite(comparison.changes).all() for comparison in self.comparisons):
            return "a run diverged"
        fewest = min(len(comparison.changes) for comparison in self.comparisons)
        needed = fewest_seeds(self.tests)
        return f"{fewest} of at least {needed} seeds" if fewest < needed else ""

    @property
    def decidable_from(self) -> float:
        """The smallest true distance from the bound that these seeds would have decided in four of five cases.

        Of the weakest comparison alone: all of a claim hold at once less often. NaN where they decided, or could not.
        """
        values = self.weakest.margin
        if self.state != "not decidable" or self.reason or len(values) < 2:
            return math.nan
        return detectable(float(np.std(values, ddof=1)), len(values), self.tests)


def weakest(comparisons: Sequence[Comparison]) -> Comparison:
    """The measured comparison that is least on the claim's side: the largest p-value, then the smallest mean."""
    measured = [comparison for comparison in comparisons if comparison.changes.size]
    return max(measured, key=lambda one: (one.p_values[0], -float(one.margin.mean())))


def compare(claim: Claim, values: Measurements) -> tuple[Comparison, ...]:
    """All comparisons of a claim, each over the seeds that both of its rows have; none where none has any."""
    criterion = claim.criterion
    stages = range(1, len(values.stages)) if criterion.stages == "each" else [values.last]
    tasks = list(values.tasks) if criterion.columns == "each" else [AVERAGE]
    columns = tasks if criterion.metric == "score" else [""]
    than = claim.than or [row for row in PAPER if row not in claim.rows]
    pairs = product(claim.rows, than, stages, columns)
    comparisons = tuple(_compare(criterion, values, *pair) for pair in pairs)
    return comparisons if any(comparison.changes.size for comparison in comparisons) else ()


def _compare(criterion: Criterion, values: Measurements, row: str, other: str, stage: int, column: str) -> Comparison:
    name, metric = criterion.metric, METRICS[criterion.metric]
    ours = values.get(Key(name, slug(row), stage, column))
    theirs = values.get(Key(name, slug(other), stage, column)) if other != ZERO else dict.fromkeys(ours, 0.0)
    seeds = sorted(set(ours) & set(theirs))
    with np.errstate(invalid="ignore"):  # two runs that diverged
        changes = metric.change(*(np.array([side[seed] for seed in seeds], float) for side in (ours, theirs)))
    if criterion.within is not None:
        excess = np.array([changes - metric.step(-criterion.within), metric.step(criterion.within) - changes])
    else:
        excess = np.array([(-changes if metric.lower else changes) - metric.step(criterion.by)])
    return Comparison(row, other, stage, column, changes, excess)


def judge(claims: Sequence[tuple[Claim, tuple[Comparison, ...], tuple[Comparison, ...]]]) -> list[Verdict]:
    """The verdicts of a scorecard on all its claims, each with its comparisons in our numbers and in the paper's."""
    if not claims:
        return []
    both = np.array([claim_p_values([c.p_values for c in ours]) for _, ours, _ in claims])
    held, not_held = np.split(holm(both.T.ravel()), 2)
    verdicts = []
    for (claim, ours, theirs), p, q in zip(claims, held, not_held, strict=True):
        state: State = "held" if p <= ERRORS else "not held" if q <= ERRORS else "not decidable"
        verdicts.append(Verdict(claim, ours, theirs, state, float(min(p, q)), 2 * len(claims)))
    return verdicts


def claim_p_values(comparisons: Sequence[tuple[float, float]] | Floats) -> tuple[Floats, Floats]:
    """The p-values of "held" and of "not held" from those of the comparisons, shape (comparisons, 2, ...)."""
    p = np.asarray(comparisons, float)
    return p[:, 0].max(axis=0), np.minimum(1.0, len(p) * p[:, 1].min(axis=0))
