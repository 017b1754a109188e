"""Statistical inference from few seeds: intervals of means, one-sided tests, Holm's correction, and
power.

Everything rests on Student's t from scipy. docs/statistics.md says why, and shows by simulation how
often it errs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.special
from numpy.typing import ArrayLike

from analysis.metrics import Floats

# the share of reports with a wrong verdict, and of intervals without the mean, that is accepted
ERRORS = 0.05
POWER = 0.8
# the largest probability with which the difference of two independent runs of the same noise has a
# given value other than 0; noise of two neighbouring values, with probability 1/2 each, comes to it
# (Motzkin and Straus 1965)
SAME_DIFFERENCE = 0.25


def compute_interval(values: ArrayLike, shared: float = 0.0) -> tuple[Any, Any]:
    """The 95% Student t interval, shape (...), of the mean of independent values (n, ...); NaN for
    fewer than two.

    `shared` is the variance of an error that all values have in common; degrees of freedom are
    Satterthwaite's then, which alone would make the interval of a few values narrower than it is
    without that error.
    """
    sample = np.asarray(values, float)
    if len(sample) < 2:
        return math.nan, math.nan
    freedom = len(sample) - 1.0
    with np.errstate(invalid="ignore"):  # an infinite value has no interval
        own = sample.var(axis=0, ddof=1) / len(sample)
        half = scipy.special.stdtrit(freedom, 1 - ERRORS / 2) * np.sqrt(own)
        if shared:
            more = freedom * (1 + shared / own) ** 2 if own else math.inf
            half = np.maximum(
                half, scipy.special.stdtrit(more, 1 - ERRORS / 2) * np.sqrt(own + shared)
            )
        return sample.mean(axis=0) - half, sample.mean(axis=0) + half


def show_mean(values: Floats, show: Callable[[float], str], shared: float = 0.0) -> tuple[str, str]:
    """The mean of values and its interval (see `compute_interval`), which is "" where there is
    none.
    """
    low, high = compute_interval(values, shared)
    return show(float(values.mean())), "" if math.isnan(low) else f"{show(low)} to {show(high)}"


def estimate_document_variance(nats: Floats, tokens: Floats) -> float:
    """The variance that the choice of documents brings to a text's loss per token, or to the
    difference of two losses.

    `nats` and `tokens` (documents,). Variance of a ratio of sums, linearised (Cochran 1977, section
    6.3); a bootstrap over documents comes to the same. NaN for a single document.
    """
    if len(nats) < 2:
        return math.nan
    rest = nats - nats.sum() / tokens.sum() * tokens
    return float(len(nats) / (len(nats) - 1) * (rest @ rest) / tokens.sum() ** 2)


def compute_one_sided_p(excess: Floats) -> tuple[Floats, Floats]:
    """The p-values, shape (...), of "the mean is above 0" and of "the mean is below 0", for
    `excess` (seeds, ...).

    They are Student's, but never below SAME_DIFFERENCE to the power of the seeds: equal differences
    look certain to Student, though rounded scores or seeds that get stuck make them by chance. Both
    are 1 for fewer than two seeds, where a value is not finite, and where all values are 0.
    """
    seeds = len(excess)
    if seeds < 2:
        return np.ones(excess.shape[1:]), np.ones(excess.shape[1:])
    with np.errstate(divide="ignore", invalid="ignore"):
        t = excess.mean(axis=0) / (excess.std(axis=0, ddof=1) / math.sqrt(seeds))
    return compute_p_above(t, seeds), compute_p_above(-t, seeds)


def compute_p_above(t: Floats, seeds: int) -> Floats:
    """The p-value of "the mean is above 0" for a t statistic of so many seeds, see
    `compute_one_sided_p`.
    """
    p = np.maximum(scipy.special.stdtr(seeds - 1, -t), SAME_DIFFERENCE**seeds)
    return np.where(np.isnan(t), 1.0, p)


def correct_by_holm(p: Floats) -> Floats:
    """The p-values of tests, shape (tests, ...), corrected for their number (Holm 1979), whatever
    their dependence.
    """
    order = np.argsort(p, axis=0)
    left = len(p) - np.arange(len(p)).reshape(-1, *[1] * (p.ndim - 1))
    stepped = np.maximum.accumulate(left * np.take_along_axis(p, order, axis=0), axis=0)
    corrected = np.empty_like(p)
    np.put_along_axis(corrected, order, np.minimum(stepped, 1.0), axis=0)
    return corrected


def count_fewest_seeds(tests: int) -> int:
    """The number of seeds below which none of so many tests can come out significant."""
    return max(2, math.ceil(math.log(ERRORS / tests) / math.log(SAME_DIFFERENCE)))


def find_detectable_mean(sd: float, seeds: int, tests: int) -> float:
    """The mean that so many seeds of this standard deviation tell from 0 with probability POWER, in
    one of `tests`.

    NaN where they cannot at all.
    """
    if seeds < count_fewest_seeds(tests):
        return math.nan
    critical = scipy.special.stdtrit(seeds - 1, 1 - ERRORS / tests)
    # the noncentral t with this mean is above `critical` with probability POWER
    mean = scipy.special.nctdtrinc(seeds - 1, 1 - POWER, critical)
    return float(mean) * sd / math.sqrt(seeds)
