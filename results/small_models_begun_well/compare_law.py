"""Print the law and its test: `PYTHONPATH=. python results/small_models_begun_well/compare_law.py`.

See plan.md, "The law". The law is a plane, log(AP grown / AP large from the start) = a + b
log(parameters) + c log(tokens per parameter), both before the first growth, by least squares on the
cells of three sizes. An interval is Student's of a new cell, with what the plane misses as its
noise.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import scipy.stats

import run_all
from analysis.inference import compute_interval
from analysis.metrics import Floats
from benchmark.ledger.archive import open_suites

HERE = Path(__file__).parent
FITTED, PREDICTED = "law_small", "law_large"
Cell = tuple[float, int]  # thousands of parameters, tokens per parameter
ROW = re.compile(r"(.*), from (\d+)k, (\d+) tokens")
LARGE = "ER (final size)"
# the fourth size; and the paper's: 30 M parameters of L6_D384, 62,500 steps of 2,048 rows of 512
# tokens
NEW = [(56.0, 10), (56.0, 30), (56.0, 100), (30e3, 2_200)]
LEARNED = 30  # tokens per parameter, from which on models have left the plateau on which all begin


@dataclass(frozen=True)
class Ratio:
    """The log ratios of a cell's seeds."""

    seeds: Floats
    shared: float  # the variance of their mean by the choice of validation documents


def read_cells(records: Path, suite: str) -> dict[str, dict[Cell, Ratio]]:
    """The log ratios of a suite's seeds, by method and cell."""
    study = run_all.open_study(str(HERE / f"{suite}.toml"), str(records))
    ends = study.ends[study.ends["stage"] == study.ends["stage"].max()]
    ap: dict[tuple[str, Cell], dict[int, float]] = {}
    for row, seed, value in ends[["row", "seed", "ap"]].itertuples(index=False):
        if match := ROW.fullmatch(row):
            ap.setdefault((match[1], (float(match[2]), int(match[3]))), {})[seed] = value
    ratios: dict[str, dict[Cell, Ratio]] = {}
    last = int(ends["stage"].max())
    for (method, cell), values in ap.items():
        large = ap.get((LARGE, cell), {})
        both = [np.log(values[seed] / large[seed]) for seed in values.keys() & large.keys()]
        if method != LARGE and both:
            place = f"from {cell[0]:g}k, {cell[1]} tokens"
            shared = study.compute_text_variance(f"{method}, {place}", f"{LARGE}, {place}", last)
            ratios.setdefault(method, {})[cell] = Ratio(np.array(both), shared)
    return ratios


def _terms(cells: list[Cell]) -> Floats:
    """The plane's terms of each cell."""
    return np.array([(1.0, np.log(size), np.log(tokens)) for size, tokens in cells])


def predict(cells: list[Cell], values: Floats, new: list[Cell]) -> tuple[Floats, Floats]:
    """What the plane through (cells,) says of new cells, and half the width of 95% intervals."""
    terms, asked = _terms(cells), _terms(new)
    plane, *_ = np.linalg.lstsq(terms, values, rcond=None)
    freedom = len(values) - terms.shape[1]
    noise = ((values - terms @ plane) ** 2).sum() / freedom
    leverage = np.einsum("ij,jk,ik->i", asked, np.linalg.inv(terms.T @ terms), asked)
    return asked @ plane, scipy.stats.t.isf(0.025, freedom) * np.sqrt(noise * (1 + leverage))


def percent(value: float) -> str:
    return f"{np.expm1(value):+.1%}".replace("-", "−")


def main() -> None:
    with open_suites(HERE, [FITTED, PREDICTED]) as folders:
        fitted = read_cells(folders[FITTED], FITTED)
        there = any((folders[PREDICTED] / "suites" / PREDICTED).glob("*.jsonl"))
        tested = read_cells(folders[PREDICTED], PREDICTED) if there else {}
    for method, ratios in fitted.items():
        cells, values = list(ratios), np.array([each.seeds.mean() for each in ratios.values()])
        learned = [i for i, (_, tokens) in enumerate(cells) if tokens >= LEARNED]
        print(f"\n{method} over a model that is large from the start, AP after the last domain\n")
        print(
            "| parameters | tokens per parameter | seeds | change (95% interval) | predicted "
            f"| from {LEARNED} on |"
        )
        print("| --: | --: | --: | --: | --: | --: |")
        fits = (
            predict(cells, values, NEW),
            predict([cells[i] for i in learned], values[learned], NEW),
        )
        said = {
            cell: " | ".join(
                f"{percent(m[i])} ({percent(m[i] - h[i])} to {percent(m[i] + h[i])})"
                for m, h in fits
            )
            for i, cell in enumerate(NEW)
        }
        for cell, ratio in (ratios | tested.get(method, {})).items():
            low, high = compute_interval(ratio.seeds, ratio.shared)
            change = f"{percent(ratio.seeds.mean())} ({percent(low)} to {percent(high)})"
            count = len(ratio.seeds)
            print(f"| {cell[0]:g}k | {cell[1]} | {count} | {change} | {said.pop(cell, '|')} |")
        for (size, tokens), prediction in said.items():
            print(f"| {size:g}k | {tokens} | | | {prediction} |")


if __name__ == "__main__":
    main()
