"""One style for all figures: colour-blind safe, told apart in grey by dashes and markers, fonts embedded.

Files hold no time stamp: the same numbers give the same bytes.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import matplotlib
import pandas as pd
import seaborn
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, LogLocator, NullLocator, SymmetricalLogLocator
from numpy.typing import ArrayLike

_COLOURS = (  # Okabe and Ito's, then four more
    *("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#7F7F7F", "#56B4E9", "#000000"),
    *("#8C2D04", "#6A51A3", "#A6761D", "#66A61E"),
)
_DASHES = ("-", (0, (5, 1.5)), (0, (1, 1)), (0, (5, 1, 1, 1)))
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<")
_SETTINGS: dict[Any, Any] = {
    "pdf.fonttype": 42,
    "font.family": "DejaVu Sans",
    "text.parse_math": False,  # a name may hold a dollar sign
    "axes.titlesize": "medium",
    "axes.linewidth": 0.8,
    "grid.linewidth": 0.5,
    "legend.frameon": False,
}


@contextmanager
def style() -> Iterator[None]:
    """Everything drawn inside has this style."""
    with matplotlib.rc_context(), seaborn.plotting_context("paper"), seaborn.axes_style("ticks"):
        matplotlib.rcParams.update(_SETTINGS)
        yield


def line_style(index: int) -> dict[str, Any]:
    """Colour, dashes and marker of the index-th row of a suite, the same in all of its figures."""
    return {
        "color": _COLOURS[index % len(_COLOURS)],
        "linestyle": _DASHES[index % 4],
        "marker": _MARKERS[(index + index // len(_MARKERS)) % len(_MARKERS)],
        "markersize": 3.5,
        "markeredgewidth": 0,
        "linewidth": 1.3,
    }


def panels(rows: int, columns: int, width: float = 3.6, height: float = 2.5) -> tuple[Figure, list[list[Axes]]]:
    """A figure with a grid of panels, each `width` x `height` inches with its labels."""
    figure = Figure(figsize=(columns * width, rows * height))
    axes = figure.subplots(rows, columns, squeeze=False)
    for axis in axes.flat:
        axis.grid(True, axis="y", alpha=0.6)
        seaborn.despine(ax=axis)
    return figure, axes.tolist()


def over_seeds(counts: pd.Series, band: bool = True) -> tuple[dict[str, str], str]:
    """The legend's label of each row, and what its line stands for, and its band if there are bands.

    `counts` (points,), indexed by row among others, are the seeds behind each point. A label says how many they are
    where the row has points of fewer seeds than there are elsewhere in the figure.
    """
    if counts.empty:
        return {}, ""
    most, labels = counts.max(), {}
    for row, own in counts.groupby(level="row"):
        low, high = own.min(), own.max()
        over = f" (n = {low})" if low == high else f" (n = {low} to {high})"
        labels[str(row)] = f"{row}{over}" if low < most else str(row)
    if most == 1:
        return labels, "One seed: how much another would differ is not known"
    text = f"Mean of {most} seeds" + (", or of n" if counts.min() < most else "")
    return labels, text + ("; band: lowest to highest seed, no confidence interval" if band else "")


def finish(figure: Figure, axis: Axes, text: str = "") -> dict[str, bytes]:
    """Lay the figure out, with one legend of `axis` and a text below all panels; its files are those of `to_files`."""
    handles, labels = axis.get_legend_handles_labels()
    columns = 4 if max(map(len, labels), default=0) < 16 else 3
    legend = 0.18 * -(-len(labels) // columns) + (0.2 if labels else 0.0)
    note = 0.2 if text else 0.0
    below = legend + note
    width, height = figure.get_figwidth(), figure.get_figheight() + below
    figure.set_figheight(height)
    if handles:
        place = (0.5, note / height)
        figure.legend(handles, labels, loc="lower center", bbox_to_anchor=place, handlelength=3, ncols=columns)
    if text:
        figure.text(0.5, 0.06 / height, text, ha="center", fontsize="small")
    # fixed margins in inches: a layout engine would draw everything once more
    rows, across = figure.axes[0].get_subplotspec().get_gridspec().get_geometry()  # type: ignore[union-attr]
    inner_width, inner_height = width - 0.85, height - 0.8 - below
    figure.subplots_adjust(
        left=0.7 / width, right=1 - 0.15 / width, top=1 - 0.3 / height, bottom=(0.5 + below) / height
    )
    panel_width = (inner_width - 0.75 * (across - 1)) / across
    panel_height = (inner_height - 0.6 * (rows - 1)) / rows
    figure.subplots_adjust(wspace=0.75 / panel_width, hspace=0.6 / panel_height)
    return to_files(figure)


def scales(axis: Axes, y: Literal["log", "symlog"]) -> None:
    """A budget from 0 on, with ticks like 60 k; a logarithmic y axis with plain numbers.

    symlog is linear within 1, and all of the axis is linear where nothing is large.
    """
    axis.set_xlim(left=0)
    axis.xaxis.set_major_formatter(EngFormatter(sep=" "))
    low, high = axis.get_ylim()
    if y == "symlog" and max(-low, high) < 4:
        return
    axis.set_yscale(y)
    narrow = high < 20 * low if y == "log" else max(-low, high) < 30
    steps = {("log", True): (1, 1.5, 2, 3, 4, 5, 6, 8), ("symlog", False): (1, 3)}.get((y, narrow), (1, 2, 5))
    locator = LogLocator(subs=steps) if y == "log" else SymmetricalLogLocator(base=10, linthresh=1, subs=steps)
    axis.yaxis.set_major_locator(locator)
    axis.yaxis.set_major_formatter(lambda value, _: f"{value:g}".replace("-", "−"))
    axis.yaxis.set_minor_locator(NullLocator())


def band(axis: Axes, x: ArrayLike, low: ArrayLike, high: ArrayLike, index: int) -> None:
    """Shade what lies between the lowest and the highest seed of the index-th row."""
    axis.fill_between(x, low, high, color=line_style(index)["color"], alpha=0.15, linewidth=0)


def to_files(figure: Figure) -> dict[str, bytes]:
    """The figure as PDF and PNG, without anything that changes from one day to the next."""
    formats: dict[str, dict[str, Any]] = {
        "pdf": {"metadata": {"CreationDate": None, "Creator": None, "Producer": None}},
        "png": {"metadata": {"Software": None}, "dpi": 160},
    }
    files = {}
    for suffix, options in formats.items():
        out = io.BytesIO()
        figure.savefig(out, format=suffix, facecolor="white", **options)
        files[suffix] = out.getvalue()
    return files
