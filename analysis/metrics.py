"""Metrics of a stream of domains, by formula, and the properties of each; AP itself is in
`benchmark.metrics`.

`perplexity` arrays end in a domain axis of length D, in the order of the stream; `stage` is the
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
    ratio: bool = False  # whether the ratio of two values counts, or their difference
    unit: str = ""  # of a change
    digits: int = 2  # of a change; a value has those of its table
    axis: str = "linear"

    def measure_change(self, value: Floats, reference: Floats) -> Floats:
        """The change from `reference` to `value`: a log ratio, or a difference."""
        return np.log(value) - np.log(reference) if self.ratio else value - reference

    def to_change(self, amount: float) -> float:
        """An amount as a claim says it (0.05: 5%, or two points) on the scale of `measure_change`."""
        return math.log1p(amount) if self.ratio else amount

    def show(self, change: float) -> str:
        value = 100 * math.expm1(change) if self.ratio else change
        return f"{round(value, self.digits) + 0.0:+.{self.digits}f}{self.unit}".replace("-", "−")


AP = Metric("AP", "ap", lower=True, ratio=True, unit="%", digits=1, axis="log")
AP_PLUS = Metric("AP⁺", "ap_plus", lower=True)
PERPLEXITIES = (AP, AP_PLUS)
METRICS = {
    metric.name: metric
    for metric in (
        *PERPLEXITIES,
        Metric("area", lower=True, ratio=True, unit="%", digits=1),  # under the curve of AP
        Metric("score", unit=" pt"),
        Metric("positive", unit="%"),  # products of A-GEM's gradients
        Metric("ARS"),
        Metric("fall"),  # of ARS
        Metric("attention"),  # of heads as their own ancestor, above that as others
    )
}


def average_increase(perplexity: ArrayLike, finished: ArrayLike, stage: ArrayLike) -> Floats:
    """AP+: mean rise of earlier domains' perplexity since their stage ended; NaN in the first stage
    (ELLE).

    Of log perplexities it is in nats, and one badly forgotten domain does not outweigh all others.
    """
    now, stage = np.asarray(perplexity, float), np.asarray(stage)
    past = np.arange(now.shape[-1]) < stage[..., None]
    with np.errstate(invalid="ignore"):  # inf - inf, for a domain that diverged and stayed so
        rise = np.where(past, now - np.asarray(finished, float), 0.0).sum(-1)
    return np.where(stage > 0, rise / np.maximum(stage, 1), np.nan)


def compute_forward_transfer(matrix: ArrayLike, unigram: ArrayLike) -> float:
    """Nats by which a domain not learned yet is predicted better than by its own unigram
    distribution.

    `matrix[s, i]` (D, D): perplexity on domain i after stage s. Mean over domains 1..D-1 just
    before their stage (GEM's forward transfer with the unigram in the place of an untrained model).
    NaN for a single domain.
    """
    values = np.log(np.asarray(matrix, float))
    gains = np.log(np.asarray(unigram, float))[1:] - np.diagonal(values, offset=1)
    return float(gains.mean()) if gains.size else float("nan")


def compute_area_under_curve(charged: ArrayLike, values: ArrayLike) -> float:
    """Area under a curve over the charged budget, divided by the budget's span: the curve's mean
    height.
    """
    x, y = np.asarray(charged, float), np.asarray(values, float)
    if len(x) < 2 or x[-1] == x[0]:
        return float("nan")
    return float(((y[1:] + y[:-1]) / 2 * np.diff(x)).sum() / (x[-1] - x[0]))


def find_budget_to_reach(charged: ArrayLike, values: ArrayLike, target: float) -> float:
    """Charged amount from which a curve stays at `target` or below, linear between points; NaN if
    it ends above.
    """
    x, y = np.asarray(charged, float), np.asarray(values, float)
    above = np.flatnonzero(~(y <= target))
    k = above[-1] + 1 if above.size else 0
    if k == 0 or k == len(y):
        return float("nan") if k else float(x[0])
    return float(x[k - 1] + (x[k] - x[k - 1]) * (y[k - 1] - target) / (y[k - 1] - y[k]))


def compute_ars(divergences: ArrayLike) -> float:
    """ARS_j of a model, from KL(p^i_k || p^j_k) in nats, shape (ancestors i, masked tokens k)
    (ELLE, appendix).
    """
    return -float(np.mean(np.asarray(divergences, float)))
