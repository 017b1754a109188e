"""The tables of docs/statistics.md: wrong cards, right claims, and the coverage of intervals.

python -m tests.tools.verdict_tables
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from analysis.metrics import Floats
from tests.support.verdict_simulation import DIFFERENCES, NOISE, ONE_CLAIM, SEEDS, coverage, main_card, simulate


def tables(cards: int = 2_000, samples: int = 10_000) -> Iterator[str]:
    """Wrong cards, wrong cards of one claim, right claims and coverage, as Markdown."""
    card, both = main_card(), [(noise, difference) for noise in NOISE for difference in DIFFERENCES]
    found = {" | ".join(pair): simulate(card, *pair, cards) for pair in both}
    yield table("noise | rows differ", {name: wrong for name, (wrong, _) in found.items()})
    yield table("noise", {noise: simulate(ONE_CLAIM, noise, "tied", 25 * cards)[0] for noise in NOISE})
    yield table("noise | rows differ", {name: right for name, (_, right) in found.items() if "tied" not in name})
    yield table("noise", {noise: np.array([coverage(noise, seeds, samples) for seeds in SEEDS]) for noise in NOISE})


def table(head: str, rows: Mapping[str, Floats]) -> str:
    """Percentages, a column each of SEEDS; " | " divides the first columns."""
    lines = [f"| {head} | " + " | ".join(map(str, SEEDS)) + " |"]
    lines.append("|" + " :-- |" * (head.count("|") + 1) + " --: |" * len(SEEDS))
    lines += [f"| {name} | " + " | ".join(f"{100 * share:.1f}" for share in line) + " |" for name, line in rows.items()]
    return "\n".join(lines)


if __name__ == "__main__":
    print("\n\n".join(tables()))
