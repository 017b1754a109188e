"""How often a scorecard is wrong and an interval misses its mean, simulated.

The card is that of a suite of the paper's methods, with all claims about them. Every value is drawn for each seed, and
claims share the values of their rows as they do on a real card. A verdict is wrong if it is "held" of a claim that is
false, or "not held" of one that is true; where a comparison lies exactly at its bound, "held" is wrong, and where all
do, so is "not held".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from analysis.claims import CLAIMS, PAPER, ZERO
from analysis.inference import ERRORS, holm, interval, one_sided
from analysis.measurements import AVERAGE, PROMPT_ROWS, Measurements
from analysis.metrics import Floats
from analysis.printed import slug
from analysis.verdicts import METRICS, claim_p_values, compare

TITLES = {name: name for name in ("WB", "Ns", "Rev", "Bio", "CS")}
FINETUNINGS = 5
Draw = Callable[[np.random.Generator, tuple[int, ...]], Floats]

# what a row's values differ by between seeds; the scale is the standard deviation, or Cauchy's own
NOISE: dict[str, Draw] = {
    "Gaussian": lambda rng, shape: rng.normal(size=shape),
    "Student's t, 2 degrees": lambda rng, shape: rng.standard_t(2, size=shape),
    "Cauchy": lambda rng, shape: rng.standard_cauchy(size=shape),
    "rounded to one sd": lambda rng, shape: np.round(rng.normal(size=shape)),
    "every other seed stuck 20 sd off": lambda rng, shape: rng.normal(size=shape) + rng.choice([-10.0, 10.0], shape),
}
# name -> how far comparisons are from their bounds, and how far one in half of the claims is on the other side
DIFFERENCES = {"tied": (0.0, 0.0), "weakly": (0.5, -0.5), "strongly": (5.0, -5.0), "all but one strongly": (5.0, 0.0)}


@dataclass(frozen=True)
class Card:
    """The comparisons of all claims, a bound each: the places of its two values, shape (comparisons, 2).

    `sizes` holds the number of comparisons of each claim, `values` the number of values. What a claim holds against
    zero is itself a difference within a run (a rise, a slope, own heads less others), and is drawn as one.
    """

    places: NDArray[np.int64]
    sizes: tuple[int, ...]
    values: int


def main_card() -> Card:
    """The claims about the paper's methods."""
    everything = Measurements(list(TITLES), TITLES)
    for row in [*PAPER, *PROMPT_ROWS.values()]:
        for metric in METRICS:
            for stage in range(len(TITLES)):
                for column in [*TITLES, AVERAGE] if metric == "score" else [""]:
                    everything.put(metric, row, stage, 0, 1.0, column)
    index: dict[tuple[Any, ...], int] = {}
    pairs: list[tuple[int, int]] = []
    sizes = []
    for claim in CLAIMS:
        compared = compare(claim, everything)
        if compared and all(one.changes.size for one in compared):
            for one in compared:
                keys: list[tuple[Any, ...]] = [
                    (claim.metric, slug(row), one.stage, one.column) for row in (one.row, one.other)
                ]
                keys = [(keys[0], key) if key[1] == ZERO else key for key in keys]
                here, there = (index.setdefault(key, len(index)) for key in keys)
                pairs += [(here, there), (there, here)][: len(one.excess)]
            sizes.append(sum(len(one.excess) for one in compared))
    return Card(np.array(pairs), tuple(sizes), len(index))


def simulate(card: Card, noise: str, difference: str, seeds: int, cards: int) -> tuple[float, float]:
    """The share of cards with a wrong verdict, and the share of claims that are decided rightly."""
    rng = np.random.default_rng([seeds, [*NOISE].index(noise), [*DIFFERENCES].index(difference)])
    values = NOISE[noise](rng, (seeds, cards, card.values))
    ahead, behind = DIFFERENCES[difference]
    false = rng.random((len(card.sizes), cards)) < 0.5
    effects, starts = [], np.cumsum([0, *card.sizes])
    for claim, size in enumerate(card.sizes):
        effect = np.full((cards, size), ahead)
        effect[false[claim], rng.integers(size, size=false[claim].sum())] = behind
        effects.append(effect)
    better, worse = card.places.T
    excess = values[:, :, better] - values[:, :, worse] + np.concatenate(effects, axis=1)
    p = np.stack(one_sided(excess)).transpose(2, 0, 1)  # comparisons, directions, cards
    claims = [claim_p_values(p[start : start + size]) for start, size in zip(starts, card.sizes, strict=False)]
    both = np.array(claims).transpose(1, 0, 2).reshape(2 * len(claims), cards)
    held, not_held = (holm(both) <= ERRORS).reshape(2, len(claims), cards)
    refuted = false & (behind < 0)  # claims that are false, and not just at the bound
    wrong = held & (false | (ahead == 0)) | not_held & ~refuted
    right = held & ~false & (ahead > 0) | not_held & refuted
    return float(wrong.any(axis=0).mean()), float(right.mean())


def coverage(noise: str, seeds: int, samples: int) -> float:
    """How often the interval of a score's mean holds 0, the centre of both noises: pre-training's, fine-tuning's."""
    rng = np.random.default_rng([seeds, [*NOISE].index(noise)])
    scores = NOISE[noise](rng, (seeds, 1, samples)) + NOISE[noise](rng, (seeds, FINETUNINGS, samples))
    low, high = interval(scores.mean(axis=1))
    return float(np.mean((low <= 0) & (high >= 0)))
