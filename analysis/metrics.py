"""Metrics of a stream of domains: their formulas and their properties.

AP itself is in `benchmark.metrics`.

`perplexity` arrays end in a domain axis of length D, in the order of the stream. `stage` is the
index (from 0) of the domain being learned, so domains 0..stage have been seen. `finished[..., i]`
is the perplexity on domain i when its own stage ended. Leading axes broadcast, so one call serves a
table of evaluations as well as a single one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Metric:
    """A metric's properties: how it is shown, and how two of its values compare."""

    name: str
    column: str = ""  # of a study's evaluations
    lower: bool = False  # whether the lower is better
    ratio: bool = False  # whether a change is a ratio of two values, or else a difference
    unit: str = ""  # of a change
    digits: int = 2  # decimals of a change (a table sets those of a value)
    axis: str = "linear"

    def measure_change(self, value: Floats, reference: Floats) -> Floats:
        """The change from `reference` to `value`: a log ratio, or a difference."""
        if self.ratio:
            return np.log(value) - np.log(reference)
        return value - reference

    def to_change(self, amount: float) -> float:
        """Convert an amount in a claim to the scale of `measure_change`.

        A claim says 0.05 for 5%, or 2 for two points.
        """
        if self.ratio:
            return math.log1p(amount)
        return amount

    def show(self, change: float) -> str:
        """A change in words, with its sign and its unit."""
        value = 100 * math.expm1(change) if self.ratio else change
        rounded = round(value, self.digits) + 0.0
        text = f"{rounded:+.{self.digits}f}{self.unit}"
        return text.replace("-", "−")


AP = Metric("AP", "ap", lower=True, ratio=True, unit="%", digits=1, axis="log")
AP_PLUS = Metric("AP⁺", "ap_plus", lower=True)
PERPLEXITIES = (AP, AP_PLUS)
METRICS = {
    metric.name: metric
    for metric in (
        *PERPLEXITIES,
        Metric("area", lower=True, ratio=True, unit="%", digits=1),  # under the curve of AP
        Metric("score", unit=" pt"),
        Metric("agreement", unit="%"),  # share of A-GEM's steps without conflicting gradients
        Metric("ARS"),
        Metric("fall"),  # of ARS
        Metric("attention"),  # how much more heads attend like their ancestor than like others
    )
}


def average_increase(perplexity: ArrayLike, finished: ArrayLike, stage: ArrayLike) -> Floats:
    """AP+: mean rise of earlier domains' perplexity since their stage ended (ELLE).

    NaN in the first stage. From log perplexities it is in nats, and one badly forgotten domain does
    not outweigh all others.
    """
    values = np.asarray(perplexity, float)
    stage_ends = np.asarray(finished, float)
    current = np.asarray(stage)
    is_earlier = np.arange(values.shape[-1]) < current[..., None]
    with np.errstate(invalid="ignore"):  # inf - inf, for a domain that diverged and stayed so
        rise = np.where(is_earlier, values - stage_ends, 0.0).sum(-1)
    mean = rise / np.maximum(current, 1)
    return np.where(current > 0, mean, np.nan)


def compute_forgetting(matrix: ArrayLike) -> float:
    """Mean rise, in nats, of the earlier domains' losses over the best that any earlier model had.

    `matrix[s, i]` (D, D): perplexity on domain i after stage s, NaN if not measured. It is the
    forgetting of Chaudhry et al. 2018 (Riemannian walk) for losses, which fall: log `matrix[-1, i]`
    minus the least of log `matrix[:-1, i]`, mean over domains 0..D-2. It is negative if the last
    stage helped earlier domains. NaN for a single domain.
    """
    values = np.log(np.asarray(matrix, float))
    if len(values) < 2:
        return math.nan
    best = np.fmin.reduce(values[:-1, :-1], axis=0)
    return float((values[-1, :-1] - best).mean())


def compute_forward_transfer(matrix: ArrayLike, unigram: ArrayLike) -> float:
    """Nats by which a domain not learned yet is predicted better than by its unigram distribution.

    `matrix[s, i]` (D, D): perplexity on domain i after stage s. Mean over domains 1..D-1 just
    before their stage (GEM's forward transfer with the unigram in the place of an untrained model).
    NaN for a single domain.
    """
    values = np.log(np.asarray(matrix, float))
    references = np.log(np.asarray(unigram, float))
    gains = references[1:] - np.diagonal(values, offset=1)
    if gains.size:
        return float(gains.mean())
    return math.nan


TIMES = ("Backward", "Same time", "Forward")


def average_over_time(matrix: ArrayLike) -> dict[str, float]:
    """For streams in time, mean perplexity on periods before, at and after the one just learned.

    By the names in TIMES, these are means over the entries below, on and above the diagonal of
    `matrix` (D, D): `matrix[s, i]` is the perplexity on period i after stage s. TiC-LM (Li et al.
    2025, arXiv 2504.02107) averages log perplexities. Ours are the exponentials of its averages,
    geometric means like AP. NaN if a measurement is missing, or if there are no such entries.
    """
    values = np.log(np.asarray(matrix, float))
    stages, periods = np.indices(values.shape)
    averages = {}
    for name, is_meant in zip(
        TIMES, (periods < stages, periods == stages, periods > stages), strict=True
    ):
        averages[name] = math.exp(values[is_meant].mean()) if is_meant.any() else math.nan
    return averages


def compute_area_under_curve(charged: ArrayLike, values: ArrayLike) -> float:
    """Area under a curve over the charged budget, divided by the budget's span.

    That is the curve's mean height.
    """
    x = np.asarray(charged, float)
    y = np.asarray(values, float)
    if len(x) < 2 or x[-1] == x[0]:
        return math.nan
    return float(np.trapezoid(y, x) / (x[-1] - x[0]))


def find_budget_to_reach(charged: ArrayLike, values: ArrayLike, target: float) -> float:
    """Charged amount from which a curve stays at `target` or below.

    The curve is linear between points. NaN if it ends above the target.
    """
    x = np.asarray(charged, float)
    y = np.asarray(values, float)
    misses = np.flatnonzero(~(y <= target))  # NaN misses, too
    if not misses.size:
        return float(x[0])
    last_miss = misses[-1]
    if last_miss == len(y) - 1:
        return math.nan
    crossing = slice(last_miss, last_miss + 2)
    # the curve falls here, and np.interp needs values that rise
    return float(np.interp(-target, -y[crossing], x[crossing]))


def compute_ars(divergences: ArrayLike) -> float:
    """ARS_j of a model (ELLE, appendix).

    `divergences`: KL(p^i_k || p^j_k) in nats, shape (ancestors i, masked tokens k).
    """
    return -float(np.mean(np.asarray(divergences, float)))
