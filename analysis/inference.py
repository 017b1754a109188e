"""Statistical inference from few seeds.

It has intervals of means, one-sided tests, Holm's correction, and power.

Everything rests on Student's t from scipy. docs/statistics.md explains it, and
docs/appendix_statistics.md shows by simulation how often it errs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import scipy.special
from numpy.typing import ArrayLike

from analysis.metrics import Floats

# the accepted share of reports with a wrong verdict, and of intervals that miss the mean
ERRORS = 0.05
POWER = 0.8
# The difference of two independent runs with the same noise has any given value other than 0 with
# at most this probability. Noise with two neighbouring values, each with probability 1/2, reaches
# it (Motzkin and Straus 1965).
SAME_DIFFERENCE = 0.25
GAUSSIAN = 1e6  # degrees of freedom from which on Student's t equals the normal distribution
EQUAL = "all equal"  # instead of an interval, if values have no spread to compute it from


def compute_interval(values: ArrayLike, shared: float = 0.0) -> tuple[Any, Any]:
    """The 95% Student t interval, shape (...), of the mean of independent values (n, ...).

    NaN for fewer than two values. `shared` is the variance of an error that all values have in
    common. The degrees of freedom are then Satterthwaite's. For few values these may give a
    narrower interval than without that error, so the wider of the two is returned.
    """
    sample = np.asarray(values, float)
    if len(sample) < 2:
        return math.nan, math.nan
    freedom = len(sample) - 1.0
    level = 1 - ERRORS / 2
    with np.errstate(invalid="ignore"):  # an infinite value has no interval
        mean = sample.mean(axis=0)
        variance = sample.var(axis=0, ddof=1) / len(sample)
        half = scipy.special.stdtrit(freedom, level) * np.sqrt(variance)
        if shared:
            joint_freedom = math.inf
            if variance:
                joint_freedom = freedom * (1 + shared / variance) ** 2
            joint_half = scipy.special.stdtrit(joint_freedom, level) * np.sqrt(variance + shared)
            half = np.maximum(half, joint_half)
        return mean - half, mean + half


def show_mean(values: Floats, show: Callable[[float], str], shared: float = 0.0) -> tuple[str, str]:
    """The mean of values and its interval by `compute_interval`, as texts.

    The interval is "" if there is none. It is EQUAL if there are several values, all of them equal,
    and `shared` is 0.
    """
    mean = show(float(values.mean()))
    if len(values) > 1 and not shared and np.ptp(values) == 0:
        return mean, EQUAL
    low, high = compute_interval(values, shared)
    if math.isnan(low):
        return mean, ""
    return mean, f"{show(low)} to {show(high)}"


def estimate_document_variance(
    nats: Floats, tokens: Floats, sources: Sequence[int] | None = None
) -> float:
    """The variance of a text's loss per token that comes from the choice of its documents.

    `nats` and `tokens` have shape (documents,). `nats` may also be the difference of two losses.
    The estimate is the linearised variance of a ratio of sums (Cochran 1977, section 6.3). A
    bootstrap over documents gives the same. NaN for a single document.

    `sources`: for each document the number of the source that it was cut from. Documents of one
    source, such as pieces of a novel, are drawn together and count as one (Cochran 1977, section
    9A.2). If all documents have the same source, each counts on its own.
    """
    if sources is not None and len(set(sources)) > 1:
        nats = np.bincount(sources, nats).astype(float)
        tokens = np.bincount(sources, tokens).astype(float)
    documents = len(nats)
    if documents < 2:
        return math.nan
    total = tokens.sum()
    residuals = nats - nats.sum() / total * tokens
    squares = residuals @ residuals
    return float(documents / (documents - 1) * squares / total**2)


def compute_one_sided_p(excess: Floats, shared: float = 0.0) -> tuple[Floats, Floats]:
    """The p-values, shape (...), of "the mean is above 0" and of "the mean is below 0".

    They come from Student's t test of `excess` (seeds, ...), but are never below SAME_DIFFERENCE to
    the power of the number of seeds. To Student's test equal differences look certain, though
    rounded scores or seeds that get stuck produce them by chance. Both p-values are 1 for fewer
    than two seeds, if a value is not finite, and if all values are 0.

    `shared` is the variance of an error that all seeds have in common. The standard error and the
    degrees of freedom are then those of `compute_interval`.
    """
    seeds = len(excess)
    if seeds < 2:
        shape = excess.shape[1:]
        return np.ones(shape), np.ones(shape)
    with np.errstate(divide="ignore", invalid="ignore"):
        mean = excess.mean(axis=0)
        variance = excess.var(axis=0, ddof=1) / seeds
        t = mean / np.sqrt(variance)
        above = compute_p_above(t, seeds)
        below = compute_p_above(-t, seeds)
        if shared:
            freedom = (seeds - 1) * (1 + shared / variance) ** 2
            t = mean / np.sqrt(variance + shared)
            above = np.maximum(above, _compute_tail(t, freedom))
            below = np.maximum(below, _compute_tail(-t, freedom))
    return above, below


def _compute_tail(t: Floats, freedom: Floats | int) -> Floats:
    """The probability that Student's t is above `t`, 1 if `t` is NaN."""
    return np.where(np.isnan(t), 1.0, scipy.special.stdtr(freedom, -t))


def compute_p_above(t: Floats, seeds: int) -> Floats:
    """The p-value of "the mean is above 0" for a t statistic of this many seeds.

    As in `compute_one_sided_p`, it is never below SAME_DIFFERENCE to the power of `seeds`.
    """
    return np.maximum(_compute_tail(t, seeds - 1), SAME_DIFFERENCE**seeds)


def correct_by_holm(p: Floats) -> Floats:
    """The p-values of tests, shape (tests, ...), corrected for their number (Holm 1979).

    The correction is valid whatever the dependence between tests.
    """
    order = np.argsort(p, axis=0)
    shape = (-1, *[1] * (p.ndim - 1))
    ranks = np.arange(len(p)).reshape(shape)
    factors = len(p) - ranks
    ordered = np.take_along_axis(p, order, axis=0)
    stepped = np.maximum.accumulate(factors * ordered, axis=0)
    corrected = np.empty_like(p)
    np.put_along_axis(corrected, order, np.minimum(stepped, 1.0), axis=0)
    return corrected


def count_fewest_seeds(tests: int) -> int:
    """The fewest seeds with which any of this many tests can be significant."""
    seeds = math.log(ERRORS / tests) / math.log(SAME_DIFFERENCE)
    return max(2, math.ceil(seeds))


def find_detectable_mean(sd: float, seeds: int, tests: int, shared: float = 0.0) -> float:
    """The smallest true mean that a test, one of `tests`, finds significant with probability POWER.

    `sd` is the standard deviation of the seeds. NaN if the seeds are too few for any test to be
    significant. `shared` is as in `compute_one_sided_p`.
    """
    if seeds < count_fewest_seeds(tests):
        return math.nan
    variance = sd**2 / seeds
    squared_errors = {seeds - 1.0: variance}  # of each test, by its degrees of freedom
    if shared:
        joint_freedom = math.inf
        if variance:
            joint_freedom = (seeds - 1) * (1 + shared / variance) ** 2
        squared_errors[min(joint_freedom, GAUSSIAN)] = variance + shared
    means = []
    for freedom, squared_error in squared_errors.items():
        critical = scipy.special.stdtrit(freedom, 1 - ERRORS / tests)
        # the noncentral t with this mean is above `critical` with probability POWER
        mean = scipy.special.nctdtrinc(freedom, 1 - POWER, critical)
        means.append(float(mean) * math.sqrt(squared_error))
    return max(means)  # `compute_one_sided_p` takes the larger p-value of both tests
