"""Draw details.md's figure from the records: `PYTHONPATH=. python
results/small_models_begun_well/draw_map.py`.

Left growth over ER that is as large from the start, right over ER that stays small, each at equal
FLOPs and against the tokens per parameter that the budget gives the model that does not grow. Bars
are `compare_rows.py`'s 95% intervals. On the left the least budget is left out, as its batches were
too large for large models, and 237 thousand parameters, which end above smaller sizes at their own
best rate (plan.md).
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas as pd
from compare_rows import HERE, MAP, SIZES, Change, compare, open_suites
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, NullLocator, PercentFormatter, StrMethodFormatter

from analysis.figures import (
    COLOURS,
    SMALL,
    CaptionedFigure,
    make_picture,
    name_ends,
    shorten_number,
    style,
)
from analysis.study import Study
from benchmark.ledger.archive import read_archives

LEAST, LARGEST = "map_sixteenth", "237k"
METHODS = {
    "ELLE, to {}": "ELLE",
    "ELLE (exact), to {}": "ELLE (exact)",
}
METHOD_COLOURS = [*COLOURS][: len(METHODS)]
MARKERS = dict(zip(SIZES, ("o", "s", "^", "D"), strict=True))
CAPTION = (
    "How much growing changes the final AP at equal FLOPs, compared with ER (experience replay) of "
    "the same final size from its first step (left) and with ER that stays at 13 thousand "
    "parameters (right). With ELLE (exact) growing keeps all predictions. Models grow to the size "
    "that is written beside each line, with its last change in percent. Those that end at one "
    "million begin at 240 thousand, as does their ER. Below zero growing is better. Marks are "
    "geometric means over six seeds. Bars are 95% "
    "confidence intervals. At one million ELLE has a tenth of its noise. Left out on the left: 237 "
    "thousand and the least budget, where large models are not at their best."
)


@dataclass(frozen=True)
class PlottedLine:
    """A row's line, with its last point: tokens per parameter, and the change in percent."""

    row: str
    label: str
    colour: str
    tokens: float
    change: float


def main() -> None:
    studies = open_suites(read_archives(HERE), (*MAP, "million"))
    with style():
        figure = CaptionedFigure(figsize=(8.4, 3.9), layout="constrained")
        axes = figure.subplots(1, 2)
        some = {name: studies[name] for name in studies if name != LEAST}
        sizes = [size for size in SIZES if size != LARGEST]
        lines = [
            draw_changes(axes[0], some, ["ER, {} from the start"], sizes),
            draw_changes(axes[1], studies, ["ER, 13k", "ER, 230k"], SIZES),
        ]
        axes[0].set_title(
            "Growing, compared with a model\nthat has the final size from its first step"
        )
        axes[1].set_title(
            "Growing, compared with a model\nthat keeps the small size to its last step"
        )
        handles = [Line2D([], [], color=colour) for colour in METHOD_COLOURS]
        figure.legend(handles, METHODS.values(), ncols=2, loc="outside lower center")
        figure.draw_without_rendering()  # names need the height of panels
        for axis, panel_lines, side in zip(axes, lines, ("right", "left"), strict=True):
            name_lines(axis, panel_lines, side)
        files = make_picture(figure).to_files("map", "fig:map", CAPTION)
    for suffix, content in files.items():
        (HERE / f"map.{suffix}").write_bytes(content)


def draw_changes(
    axis: Axes, studies: Mapping[str, Study], besides: Sequence[str], last_sizes: Sequence[str]
) -> list[PlottedLine]:
    """The change of AP, in percent, against tokens per parameter of the row in `besides` that a
    study has, a line for each method and last size.
    """
    lines = []
    for row, colour in zip(METHODS, METHOD_COLOURS, strict=True):
        for size in last_sizes:
            points = [
                (count_tokens(study, change.ap.index, beside.format(size)), change)
                for study, beside in itertools.product(studies.values(), besides)
                if (change := compare(study, row.format(size), beside.format(size)))
            ]
            if points:
                tokens, mean = draw_line(axis, points, colour, MARKERS[size])
                lines.append(PlottedLine(row.format(size), f"to {size}:", colour, tokens, mean))
    axis.axhline(0, color="0.3", linewidth=0.8, zorder=0)
    axis.set_xscale("log")
    axis.xaxis.set_major_locator(LogLocator(subs=(1, 3)))
    axis.xaxis.set_minor_locator(NullLocator())
    axis.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axis.yaxis.set_major_formatter(PercentFormatter(100, decimals=0))
    axis.set_xlabel("tokens per parameter of the model that does not grow")
    axis.set_ylabel("change of final AP by growing (lower is better)")
    return lines


def draw_line(
    axis: Axes, points: list[tuple[float, Change]], colour: str, marker: str
) -> tuple[float, float]:
    """Draw a line, and return its last point."""
    points = sorted(points, key=lambda point: point[0])
    tokens = [count for count, _ in points]
    means = [100 * change.mean for _, change in points]
    ends = [
        [100 * (change.mean - change.low) for _, change in points],
        [100 * (change.high - change.mean) for _, change in points],
    ]
    axis.errorbar(
        tokens, means, ends, color=colour, marker=marker, markersize=4, linewidth=1, elinewidth=0.8
    )
    return tokens[-1], means[-1]


def name_lines(axis: Axes, lines: Sequence[PlottedLine], side: str) -> None:
    """Write beside each line the size that its models end with, and the last change in percent.

    A line that ends before others has its name there, on one `side` of its last mark.
    """
    edge = max(line.tokens for line in lines)
    last = [line for line in lines if line.tokens == edge]
    ends = {line.row: (line.tokens, line.change) for line in last}
    labels = {line.row: line.label for line in last}
    styles = {line.row: {"color": line.colour} for line in last}
    name_ends(axis, ends, labels, styles)
    for line in lines:
        if line not in last:
            axis.annotate(
                f"{line.label} {shorten_number(line.change)}",
                (line.tokens, line.change),
                (6 if side == "right" else -6, 0),
                textcoords="offset points",
                ha="left" if side == "right" else "right",
                va="center",
                color=line.colour,
                fontsize=SMALL,
            )


def count_tokens(study: Study, seeds: pd.Index, row: str) -> float:
    """The tokens that a run of this row is trained with, over the parameters that it ends with."""
    runs = study.ends[(study.ends["row"] == row) & study.ends["seed"].isin(seeds)]
    parameters = study.stages.loc[study.stages["row"] == row, "parameters"].max()
    return float(runs.groupby("seed")["tokens"].max().mean() / parameters)


if __name__ == "__main__":
    main()
