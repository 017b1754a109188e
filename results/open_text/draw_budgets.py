"""Draw docs/study.md's figure from the records, and print its numbers: `PYTHONPATH=. python
results/open_text/draw_budgets.py`.

The change of the final AP by growing, at three budgets of equal FLOPs, against the tokens per
parameter that the model that stays small meets. Marks are geometric means over seeds, bars span
the lowest and highest seed.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.ticker import NullLocator, PercentFormatter, StrMethodFormatter
from numpy.typing import NDArray

import run_all
from analysis.figures import COLOURS, CaptionedFigure, make_picture, style
from analysis.study import Study

HERE = Path(__file__).parent
SUITES = ("budget_quarter", "main", "budget_fourfold")
SMALL = "ER"
CAPTION = (
    "Growing from 13 to 57 thousand parameters at three budgets of equal FLOPs, on open text: how "
    "far the final AP of the first row of each comparison is from that of the second. Below zero "
    "the first is better. Marks are geometric means over three seeds. Bars: lowest to highest "
    "seed, not a confidence interval. ELLE (exact) grows without changing predictions."
)
PAIRS = {
    "ELLE, compared with ER that stays small": ("ELLE", SMALL),
    "ELLE (exact), compared with ER of the final size": ("ELLE (exact)", "ER (final size)"),
    "ELLE (exact), compared with ELLE": ("ELLE (exact)", "ELLE"),
}


def main() -> None:
    studies = [run_all.open_study(str(HERE / f"{suite}.toml"), str(HERE)) for suite in SUITES]
    tokens = [count_tokens(study) for study in studies]
    with style():
        figure = CaptionedFigure(figsize=(4.4, 3.2), layout="constrained")
        axis = figure.subplots()
        markers = ("o", "s", "^")
        for (name, pair), colour, marker in zip(PAIRS.items(), COLOURS, markers, strict=False):
            changes = [list_changes(study, *pair) for study in studies]
            means = np.array([np.expm1(np.log1p(change).mean()) for change in changes])
            below = means - [change.min() for change in changes]
            above = [change.max() for change in changes] - means
            axis.errorbar(
                tokens, means, [below, above], color=colour, marker=marker, markersize=4, label=name
            )
            for count, change, mean in zip(tokens, changes, means, strict=True):
                seeds = ", ".join(f"{value:+.1%}" for value in change)
                print(f"{name}: {count:,.0f} tokens per parameter, {mean:+.1%} ({seeds})")
        axis.axhline(0, color="0.3", linewidth=0.8, zorder=0)
        axis.set_xscale("log")
        axis.set_xticks(tokens)
        axis.xaxis.set_minor_locator(NullLocator())
        axis.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
        axis.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
        axis.set_xlabel("tokens per parameter of the model that stays small")
        axis.set_ylabel("change of final AP (lower is better)")
        figure.legend(loc="outside lower center", fontsize="small")
        files = make_picture(figure).to_files("budgets", "fig:budgets", CAPTION)
    for suffix, content in files.items():
        (HERE / f"budgets.{suffix}").write_bytes(content)


def list_changes(study: Study, first: str, second: str) -> NDArray[np.float64]:
    """The final AP of one row over that of another, less 1, by seed."""
    last = study.ends["stage"].max()
    ends = study.ends[study.ends["stage"] == last].pivot(index="seed", columns="row", values="ap")
    both = ends[[first, second]].dropna()
    ratios: NDArray[np.float64] = (both[first] / both[second] - 1).to_numpy()
    return ratios


def count_tokens(study: Study) -> float:
    """The tokens that the small model is trained with, over its parameters."""
    runs = study.ends[study.ends["row"] == SMALL]
    parameters = study.stages.loc[study.stages["row"] == SMALL, "parameters"].max()
    return float(runs.groupby("seed")["tokens"].max().mean() / parameters)


if __name__ == "__main__":
    main()
