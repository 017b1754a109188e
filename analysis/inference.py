"""Statistical inference from few seeds.

It has intervals of means, one-sided tests, Holm's correction, and power.

Everything rests on Student's t from scipy. docs/statistics.md says why, and shows by simulation how
often it errs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
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
GAUSSIAN = 1e6  # degrees of freedom, from which on Student's t is the normal distribution
EQUAL = "all equal"  # in the place of an interval, where values have no spread to tell one from


def compute_interval(values: ArrayLike, shared: float = 0.0) -> tuple[Any, Any]:
    """The 95% Student t interval, shape (...), of the mean of independent values (n, ...).

    NaN for fewer than two. `shared` is the variance of an error that all values have in common.
    Degrees of freedom are Satterthwaite's then. Alone they would make the interval of a few values
    narrower than it is without that error.
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
    """The mean of values and its interval, which is "" where there is none.

    The interval is that of `compute_interval`. Several equal values have EQUAL in its place.
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
    """The variance that the choice of documents brings to a text's loss per token.

    It may be the difference of two losses, too. `nats` and `tokens` (documents,). It is the
    variance of a ratio of sums, linearised (Cochran 1977, section 6.3). A bootstrap over documents
    comes to the same. NaN for a single document.

    `sources`: of each document the number of what it was cut from. Documents that share it, as
    pieces of a novel do, are drawn together and count as one (Cochran 1977, section 9A.2). Where
    all share one, they are drawn from it one by one.
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

    They are of `excess` (seeds, ...) and Student's, but never below SAME_DIFFERENCE to the power of
    the seeds. Equal differences look certain to Student, though rounded scores or seeds that get
    stuck make them by chance. Both are 1 for fewer than two seeds, where a value is not finite, and
    where all values are 0.

    `shared` is the variance of an error that all seeds have in common, as in `compute_interval`:
    the two have one standard error and one number of degrees of freedom.
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
    """The probability above t, 1 where there is no t."""
    return np.where(np.isnan(t), 1.0, scipy.special.stdtr(freedom, -t))


def compute_two_sided_p(changes: Floats, shared: float = 0.0) -> float:
    """The p-value of "the mean of `changes` (seeds,) is not 0"."""
    above, below = compute_one_sided_p(changes, shared)
    return min(1.0, 2 * float(min(above, below)))


def compute_sameness_p(changes: Floats, bound: float, shared: float = 0.0) -> float:
    """The p-value of "the mean of `changes` (seeds,) lies within plus or minus `bound`".

    It is that of two one-sided tests (Schuirmann 1987): the larger of the two.
    """
    above, _ = compute_one_sided_p(changes + bound, shared)
    _, below = compute_one_sided_p(changes - bound, shared)
    return float(max(above, below))


def name_change(mean: float, p: float, p_of_sameness: float, within: str) -> str:
    """The verdict on a change: lower, higher, within some bound, or not decided.

    `p` is that of a difference. Both p-values may be corrected. `within` says the bound, as "3%".
    A small change may be told from 0 and lie within the bound, too: it is lower or higher.
    """
    if p <= ERRORS:
        return "lower" if mean < 0 else "higher"
    if p_of_sameness <= ERRORS:
        return f"within {within}"
    return "not decided"


def compute_p_above(t: Floats, seeds: int) -> Floats:
    """The p-value of "the mean is above 0" for a t statistic of so many seeds.

    It is as `compute_one_sided_p` has it.
    """
    return np.maximum(_compute_tail(t, seeds - 1), SAME_DIFFERENCE**seeds)


def correct_by_holm(p: Floats) -> Floats:
    """The p-values of tests, shape (tests, ...), corrected for their number (Holm 1979).

    It holds whatever the dependence of the tests.
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
    """The number of seeds below which none of so many tests can come out significant."""
    seeds = math.log(ERRORS / tests) / math.log(SAME_DIFFERENCE)
    return max(2, math.ceil(seeds))


def find_detectable_mean(sd: float, seeds: int, tests: int, shared: float = 0.0) -> float:
    """The mean that so many seeds of this standard deviation tell from 0 with probability POWER.

    It is told in one of `tests`. NaN where the seeds cannot tell any. `shared` is as in
    `compute_one_sided_p`.
    """
    if seeds < count_fewest_seeds(tests):
        return math.nan
    variance = sd**2 / seeds
    errors = {seeds - 1.0: variance}
    if shared:
        freedom = math.inf
        if variance:
            freedom = (seeds - 1) * (1 + shared / variance) ** 2
        errors[min(freedom, GAUSSIAN)] = variance + shared
    means = []
    for freedom, squared_error in errors.items():
        critical = scipy.special.stdtrit(freedom, 1 - ERRORS / tests)
        # the noncentral t with this mean is above `critical` with probability POWER
        mean = scipy.special.nctdtrinc(freedom, 1 - POWER, critical)
        means.append(float(mean) * math.sqrt(squared_error))
    return max(means)
