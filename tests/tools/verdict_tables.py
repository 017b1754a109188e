"""The tables of docs/statistics.md: wrong cards, right claims, and the coverage of intervals.

python -m tests.tools.verdict_tables
"""

from __future__ import annotations

from tests.support.verdict_simulation import DIFFERENCES, NOISE, Card, coverage, main_card, simulate


def tables(card: Card, cards: int = 2_000, seeds: tuple[int, ...] = (*range(2, 11), 12, 15, 20)) -> str:
    """Wrong cards, right claims and coverage, in percent, as Markdown."""
    head = ["| noise | rows differ |", "| :-- | :-- |", "| noise |", "| :-- |"]
    columns = "".join(f" {n} |" for n in seeds), " --: |" * len(seeds)
    wrong, right = ([head[0] + columns[0], head[1] + columns[1]] for _ in range(2))
    covered = [head[2] + columns[0], head[3] + columns[1]]
    for noise in NOISE:
        for difference in DIFFERENCES:
            shares = [simulate(card, noise, difference, n, cards) for n in seeds]
            for table, values in zip((wrong, right), zip(*shares, strict=True), strict=True):
                table.append(f"| {noise} | {difference} |" + "".join(f" {100 * value:.1f} |" for value in values))
        covered.append(f"| {noise} |" + "".join(f" {100 * coverage(noise, n, cards):.1f} |" for n in seeds))
    right = [line for line in right if "| tied |" not in line]
    return "\n\n".join("\n".join(table) for table in (wrong, right, covered))


if __name__ == "__main__":
    print(tables(main_card()))
