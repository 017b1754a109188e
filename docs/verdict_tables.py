"""Simulations of how often a scorecard is wrong, and of how often an interval misses its mean.

python -m docs.verdict_tables

It prints the tables of docs/appendix_statistics.md. The scorecard has all claims about the paper's
methods. Every value is drawn for each seed, and claims share the values of their rows, as on a real
card. A verdict is wrong if it is "held" but the claim is false, or "not held" but the claim is
true. If some or all comparisons of a claim lie exactly at their bounds, and none on the wrong side,
both verdicts are wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from analysis.claims import CLAIMS, PAPER, ZERO
from analysis.exhibits import AVERAGE, PROMPT_ROWS
from analysis.inference import ERRORS, compute_interval, compute_p_above, correct_by_holm
from analysis.metrics import METRICS, Floats
from analysis.verdicts import Measurements, compare
from benchmark.settings.names import make_slug

TITLES = {name: name for name in ("WB", "Ns", "Rev", "Bio", "CS")}
FINETUNINGS = 5
SEEDS = range(2, 21)
SHOWN = (3, 4, 5, 6, 8, 10, 15, 20)  # the numbers of seeds in the tables
Draw = Callable[[np.random.Generator, tuple[int, ...]], Floats]

# how a row's values vary between seeds. The unit is the standard deviation, or Cauchy's own scale
NOISE: dict[str, Draw] = {
    "Gaussian": lambda rng, shape: rng.normal(size=shape),
    "Student's t, 2 degrees": lambda rng, shape: rng.standard_t(2, size=shape),
    "Cauchy": lambda rng, shape: rng.standard_cauchy(size=shape),
    "rounded to one sd": lambda rng, shape: np.round(rng.normal(size=shape)),
    "every other seed stuck 20 sd off": lambda rng, shape: (
        rng.normal(size=shape) + rng.choice([-10.0, 10.0], shape)
    ),
}
# noise with another half of a standard deviation per row that all seeds share: from an order, a
# memory, a test text
SHARED: dict[str, Draw] = {
    "Gaussian, half as much shared": lambda rng, shape: (
        rng.normal(size=shape) + rng.normal(0, 0.5, shape[1:])
    )
}
# name -> how far comparisons are from their bounds on the claim's side, and how far one of them is
# instead in half of the claims (negative: on the other side)
DIFFERENCES = {
    "tied": (0.0, 0.0),
    "weakly": (0.5, -0.5),
    "strongly": (5.0, -5.0),
    "all but one strongly": (5.0, 0.0),
}


@dataclass(frozen=True)
class Card:
    """The comparisons of all claims, one per bound.

    `places` has the places of the two values of each comparison, shape (comparisons, 2). `sizes`
    has the number of comparisons of each claim, `values` is the number of values. A value that a
    claim compares with zero is itself a difference within a run (a rise, a slope, own heads less
    others), and is drawn as one.
    """

    places: NDArray[np.int64]
    sizes: tuple[int, ...]
    values: int


def make_main_card() -> Card:
    """The card of all claims about the paper's methods."""
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
        if compared and all(comparison.changes.size for comparison in compared):
            for comparison in compared:
                keys: list[tuple[Any, ...]] = [
                    (claim.metric, make_slug(row), comparison.stage, comparison.column)
                    for row in (comparison.row, comparison.other)
                ]
                keys = [(keys[0], key) if key[1] == ZERO else key for key in keys]
                here, there = (index.setdefault(key, len(index)) for key in keys)
                pairs += [(here, there), (there, here)][: len(comparison.excess)]
            sizes.append(sum(len(comparison.excess) for comparison in compared))
    return Card(np.array(pairs), tuple(sizes), len(index))


ONE_CLAIM = Card(np.array([[0, 1]]), (1,), 2)  # of a single comparison


@dataclass(frozen=True)
class Draws:
    """Drawn cards, and which claims are false.

    `excess` has the shape (seeds, cards, comparisons), `false` (claims, cards).
    """

    excess: Floats
    false: NDArray[np.bool_]
    ahead: float
    behind: float


def draw(card: Card, noise: str, difference: str, cards: int) -> Draws:
    """Draw `cards` cards with the most seeds. For fewer seeds, the first of these are taken."""
    kinds = NOISE | SHARED
    rng = np.random.default_rng([[*kinds].index(noise), [*DIFFERENCES].index(difference)])
    values = kinds[noise](rng, (SEEDS[-1], cards, card.values))
    ahead, behind = DIFFERENCES[difference]
    false = rng.random((len(card.sizes), cards)) < 0.5
    effects = []
    for claim, size in enumerate(card.sizes):
        effect = np.full((cards, size), ahead)
        effect[false[claim], rng.integers(size, size=false[claim].sum())] = behind
        effects.append(effect)
    better, worse = card.places.T
    return Draws(
        values[:, :, better] - values[:, :, worse] + np.concatenate(effects, axis=1),
        false,
        ahead,
        behind,
    )


def compute_p_values(card: Card, excess: Floats) -> Iterator[Floats]:
    """The p-values of `combine_p_values`, shape (2, claims, cards), for each number in SEEDS.

    Those of the comparisons are as in `compute_one_sided_p`. Both directions of a claim depend only
    on the smallest t of its comparisons, so p-values are computed only for claims. t of the first
    2, 3, ... seeds comes from cumulative sums (Welford 1962).
    """
    count = np.arange(1, len(excess) + 1).reshape(-1, 1, 1)
    mean = excess.cumsum(axis=0) / count
    before = np.concatenate([np.zeros_like(mean[:1]), mean[:-1]])
    squares = ((excess - before) * (excess - mean)).cumsum(axis=0)
    sizes, starts = np.array(card.sizes), np.cumsum([0, *card.sizes[:-1]])
    for seeds in SEEDS:
        with np.errstate(divide="ignore", invalid="ignore"):
            t = mean[seeds - 1] / np.sqrt(squares[seeds - 1] / (seeds - 1) / seeds)
        smallest = np.minimum.reduceat(
            t, starts, axis=1
        ).T  # NaN if one comparison has no t: then the claim is not held
        known = np.fmin.reduceat(t, starts, axis=1).T
        yield np.stack(
            [
                compute_p_above(smallest, seeds),
                np.minimum(1.0, sizes[:, None] * compute_p_above(-known, seeds)),
            ]
        )


def simulate(card: Card, noise: str, difference: str, cards: int) -> tuple[Floats, Floats]:
    """The share of cards with a wrong verdict, and of rightly decided claims, for each of SEEDS."""
    drawn = draw(card, noise, difference, cards)
    refuted = drawn.false & (drawn.behind < 0)  # claims that are false, and not just at the bound
    wrong, right = [], []
    for p in compute_p_values(card, drawn.excess):
        held, not_held = (correct_by_holm(p.reshape(-1, cards)) <= ERRORS).reshape(p.shape)
        wrong.append(
            (held & (drawn.false | (drawn.ahead == 0)) | not_held & ~refuted).any(axis=0).mean()
        )
        right.append((held & ~drawn.false & (drawn.ahead > 0) | not_held & refuted).mean())
    return np.array(wrong), np.array(right)


def simulate_coverage(noise: str, seeds: int, samples: int) -> float:
    """How often the interval of a score's mean contains 0, its true value.

    0 is the centre of both noises, of pre-training and of fine-tuning.
    """
    rng = np.random.default_rng([seeds, [*NOISE].index(noise)])
    scores = NOISE[noise](rng, (seeds, 1, samples)) + NOISE[noise](
        rng, (seeds, FINETUNINGS, samples)
    )
    low, high = compute_interval(scores.mean(axis=1))
    return float(np.mean((low <= 0) & (high >= 0)))


def write_tables(cards: int = 2_000, samples: int = 10_000) -> Iterator[str]:
    """Wrong cards, wrong cards of one claim, right claims and coverage, as Markdown."""
    card, both = (
        make_main_card(),
        [(noise, difference) for noise in NOISE for difference in DIFFERENCES],
    )
    simulated = {" | ".join(pair): simulate(card, *pair, cards) for pair in both}
    yield write_table(
        "noise | rows differ", {name: wrong for name, (wrong, _) in simulated.items()}
    )
    yield write_table(
        "noise", {noise: simulate(ONE_CLAIM, noise, "tied", 25 * cards)[0] for noise in NOISE}
    )
    yield write_table("noise", {noise: simulate(card, noise, "tied", cards)[0] for noise in SHARED})
    yield write_table(
        "noise | rows differ",
        {name: right for name, (_, right) in simulated.items() if "tied" not in name},
    )
    yield write_table(
        "noise",
        {
            noise: np.array([simulate_coverage(noise, seeds, samples) for seeds in SEEDS])
            for noise in NOISE
        },
    )


def write_table(head: str, rows: Mapping[str, Floats]) -> str:
    """A table of percentages by SHOWN. In names of rows, " | " divides the first columns."""
    lines = [f"| {head} | " + " | ".join(map(str, SHOWN)) + " |"]
    lines.append("|" + " :-- |" * (head.count("|") + 1) + " --: |" * len(SHOWN))
    for name, line in rows.items():
        shares = [f"{100 * line[SEEDS.index(seeds)]:.1f}" for seeds in SHOWN]
        lines.append(f"| {name} | " + " | ".join(shares) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    print("\n\n".join(write_tables()))
