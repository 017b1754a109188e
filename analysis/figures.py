"""One style for all figures.

Matplotlib lays them out, fonts are embedded, and axes name their scales. Files hold no time stamp:
the same numbers give the same bytes.
"""

from __future__ import annotations

import io
import textwrap
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
import scipy.optimize
import seaborn
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Annotation
from matplotlib.ticker import EngFormatter, LogLocator, MaxNLocator, NullLocator
from matplotlib.transforms import ScaledTranslation

from analysis.exhibits import Exhibit
from analysis.metrics import Metric
from analysis.notes import note_unequal_texts
from analysis.study import Study
from analysis.tables import escape_latex

SMALL = 7.0  # points: names beside lines, numbers in cells
EDGE = 0.1  # inches of margin around a figure in its files
LEAST = 5.0  # points: the smallest that can be read on paper
COLUMN = 3.3  # inches: a column of a two-column paper
WIDEST = COLUMN * SMALL / LEAST  # inches: the widest figure that can be read in a column
TEXT = 8.0  # points: labels, legends and notes
LETTER = 0.065  # inches that a letter of TEXT is wide, on average
CLAIMED = ("ER", "ELLE")  # rows that always have a colour
FEW = 12  # with at most this many stages, each has room for a label and a number in a matrix
CLEAR = 8  # rows in colour beside grey ones: more would be hard to tell apart
GREY = "#949494"  # of rows without a colour
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
    "savefig.pad_inches": EDGE,
    "savefig.facecolor": "white",
}
Style = dict[str, Any]
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "<", ">", "p", "h", "d")
# Keys are for white pages, values for dark pages. Names have a contrast of at least 4.5:1 on both.
COLOURS = {
    "#0173b2": "#b3def5",
    "#a66300": "#e8900c",
    "#02805c": "#6fd3ac",
    "#a01c10": "#f0564a",
    "#bb4494": "#e653b2",
    "#4a3a20": "#e6da78",
    "#7048d8": "#c79ffb",
    "#1a208a": "#6e81fd",
    "#000000": "#ffffe1",
    "#780069": "#ff1ff0",
    "#005c00": "#1fa03c",
    "#0000ff": "#3d95ff",
    "#005f6b": "#2fd9e8",
}


class CaptionedFigure(Figure):
    """A figure with sentences for its caption."""

    sentences: str = ""


@dataclass(frozen=True)
class Picture:
    """A figure as files, what it shows in words, and sentences for its caption.

    `width` is that of the files, in inches.
    """

    pdf: bytes
    png: bytes
    width: float
    description: str
    sentences: str

    def to_files(self, name: str, label: str, caption: str) -> dict[str, bytes]:
        """PDF, PNG, and LaTeX with the whole caption.

        A picture that is too wide for a column of a paper spans two.
        """
        environment = "figure" if self.width <= WIDEST else "figure*"
        whole = f"{caption} {self.sentences}".strip()
        latex = f"""\\begin{{{environment}}}[t]
\\centering
\\includegraphics[width=\\linewidth]{{{name}.pdf}}
\\caption{{{escape_latex(whole)}}}
\\label{{{label}}}
\\end{{{environment}}}
"""
        return {"pdf": self.pdf, "png": self.png, "tex": latex.encode()}


@dataclass(frozen=True, kw_only=True)
class FigureExhibit(Exhibit):
    """An exhibit that renders as PDF and PNG.

    The paper prints no numbers for its figures, so all numbers are ours.
    """

    def _draw(self, study: Study) -> CaptionedFigure:
        """The figure of a study that has only what the exhibit shows, drawn under `style`."""
        raise NotImplementedError

    def draw(self, study: Study) -> CaptionedFigure:
        """The figure of a study's runs."""
        with style():
            return self._draw(self.select(study))

    def render(self, study: Study) -> Picture:
        with style():
            return make_picture(self.draw(study))


def describe(figure: CaptionedFigure) -> str:
    """A figure's numbers, for readers who cannot see it: its label, and where lines end."""
    ends = {}
    for axis in figure.axes:
        label = axis.get_ylabel()
        ends[label] = [text for text in axis.texts if isinstance(text, Annotation)]
    sentences = [str(figure.get_label())]
    for label, names in ends.items():
        if names:
            texts = ", ".join(name.get_text() for name in names)
            sentences.append(f"{label}: {texts}.")
    words = " ".join(sentences).split()
    return " ".join(words)


@contextmanager
def style() -> Iterator[None]:
    """Everything drawn inside has this style, whatever a user's matplotlibrc says."""
    with matplotlib.rc_context(), warnings.catch_warnings():
        # a title may hold an emoji, which the page shows
        warnings.filterwarnings("ignore", "Glyph .* missing")
        matplotlib.rcdefaults()
        with seaborn.plotting_context("paper"), seaborn.axes_style("ticks"):
            matplotlib.rcParams.update(_SETTINGS)
            yield


def make_picture(figure: CaptionedFigure) -> Picture:
    """The figure as PDF, and as PNG whose metadata describe what it shows.

    The files contain no date, so the same figure always gives the same bytes.
    """
    pdf = io.BytesIO()
    png = io.BytesIO()
    description = describe(figure)
    pdf_metadata = {"CreationDate": None, "Creator": None, "Producer": None}
    figure.savefig(pdf, format="pdf", metadata=pdf_metadata)
    figure.set_layout_engine("none")  # keep the panels where the PDF has them
    png_metadata = {"Software": None, "Description": description}
    figure.savefig(png, format="png", dpi=160, metadata=png_metadata)
    width = figure.get_tightbbox().width + 2 * EDGE
    return Picture(pdf.getvalue(), png.getvalue(), width, description, figure.sentences)


def assign_colours(study: Study) -> dict[str, str]:
    """The colour of each row, the same in all figures of a report.

    CLAIMED rows come first, then the others by final AP, the lowest first. No two rows share a
    colour. Rows after the last of COLOURS have none.
    """
    ranked = (study.whole or study).ranked_rows
    claimed = [row for row in CLAIMED if row in ranked]
    rows = dict.fromkeys([*claimed, *ranked])
    return dict(zip(rows, COLOURS, strict=False))


def choose_styles(study: Study, figure_rows: Collection[str]) -> dict[str, Style]:
    """The style of each row of a figure, as keywords of matplotlib's `plot`.

    If there are more than CLEAR + 1 rows, the first CLEAR keep their colours and the rest are GREY.
    """
    runs = (study.whole or study).runs
    rows = list(dict.fromkeys(run.row for run in runs))
    coloured = [
        (row, colour) for row, colour in assign_colours(study).items() if row in figure_rows
    ]
    if len(figure_rows) > CLEAR + 1:
        coloured = coloured[:CLEAR]
    colours = dict(coloured)
    styles: dict[str, Style] = {}
    for row in figure_rows:
        styles[row] = {
            "color": colours.get(row, GREY),
            "marker": _MARKERS[rows.index(row) % len(_MARKERS)],
            "markersize": 3.5,
            "linewidth": 1.2,
        }
    return styles


def describe_grey(style_of: Mapping[str, Style]) -> str:
    """A note that names the grey rows of a figure, "" if there are none."""
    grey = [row for row, style in style_of.items() if style["color"] == GREY]
    if grey:
        return f"Grey: {', '.join(grey)}"
    return ""


def name_ends(
    axis: Axes,
    ends: Mapping[str, tuple[float, float]],
    labels: Mapping[str, str],
    style_of: Mapping[str, Style],
) -> None:
    """Write the name of each row that has a colour, and its last value, to the right of its line.

    `ends` are (x, y). Names that would overlap move apart, as little as possible (isotonic
    regression). Call it when the layout is final, because it reads the panel's height.
    """
    to_panel = axis.transScale + axis.transLimits
    texts = {}
    heights_of_ends = {}  # as shares of the panel's height
    for row, end in ends.items():
        if style_of[row]["color"] != GREY:
            text = f"{labels[row]} {shorten_number(end[1])}"
            texts[row] = textwrap.fill(text, 24)
            heights_of_ends[row] = min(max(to_panel.transform(end)[1], 0), 1)
    rows = sorted(texts, key=heights_of_ends.__getitem__)
    if not rows:
        return
    inches = axis.get_window_extent().height / axis.figure.dpi
    line_counts = np.array([texts[row].count("\n") + 1 for row in rows])
    heights = line_counts * 1.35 * SMALL / 72
    stacked = np.cumsum(heights) - heights / 2  # middles of names if all were stacked
    # names do not overlap if no name is shifted less than the one below it
    shifts = [heights_of_ends[row] * inches for row in rows] - stacked
    ordered = scipy.optimize.isotonic_regression(shifts).x
    places = ordered.clip(0, max(0, inches - heights.sum())) + stacked
    # in inches, because panels may shrink
    to_edge = ScaledTranslation(1, 0, axis.transAxes)  # type: ignore[arg-type]
    corner = axis.figure.dpi_scale_trans + to_edge
    for row, place in zip(rows, places, strict=True):
        colour = style_of[row]["color"]
        line: Style = {"arrowstyle": "-", "color": colour, "linewidth": 0.5, "relpos": (0, 0.5)}
        axis.annotate(
            texts[row],
            (1, heights_of_ends[row]),
            (0.15, place),
            "axes fraction",
            corner,
            color=colour,
            fontsize=SMALL,
            va="center",
            arrowprops=line,
            annotation_clip=False,
        )


def shorten_number(value: float) -> str:
    """A number that fits into a cell: three digits below 1,000, a proper minus, "" for NaN."""
    if np.isnan(value):
        return ""
    value = round(value, 5) + 0.0  # 0 without rounding errors and without a sign
    if abs(value) < 1000:
        text = f"{value:.3g}"
    elif abs(value) < 1e5:
        text = f"{value:.0f}"
    else:
        text = f"{value:.0e}"
    return text.replace("e+", "e").replace("-", "−")


def make_panels(
    rows: int, columns: int, width: float = 3.4, height: float = 2.4
) -> tuple[CaptionedFigure, list[list[Axes]]]:
    """A figure with a grid of panels, each with its labels about `width` x `height` inches."""
    figure = CaptionedFigure(figsize=(columns * width, rows * height), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False)
    for axis in axes.flat:
        axis.grid(True, axis="y", alpha=0.6)
        seaborn.despine(ax=axis)
    return figure, axes.tolist()


def make_empty_figure(text: str) -> CaptionedFigure:
    """A figure that says what it lacks."""
    figure, [[axis]] = make_panels(1, 1)
    write_in_empty_panel(axis, text)
    return figure


def write_in_empty_panel(axis: Axes, text: str) -> None:
    """Write into a panel why it is empty."""
    axis.text(
        0.5, 0.5, textwrap.fill(text, 40), ha="center", transform=axis.transAxes, fontsize=TEXT
    )


def finish(figure: CaptionedFigure, *sentences: str) -> CaptionedFigure:
    """Put one legend of all panels below a figure, and store sentences for its caption."""
    handles = {}
    for axis in reversed(figure.axes):
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True):
            handles[textwrap.fill(label, 40)] = handle
    text = ". ".join(filter(None, sentences)).replace(".. ", ". ").rstrip(".")
    figure.sentences = f"{text}." if text else ""
    if not handles:
        return figure
    width = max(figure.get_figwidth(), 3.4)
    lines = [line for label in handles for line in label.split("\n")]
    longest = max(map(len, lines), default=0)
    columns = int(width / (longest * LETTER + 0.7))
    figure.legend(
        handles.values(),
        handles.keys(),
        loc="upper center",
        bbox_to_anchor=(0.5, -0.02 / figure.get_figheight()),
        ncols=max(1, min(len(handles), columns)),
    )
    return figure


def describe_texts(study: Study, rows: Sequence[str] | None = None) -> str:
    """The notes of tables on rows whose texts differ from those of most rows.

    `rows`: only these rows, by default all.
    """
    selection = study if rows is None else study.select_rows(rows)
    return " ".join(note for part in selection.parts for note in note_unequal_texts(part))


def describe_rows(counts: pd.Series, spread: str = "band") -> tuple[dict[str, str], str]:
    """The legend's label of each row, and a text on what lines and their `spread` stand for.

    `counts` (points,), with a level `row` in its index, counts the seeds behind each point. A label
    gives the count if the row has points of fewer seeds than the figure's maximum.
    """
    if counts.empty:
        return {}, ""
    most = counts.max()
    labels = {}
    for row, seeds in counts.groupby(level="row"):
        low = seeds.min()
        high = seeds.max()
        suffix = f" (n = {low})" if low == high else f" (n = {low} to {high})"
        labels[str(row)] = f"{row}{suffix}" if low < most else str(row)
    if most == 1:
        return labels, "One seed: how much another would differ is not known"
    text = f"Mean of {most} seeds"
    if counts.min() < most:
        text += ", or of n"
    text += f". {spread.capitalize()}: lowest to highest seed, not a confidence interval"
    return labels, text


def scale_y(axis: Axes, metric: Metric, values: Sequence[float]) -> None:
    """Give the y-axis its metric's scale, name the scale in the label, and show plain numbers."""
    low = min(values)
    high = max(values)
    is_long = metric.axis == "log" and high > 10 * low
    locator = LogLocator(subs=(1, 2, 5)) if is_long else MaxNLocator(6)
    axis.set_yscale(metric.axis)
    axis.set_ylabel(f"{metric.name} ({metric.axis})")
    axis.yaxis.set_major_locator(locator)
    axis.yaxis.set_major_formatter(lambda value, _: f"{value:g}".replace("-", "−"))
    axis.yaxis.set_minor_locator(NullLocator())


def find_label_step(count: int) -> int:
    """The step from one label of stages or texts to the next, so that at most FEW have a label."""
    return max(1, -(-count // FEW))  # 1 if there are none


def format_amounts(axis: Axes, label: str) -> None:
    """Format the x-axis for amounts spent: linear, with ticks like 60 k."""
    axis.set_xlabel(f"{label}, linear")
    axis.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
    axis.xaxis.set_major_formatter(EngFormatter(sep=" "))
