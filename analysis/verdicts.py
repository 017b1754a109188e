"""Holds claims against numbers: held, not held, or not decidable, with effect and interval.

Each comparison of two rows is paired by pre-training seed and oriented so that positive is the claim's way; a claim is
as strong as its weakest comparison. It is held when the 95% bootstrap interval (over seeds) of that effect lies above
what the claim asks for, not held when it lies below, and else, or with one seed, or with cells missing, not decidable.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from analysis import metrics
from analysis.claims import PAPER, ZERO, Claim
from analysis.measurements import AVERAGE, LAST, Key, Measurements
from analysis.printed import slug

Floats = NDArray[np.float64]
State = Literal["held", "not held", "not decidable"]


@dataclass(frozen=True)
class Metric:
    """How two values compare: whether the lower is better, and whether their ratio counts or their difference."""

    lower: bool
    ratio: bool = False
    unit: str = ""

    def gain(self, one: Floats, other: Floats) -> Floats:
        """Positive where `one` is better: a log ratio, or a difference."""
        difference = np.log(one) - np.log(other) if self.ratio else one - other
        return -difference if self.lower else difference

    def show(self, gain: float) -> str:
        """As the change that `one` makes to `other`."""
        change = -gain if self.lower else gain
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
LOOKED_FOR = ("score", "ARS", "fall", "attention")  # not every suite has these of rows that it has


@dataclass(frozen=True)
class Verdict:
    """`effect`, `interval` and `printed` (the effect in the paper's numbers) are in words.

    `reason`: why it is not decidable, where that is not because the interval holds both.
    """

    claim: Claim
    state: State
    effect: str = ""
    interval: str = ""
    seeds: int = 0
    printed: str = ""
    reason: str = ""


def judge(claim: Claim, ours: Measurements, paper: Measurements) -> Verdict | None:
    """The verdict on a claim; None where the suite does not have the rows that it is about."""
    gains = compare(claim, ours)
    if gains is None:
        return None
    theirs = compare(claim, paper)
    printed = "" if theirs is None or not theirs.size else _show(claim, _effect(claim, theirs, 0))
    if not gains.size:
        return Verdict(claim, "not decidable", printed=printed, reason="not all cells are measured yet")
    low, high = metrics.bootstrap_interval(gains, lambda values, axis: _effect(claim, values, axis))
    state: State = "held" if low > 0 else "not held" if high < 0 else "not decidable"
    reason = "one seed" if len(gains) == 1 else ""
    return Verdict(
        claim, state, _show(claim, _effect(claim, gains, 0)), _interval(claim, low, high), len(gains), printed, reason
    )


def compare(claim: Claim, numbers: Measurements) -> Floats | None:
    """Gains (seeds, comparisons) over the seeds that all of these have; None where a row is not there at all."""
    there = numbers.rows(claim.metric if claim.metric in LOOKED_FOR else "AP")
    than = claim.than or [row for row in PAPER if row not in claim.rows and slug(row) in there]
    if not than or not {slug(row) for row in (*claim.rows, *than)} <= there | {ZERO}:
        return None
    stages = range(1, numbers.stages) if claim.stages == "each" else [LAST]
    tasks = numbers.columns if claim.columns == "each" else [AVERAGE]
    cells = list(product(stages, tasks if claim.metric == "score" else [""]))
    keys = [
        (Key(claim.metric, slug(row), *cell), Key(claim.metric, slug(other), *cell))
        for row, other in product(claim.rows, than)
        for cell in cells
    ]
    pairs = [(numbers.get(one), numbers.get(other)) for one, other in keys]
    zeros = dict.fromkeys({seed for one, _ in pairs for seed in one}, 0.0)
    pairs = [(one, zeros if key.row == ZERO else other) for (one, other), (_, key) in zip(pairs, keys, strict=True)]
    seeds = sorted(set.intersection(*(set(one) & set(other) for one, other in pairs)))
    gain = METRICS[claim.metric].gain
    gains = [gain(*(np.array([side[seed] for seed in seeds]) for side in pair)) for pair in pairs]
    return np.array(gains).T if seeds else np.empty((0, 0))


def _effect(claim: Claim, gains: Floats, axis: int) -> Floats:
    """The weakest comparison's mean over seeds, counted from what the claim asks for."""
    means = gains.mean(axis=axis)
    return (claim.within - np.abs(means) if claim.within is not None else means - claim.by).min(axis=-1)


def _interval(claim: Claim, low: float, high: float) -> str:
    """From the lowest to the highest change, the unit said once."""
    if math.isnan(low):
        return ""
    metric = METRICS[claim.metric]
    first, last = (high, low) if metric.lower or claim.within is not None else (low, high)
    return f"{_show(claim, first).removesuffix(metric.unit)} to {_show(claim, last)}"


def _show(claim: Claim, effect: Floats | float) -> str:
    """The gain itself, not what it leaves of a margin."""
    metric = METRICS[claim.metric]
    if claim.within is None:
        return metric.show(float(effect) + claim.by)
    return "±" + metric.show(float(effect) - claim.within).lstrip("+−")
