"""Draw docs/study.md's figure from the records, and print its numbers: `PYTHONPATH=. python
results/open_text/draw_budgets.py`.

The change of the final AP by growing, at three budgets of equal FLOPs, against the tokens per
parameter that the model that stays small meets. Marks are geometric means over seeds, bars span
the lowest and highest seed. Each change is printed with its 95% interval and its p-value of
docs/statistics.md, of which Holm corrects all together.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.ticker import NullLocator, PercentFormatter, StrMethodFormatter
from numpy.typing import NDArray

import run_all
from analysis.figures import COLOURS, CaptionedFigure, make_picture, style
from analysis.inference import compute_interval, compute_one_sided_p, correct_by_holm
from analysis.study import Study

HERE = Path(__file__).parent
SUITES = ("budget_quarter", "main", "budget_fourfold")
SMALL = "ER"
CAPTION = (
    "Growing from 13 to 57 thousand parameters at three budgets of equal FLOPs, on open text: how "
    "far the final AP of the first row of each comparison is from that of the second. Below zero "
    "the first is better. Marks are geometric means over {} seeds. Bars: lowest to highest "
    "seed, not a confidence interval. ELLE (exact) grows without changing predictions."
)
PAIRS = {
    "ELLE, compared with ER that stays small": ("ELLE", SMALL),
    "ELLE (exact), compared with ER of the final size": ("ELLE (exact)", "ER (final size)"),
    "ELLE (exact), compared with ELLE": ("ELLE (exact)", "ELLE"),
}


@dataclass(frozen=True)
class Change:
    """The final AP of one row over that of another."""

    log_ratios: NDArray[np.float64]  # of each seed
    shared: float  # the variance of their mean by the choice of validation documents

    @property
    def p(self) -> float:
        """Two-sided, of this change alone."""
        above, below = compute_one_sided_p(self.log_ratios, self.shared)
        return min(1.0, 2 * float(min(above, below)))

    def describe(self) -> str:
        mean = np.expm1(self.log_ratios.mean())
        low, high = np.expm1(compute_interval(self.log_ratios, self.shared))
        seeds = ", ".join(f"{value:+.1%}" for value in np.expm1(self.log_ratios))
        return f"{mean:+.1%} ({low:+.1%} to {high:+.1%}; seeds {seeds})"


def main() -> None:
    studies = [run_all.open_study(str(HERE / f"{suite}.toml"), str(HERE)) for suite in SUITES]
    tokens = [count_tokens(study) for study in studies]
    changes = {
        name: [measure_change(study, first, second) for study in studies]
        for name, (first, second) in PAIRS.items()
    }
    print_changes(changes, tokens)
    seeds = studies[0].ends["seed"].nunique()
    figure = draw(changes, tokens)
    files = make_picture(figure).to_files("budgets", "fig:budgets", CAPTION.format(seeds))
    for suffix, content in files.items():
        (HERE / f"budgets.{suffix}").write_bytes(content)


def measure_change(study: Study, first: str, second: str) -> Change:
    last = study.ends["stage"].max()
    ends = study.ends[study.ends["stage"] == last].pivot(index="seed", columns="row", values="ap")
    both = ends[[first, second]].dropna()
    log_ratios = np.log(both[first] / both[second]).to_numpy()
    return Change(log_ratios, study.compute_text_variance(first, second, last))


def count_tokens(study: Study) -> float:
    """The tokens that the small model is trained with, over its parameters."""
    runs = study.ends[study.ends["row"] == SMALL]
    parameters = study.stages.loc[study.stages["row"] == SMALL, "parameters"].max()
    return float(runs.groupby("seed")["tokens"].max().mean() / parameters)


def print_changes(changes: dict[str, list[Change]], tokens: list[float]) -> None:
    p_values = [change.p for of_pair in changes.values() for change in of_pair]
    corrected = iter(correct_by_holm(np.array(p_values)))
    for name, of_pair in changes.items():
        for count, change in zip(tokens, of_pair, strict=True):
            p = next(corrected)
            print(f"{name}: {count:,.0f} tokens per parameter, {change.describe()}, p = {p:.2g}")


def draw(changes: dict[str, list[Change]], tokens: list[float]) -> CaptionedFigure:
    with style():
        figure = CaptionedFigure(figsize=(4.4, 3.2), layout="constrained")
        axis = figure.subplots()
        markers = ("o", "s", "^")
        for (name, of_pair), colour, marker in zip(changes.items(), COLOURS, markers, strict=False):
            means = np.expm1([change.log_ratios.mean() for change in of_pair])
            lowest = np.expm1([change.log_ratios.min() for change in of_pair])
            highest = np.expm1([change.log_ratios.max() for change in of_pair])
            axis.errorbar(
                tokens,
                means,
                [means - lowest, highest - means],
                color=colour,
                marker=marker,
                markersize=4,
                label=name,
            )
        axis.axhline(0, color="0.3", linewidth=0.8, zorder=0)
        axis.set_xscale("log")
        axis.set_xticks(tokens)
        axis.xaxis.set_minor_locator(NullLocator())
        axis.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
        axis.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
        axis.set_xlabel("tokens per parameter of the model that stays small")
        axis.set_ylabel("change of final AP (lower is better)")
        figure.legend(loc="outside lower center", fontsize="small")
    return figure


if __name__ == "__main__":
    main()
