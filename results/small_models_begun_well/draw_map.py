"""Draw details.md's figure from the records: `PYTHONPATH=. python
results/small_models_begun_well/draw_map.py`.

Left growth over ER that is as large from the start, right over ER that stays small, each at equal
FLOPs and against the tokens per parameter that the budget gives the model that does not grow. Bars
are `compare_rows.py`'s 95% intervals. On the left the least budget is left out, as its batches were
too large for large models, and 237 thousand parameters, which end above smaller sizes at their own
best rate (plan.md). Open marks are of ELLE with the earlier noise, where it was not trained again.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import pandas as pd
from compare_rows import HERE, MAP, SIZES, Change, compare, open_suites
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, NullLocator, PercentFormatter, StrMethodFormatter

from analysis.figures import COLOURS, CaptionedFigure, make_picture, style
from analysis.study import Study
from benchmark.ledger.archive import read_archives

LEAST, LARGEST = "map_sixteenth", "237k"
HOFFMANN = 20  # tokens per parameter of the best size for a budget (Hoffmann et al. 2022)
METHODS = {"ELLE, to {}": "ELLE", "ELLE (exact), to {}": "growth that keeps the function"}
OLDER = ("map_four", "million")  # where ELLE was not trained again with the noise of now
MARKERS = dict(zip(SIZES, ("o", "s", "^", "D"), strict=True))


def main() -> None:
    studies = open_suites(read_archives(HERE), (*MAP, "million"))
    with style():
        figure = CaptionedFigure(figsize=(7.4, 3.9), layout="constrained")
        axes = figure.subplots(1, 2)
        some = {name: studies[name] for name in studies if name != LEAST}
        draw_changes(
            axes[0], some, ["ER, {} from the start"], [size for size in SIZES if size != LARGEST]
        )
        draw_changes(axes[1], studies, ["ER, 13k", "ER, 230k"], SIZES)
        axes[0].set_title("Growing, compared with a model\nthat is large from the start")
        axes[1].set_title("Growing, compared with a model\nthat stays small")
        axes[0].axvline(HOFFMANN, color="0.6", linewidth=0.8, linestyle=":", zorder=0)
        figure.legend(*name_lines(), ncols=4, loc="outside lower center", fontsize="small")
        (HERE / "map.png").write_bytes(make_picture(figure).png)


def draw_changes(
    axis: Axes, studies: Mapping[str, Study], besides: Sequence[str], last_sizes: Sequence[str]
) -> None:
    """The change of AP against tokens a parameter of the row in `besides` that a study has, a line
    for each method and last size.
    """
    for (row, method), colour in zip(METHODS.items(), COLOURS, strict=False):
        for size in last_sizes:
            points = [
                (count_tokens(study, change.ap.index, beside.format(size)), change)
                for study, beside in itertools.product(studies.values(), besides)
                if (change := compare(study, row.format(size), beside.format(size)))
            ]
            if points:
                draw_line(axis, points, colour, MARKERS[size])
                older = [
                    (tokens, change)
                    for tokens, change in points
                    if method == "ELLE" and change.suite in OLDER
                ]
                for tokens, change in older:
                    axis.plot(
                        tokens,
                        change.mean,
                        MARKERS[size],
                        color=colour,
                        mfc="white",
                        ms=4,
                        zorder=9,
                    )
    axis.axhline(0, color="0.3", linewidth=0.8, zorder=0)
    axis.set_xscale("log")
    axis.xaxis.set_major_locator(LogLocator(subs=(1, 3)))
    axis.xaxis.set_minor_locator(NullLocator())
    axis.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axis.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    axis.set_xlabel("tokens per parameter of the model that does not grow")
    axis.set_ylabel("change of final AP by growing")


def draw_line(axis: Axes, points: list[tuple[float, Change]], colour: str, marker: str) -> None:
    points = sorted(points, key=lambda point: point[0])
    means = [change.mean for _, change in points]
    ends = [
        [change.mean - change.low for _, change in points],
        [change.high - change.mean for _, change in points],
    ]
    tokens = [count for count, _ in points]
    axis.errorbar(
        tokens, means, ends, color=colour, marker=marker, markersize=4, linewidth=1, elinewidth=0.8
    )


def count_tokens(study: Study, seeds: pd.Index, row: str) -> float:
    """The tokens that a run of this row is trained with, over the parameters that it ends with."""
    runs = study.ends[(study.ends["row"] == row) & study.ends["seed"].isin(seeds)]
    parameters = study.stages.loc[study.stages["row"] == row, "parameters"].max()
    return float(runs.groupby("seed")["tokens"].max().mean() / parameters)


def name_lines() -> tuple[list[Line2D], list[str]]:
    """Handles and names of the legend: a colour a method, a mark a size."""
    methods = [Line2D([], [], color=colour) for colour, _ in zip(COLOURS, METHODS, strict=False)]
    sizes = [
        Line2D([], [], color="0.3", marker=marker, linestyle="") for marker in MARKERS.values()
    ]
    names = [f"to {size} parameters" for size in SIZES]
    older = Line2D([], [], color=next(iter(COLOURS)), marker="o", mfc="white", linestyle="")
    return [*methods, *sizes, older], [*METHODS.values(), *names, "ELLE with a tenth of the noise"]


if __name__ == "__main__":
    main()
