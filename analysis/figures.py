"""One style for all figures: matplotlib lays them out, fonts are embedded, and axes name their scales.

Files hold no time stamp: the same numbers give the same bytes.
"""

from __future__ import annotations

import io
import textwrap
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import matplotlib
import pandas as pd
import seaborn
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, LogLocator, MaxNLocator, NullLocator, SymmetricalLogLocator

from analysis.exhibits import Exhibit
from analysis.metrics import Metric
from analysis.notes import note_unequal_texts
from analysis.study import Study
from benchmark.store import RunRecords

SMALL = 7.0  # points: what stands beside lines and in cells
TEXT = 8.0  # labels, legends and notes
LETTER = 0.065  # inches that a letter of TEXT is wide, on average
FEW = 8  # rows whose bands do not hide each other
_SETTINGS: dict[Any, Any] = {
    "pdf.fonttype": 42,  # TrueType, which can be searched
    "text.parse_math": False,  # a name may hold a dollar sign
    "axes.titlesize": TEXT,
    "axes.labelsize": TEXT,
    "xtick.labelsize": SMALL,
    "ytick.labelsize": SMALL,
    "legend.frameon": False,
    "legend.fontsize": TEXT,
    "legend.title_fontsize": TEXT,
    "legend.handlelength": 3.0,
    "savefig.bbox": "tight",
    "savefig.facecolor": "white",
}
Style = dict[str, Any]
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "<", ">", "p", "h", "d")
_DASHES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (1, 1)), (0, (5, 1, 1, 1)))


@dataclass(frozen=True, kw_only=True)
class FigureExhibit(Exhibit):
    """An exhibit that renders as PDF and PNG. The paper prints no numbers for its figures, so that all are ours."""

    def draw(self, study: Study) -> Figure:
        """The figure, drawn under `style`."""
        raise NotImplementedError

    def figure(self, study: Study) -> Figure:
        with style():
            return self.draw(study)

    def render(self, study: Study) -> dict[str, bytes]:
        with style():
            return to_files(self.draw(study))


@contextmanager
def style() -> Iterator[None]:
    """Everything drawn inside has this style, whatever a user's matplotlibrc says."""
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        with seaborn.plotting_context("paper"), seaborn.axes_style("ticks"):
            matplotlib.rcParams.update(_SETTINGS)
            yield


def to_files(figure: Figure) -> dict[str, bytes]:
    """The figure as PDF and PNG, without anything that changes from one day to the next."""
    pdf, png = io.BytesIO(), io.BytesIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")  # a title's emoji, which the page shows
        figure.savefig(pdf, format="pdf", metadata={"CreationDate": None, "Creator": None, "Producer": None})
        figure.savefig(png, format="png", dpi=160, metadata={"Software": None})
    return {"pdf": pdf.getvalue(), "png": png.getvalue()}


def styles(runs: Sequence[RunRecords]) -> dict[str, Style]:
    """The style of each row of some runs, the same in all figures of a report, as keywords of matplotlib's `plot`.

    No two of a hundred rows share colour and marker.
    """
    colours = seaborn.color_palette("colorblind").as_hex()
    del colours[8]  # yellow, which nobody sees as a line on white
    return {
        row: {
            "color": colours[place % len(colours)],
            "linestyle": _DASHES[place // len(colours) % len(_DASHES)],
            "marker": _MARKERS[place % len(_MARKERS)],
            "markersize": 3.5,
            "linewidth": 1.2,
        }
        for place, row in enumerate(dict.fromkeys(run.row for run in runs))
    }


def panels(rows: int, columns: int, width: float = 3.4, height: float = 2.4) -> tuple[Figure, list[list[Axes]]]:
    """A figure with a grid of panels, each with its labels about `width` x `height` inches."""
    figure = Figure(figsize=(columns * width, rows * height), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False)
    for axis in axes.flat:
        axis.grid(True, axis="y", alpha=0.6)
        seaborn.despine(ax=axis)
    return figure, axes.tolist()


def nothing(text: str) -> Figure:
    """A figure that says what is not there yet."""
    figure, [[axis]] = panels(1, 1)
    write_in_empty_panel(axis, text)
    return figure


def write_in_empty_panel(axis: Axes, text: str) -> None:
    """Write into an empty panel why it is."""
    axis.text(0.5, 0.5, textwrap.fill(text, 40), ha="center", transform=axis.transAxes, fontsize=TEXT)


def finish(figure: Figure, *said: str) -> Figure:
    """Hang one legend of all panels below a figure, under a text on it."""
    handles = {
        textwrap.fill(label, 40): handle
        for axis in reversed(figure.axes)
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)
    }
    text = ". ".join(filter(None, said)).replace(".. ", ". ")
    width = max(figure.get_figwidth(), 3.4)
    longest = max((len(line) for label in handles for line in label.split("\n")), default=0)
    figure.legend(
        handles.values(),
        handles.keys(),
        loc="upper center",
        bbox_to_anchor=(0.5, -0.02 / figure.get_figheight()),
        ncols=max(1, min(len(handles), int(width / (longest * LETTER + 0.7)))),
        title=textwrap.fill(text, int(width / LETTER)),
    )
    return figure


def about_texts(study: Study, suites: Sequence[str], rows: Sequence[str] | None = None) -> str:
    """What tables say of rows with other texts (of some rows)."""
    return " ".join(note for suite in suites for note in note_unequal_texts(study, suite, rows))


def describe_rows(counts: pd.Series, spread: str = "band") -> tuple[dict[str, str], str]:
    """The legend's label of each row, and what its line stands for, and its `spread` if there is one.

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
    return labels, text + (f"; {spread}: lowest to highest seed, no confidence interval" if spread else "")


def scale_y(axis: Axes, metric: Metric, values: Sequence[float]) -> None:
    """Scale an axis as its metric's is, with plain numbers, and say so; symlog is linear where nothing is large."""
    low, high, name, scale = min(values), max(values), metric.name, metric.axis
    if scale == "symlog" and max(-low, high) < 4:
        axis.set_ylabel(f"{name} (linear)")
        return
    axis.set_yscale(scale)
    axis.set_ylabel(f"{name} (log)" if scale == "log" else f"{name} (symlog: linear within ±1)")
    if scale == "symlog":
        axis.yaxis.set_major_locator(SymmetricalLogLocator(base=10, linthresh=1, subs=(1, 2, 5)))
    else:
        axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)) if high > 10 * low else MaxNLocator(6))
    axis.yaxis.set_major_formatter(lambda value, _: f"{value:g}".replace("-", "−"))
    axis.yaxis.set_minor_locator(NullLocator())


def format_amounts(axis: Axes, label: str) -> None:
    """An axis of what was spent, linear, with ticks like 60 k."""
    axis.set_xlabel(f"{label}, linear")
    axis.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
    axis.xaxis.set_major_formatter(EngFormatter(sep=" "))
