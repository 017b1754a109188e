"""One style for all figures: sizes in inches that texts are measured for, fonts embedded, scales named.

Files hold no time stamp: the same numbers give the same bytes.
"""

from __future__ import annotations

import colorsys
import io
import textwrap
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import matplotlib
import numpy as np
import pandas as pd
import seaborn
from fontTools import subset
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.cm import ScalarMappable
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.lines import Line2D
from matplotlib.textpath import text_to_path
from matplotlib.ticker import EngFormatter, LogLocator, MaxNLocator, NullLocator, SymmetricalLogLocator
from PIL import Image

from analysis.tables import number
from benchmark.store import RunRecords

SMALL = 7.0  # points: what stands beside lines and in cells
TEXT = 8.0  # labels, legends and notes
DPI = 160  # of pictures
LABEL = 2.4  # inches of a label in a legend, then it is wrapped: else one long name would leave room for one column
BAR = 1.05  # inches of a colour bar with its labels
_SETTINGS: dict[Any, Any] = {
    "pdf.fonttype": 42,
    "font.family": "DejaVu Sans",
    "text.parse_math": False,  # a name may hold a dollar sign
    "axes.titlesize": TEXT,
    "axes.labelsize": TEXT,
    "xtick.labelsize": SMALL,
    "ytick.labelsize": SMALL,
    "axes.linewidth": 0.8,
    "grid.linewidth": 0.5,
    "legend.frameon": False,
}
_HANDLE, _PAD, _BETWEEN = 3.0, 0.8, 2.0  # of a legend, in letter heights: its lines, and space after them and columns


@contextmanager
def style() -> Iterator[None]:
    """Everything drawn inside has this style, whatever a user's matplotlibrc says."""
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        with seaborn.plotting_context("paper"), seaborn.axes_style("ticks"):
            matplotlib.rcParams.update(_SETTINGS)
            yield


@cache
def text_width(text: str, points: float = TEXT) -> float:
    """How wide a line of text is drawn, in inches."""
    font = FontProperties(family="DejaVu Sans", size=points)
    width, _, _ = text_to_path.get_text_width_height_descent(text, font, False)
    return width / 72


def wrapped(text: str, inches: float, points: float = TEXT) -> str:
    """The text in lines of at most this width."""
    if text_width(text, points) <= inches:
        return text
    letters = max(4, int(len(text) * inches / text_width(text, points)))
    lines = textwrap.wrap(text, letters)
    while letters > 4 and max(text_width(line, points) for line in lines) > inches:
        letters -= 1
        lines = textwrap.wrap(text, letters)
    return "\n".join(lines)


@dataclass(frozen=True)
class Room:
    """The room around panels and between them, in inches; a colour bar stands in the right margin."""

    left: float = 0.75
    right: float = 0.2
    top: float = 0.35
    between: float = 0.75  # panels beside each other
    below: float = 0.6  # a panel and the next
    bottom: float = 0.5  # for the labels of an axis


@dataclass
class Panels:
    """A grid of panels whose plot boxes are each `width` x `height` inches; a colour bar is beside the first row."""

    figure: Figure
    axes: list[list[Axes]]
    width: float
    height: float
    room: Room
    bar: Axes | None = None

    @property
    def flat(self) -> list[Axes]:
        return [axis for line in self.axes for axis in line]


def panels(rows: int, columns: int, width: float = 2.75, height: float = 1.8, **room: float) -> Panels:
    """A figure with a grid of panels; `room` are the lengths of `Room` that are others."""
    figure = Figure()
    axes = figure.subplots(rows, columns, squeeze=False)
    for axis in axes.flat:
        axis.grid(True, axis="y", alpha=0.6)
        seaborn.despine(ax=axis)
    return Panels(figure, axes.tolist(), width, height, Room(**room))


def colour_bar(grid: Panels, shown: ScalarMappable, label: str, ticks: Mapping[float, str]) -> None:
    """Say what the colours of `shown` mean, in the last BAR inches of the right margin."""
    grid.bar = grid.figure.add_axes((0, 0, 1, 1))
    bar = grid.figure.colorbar(shown, cax=grid.bar)
    bar.set_ticks(list(ticks), labels=list(ticks.values()), minor=False)
    bar.minorticks_off()
    bar.set_label(label, size=SMALL)
    bar.outline.set_linewidth(0)


def over_seeds(counts: pd.Series, spread: str = "band") -> tuple[dict[str, str], str]:
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


def finish(grid: Panels, text: str = "") -> dict[str, bytes]:
    """Lay the figure out, with one legend of all panels and a text below them; its files are those of `to_files`."""
    figure, room, rows, columns = grid.figure, grid.room, len(grid.axes), len(grid.axes[0])
    width = room.left + columns * grid.width + (columns - 1) * room.between + room.right
    handles: dict[str, Any] = {}
    for axis in grid.flat:
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True):
            handles.setdefault(wrapped(label, min(LABEL, width - 0.7)), handle)
    note = wrapped(text, width - 0.2)
    line = 1.25 * TEXT / 72
    note_height = line * (1 + note.count("\n")) + 0.06 if text else 0.0
    across = _columns(list(handles), width)
    # matplotlib fills column by column
    lines = [sum(1 + label.count("\n") for label in part) for part in np.array_split(list(handles), across)]
    legend_height = line * 1.35 * max(lines) + 0.1 if handles else 0.0
    below = note_height + legend_height
    height = room.top + rows * grid.height + (rows - 1) * room.below + room.bottom + below
    figure.set_size_inches(width, height)
    for i, axes in enumerate(grid.axes):
        for j, axis in enumerate(axes):
            x = room.left + j * (grid.width + room.between)
            y = height - room.top - (i + 1) * grid.height - i * room.below
            axis.set_position((x / width, y / height, grid.width / width, grid.height / height))
    if grid.bar:
        high = min(grid.height, 1.8)
        y = height - room.top - high
        grid.bar.set_position((1 - (BAR - 0.1) / width, y / height, 0.12 / width, high / height))
    if handles:
        place = (0.5, note_height / height)
        options: dict[str, Any] = {"loc": "lower center", "bbox_to_anchor": place, "fontsize": TEXT, "ncols": across}
        options |= {"handlelength": _HANDLE, "handletextpad": _PAD, "columnspacing": _BETWEEN, "borderaxespad": 0.2}
        figure.legend(list(handles.values()), list(handles), **options)
    if text:
        figure.text(0.5, 0.05 / height, note, ha="center", va="bottom", fontsize=TEXT, linespacing=1.25)
    return to_files(figure)


def _columns(labels: Sequence[str], width: float) -> int:
    """How many columns of a legend fit."""
    if not labels:
        return 1
    letter = TEXT / 72
    widths = [max(map(text_width, label.split("\n"))) for label in labels]
    for count in range(min(8, len(labels)), 1, -1):
        columns = [max(part) for part in np.array_split(widths, count)]
        if sum(columns) + letter * (count * (_HANDLE + _PAD) + (count - 1) * _BETWEEN + 1.5) <= width:
            return count
    return 1


Scale = Literal["linear", "log", "symlog"]


def scale_of(scale: Literal["log", "symlog"], low: float, high: float) -> Scale:
    """The scale for values from `low` to `high`: symlog is linear within 1, and so is all where nothing is large."""
    return "linear" if scale == "symlog" and max(-low, high) < 4 else scale


def scale_y(axis: Axes, scale: Scale, low: float, high: float) -> None:
    """An axis that ends where the values do, but for the size of a marker, with plain numbers."""
    axis.set_yscale(scale)
    transform = axis.yaxis.get_transform()
    if low == high:
        low, high = (low / 1.5, high * 1.5) if scale == "log" else (low - 1, high + 1)
    ends = np.asarray(transform.transform(np.array([low, high])), float)
    margin = 0.03 * (ends[1] - ends[0])
    axis.set_ylim(*transform.inverted().transform(ends + np.array([-margin, margin])))
    if scale == "linear":
        return
    narrow = high < 20 * low if scale == "log" else max(-low, high) < 30
    steps = {("log", True): (1, 1.5, 2, 3, 4, 5, 6, 8), ("symlog", False): (1, 3)}.get((scale, narrow), (1, 2, 5))
    if scale == "log" and high < 3 * low:
        axis.yaxis.set_major_locator(MaxNLocator(5))
    elif scale == "log":
        axis.yaxis.set_major_locator(LogLocator(subs=steps))
    else:
        axis.yaxis.set_major_locator(SymmetricalLogLocator(base=10, linthresh=1, subs=steps))
    axis.yaxis.set_major_formatter(lambda value, _: f"{value:g}".replace("e+", "e").replace("-", "−"))
    axis.yaxis.set_minor_locator(NullLocator())


def named(name: str, scale: Scale) -> str:
    """The label of an axis with its scale, behind a unit in brackets if it ends with one."""
    said = f"{scale}{', linear within ±1' if scale == 'symlog' else ''})"
    return f"{name[:-1]}, {said}" if name.endswith(")") else f"{name} ({said}"


def amounts(axis: Axes, low: float, high: float) -> None:
    """An axis of what was spent, linear, with ticks like 60 k."""
    axis.set_xlim(low, high)
    axis.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
    axis.xaxis.set_major_formatter(EngFormatter(sep=" "))


def short(value: float, digits: int = 2) -> str:
    """A number beside a line: as tables have it, or with an exponent where that would be long."""
    return number(value, digits) if abs(value) < 1e5 else f"{value:.1e}".replace("e+", "e").replace("-", "−")


def room_for_values(count: int) -> float:
    """How high a panel must be for so many values at its edge."""
    return 1.15 * SMALL * count / 72


def end_values(axis: Axes, height: float, ends: Sequence[tuple[float, str, dict[str, Any]]]) -> None:
    """Write values beside the right edge of a panel of this height, each with the marker of its line.

    `ends` are the value, its text and the style of its line; limits and scale of the axis must be there. Texts move
    apart as little as lets each be read: the least squares of what they move (an isotonic regression).
    """
    from scipy.optimize import isotonic_regression

    ends = sorted(ends, key=lambda end: end[0])
    if not ends:
        return
    step = 1.15 * SMALL / 72 / height
    to_panel = axis.transScale + axis.transLimits
    places = to_panel.transform([(axis.get_xlim()[1], value) for value, _, _ in ends])[:, 1]
    offsets = step * np.arange(len(ends))
    free = isotonic_regression(places - offsets).x
    moved = np.clip(free, 0.0, max(0.0, 1.0 - offsets[-1])) + offsets
    for (_, text, line_style), place, at in zip(ends, places, moved, strict=True):
        style = {**line_style, "linestyle": "-", "linewidth": 0.5, "clip_on": False, "markevery": [1]}
        axis.add_line(Line2D([1.0, 1.045], [place, at], transform=axis.transAxes, **style))
        axis.text(1.075, at, text, transform=axis.transAxes, va="center", fontsize=SMALL, color="0.2")


_DRAWN: ContextVar[list[Figure] | None] = ContextVar("_DRAWN", default=None)


def drawn(render: Callable[[], object]) -> Figure:
    """The figure that `render` would make files of."""
    kept: list[Figure] = []
    token = _DRAWN.set(kept)
    try:
        render()
    finally:
        _DRAWN.reset(token)
    return kept[-1]


def to_files(figure: Figure) -> dict[str, bytes]:
    """The figure as PDF and PNG, without anything that changes from one day to the next."""
    if (kept := _DRAWN.get()) is not None:
        kept.append(figure)
        return {"pdf": b"", "png": b""}
    pdf, png = io.BytesIO(), io.BytesIO()
    about = {"CreationDate": None, "Creator": None, "Producer": None}
    with _without_layout_tables():
        figure.savefig(pdf, format="pdf", facecolor="white", metadata=about)
    figure.set_dpi(DPI)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    image = Image.fromarray(np.asarray(canvas.buffer_rgba())[..., :3])
    few = _with_palette(image, [to_rgb(line.get_color()) for line in figure.findobj(Line2D)])
    few.save(png, format="PNG", optimize=True, dpi=(DPI, DPI))
    return {"pdf": pdf.getvalue(), "png": png.getvalue()}


@contextmanager
def _without_layout_tables() -> Iterator[None]:
    """Fonts embedded inside lack the tables that set text, which is set by then: cutting these takes half the time."""
    kept = subset.Options._drop_tables_default
    subset.Options._drop_tables_default = [*kept, "GDEF", "GPOS", "GSUB"]
    try:
        yield
    finally:
        subset.Options._drop_tables_default = kept


def _with_palette(image: Image.Image, kept: Sequence[tuple[float, float, float]]) -> Image.Image:
    """The picture in 256 colours, which takes a third of the bytes: those `kept`, then the most frequent.

    Of colours that nobody tells apart, less than 8 of 256 from each other, one stands for all.
    """
    counts: dict[tuple[int, ...], int] = {}
    chosen: dict[tuple[int, ...], tuple[int, ...]] = {}
    found: list[Any] = sorted(image.getcolors(image.width * image.height) or [], reverse=True)
    for count, colour in [*((0, tuple(round(255 * part) for part in one)) for one in kept), *found]:
        place = tuple(part // 8 for part in colour)
        chosen.setdefault(place, colour)
        counts[place] = counts.get(place, 0) + (count or image.width * image.height)
    palette = sorted(chosen, key=lambda place: (-counts[place], place))[:256]
    of_palette = Image.new("P", (1, 1))
    of_palette.putpalette([part for place in palette for part in chosen[place]])
    return image.quantize(palette=of_palette, dither=Image.Dither.NONE)


Style = dict[str, Any]

_COLOURS = (  # Okabe and Ito's, then others; no yellow, which nobody sees as a line on white
    *("#7F7F7F", "#E69F00", "#009E73", "#CC79A7", "#0072B2", "#8C2D04", "#56B4E9", "#D55E00"),
    *("#6A51A3", "#A6761D", "#66A61E", "#000000"),
)
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "<", ">", "p", "h", "d")
_DASHES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (1, 1)), (0, (5, 1, 1, 1)))
_FILLS = ("full", "none", "left", "top")
# the paper's, then ours, so that neighbours of one table differ; whoever is not named gets a place by its name
_KNOWN = (
    *("naive", "ewc", "mas", "agem", "er", "logit_kd", "pnn", "elle", "elle_exact", "aki", "lora", "joint"),
    *("stack", "rewarm", "scratch", "er_large", "derpp", "merge"),
    *("infinite_lr", "ema", "llama_pro", "ar_schedule", "soup", "gstack", "mer", "lora_merged", "das", "lifelong_moe"),
    *("oracle",),
)
_PLACES = len(_COLOURS) * len(_MARKERS)  # as 12 and 13 have no common divisor, each is another pair


def styles(runs: Sequence[RunRecords]) -> dict[str, Style]:
    """The style of each row of some runs, as keywords of matplotlib's `plot`.

    The first row of a method has the method's own; further ones have its marker in other shades of its colour, from
    light to dark, with dashes and fillings of their own. An unknown method has what the hash of its name says.
    """
    methods: dict[str, str] = {}
    for run in runs:
        methods.setdefault(run.row, run.line.method)
    rows: dict[str, list[str]] = {}
    for row, method in methods.items():
        rows.setdefault(method, []).append(row)
    found: dict[str, Style] = {}
    taken = {_KNOWN.index(method) for method in rows if method in _KNOWN}
    for method, of_method in sorted(rows.items()):
        place = _place(method)
        while method not in _KNOWN and place in taken:  # two unknown ones of one report
            place = (place + 1) % _PLACES
        taken.add(place)
        own = _style_at(place)
        for place_of_row, row in enumerate(of_method):
            found[row] = own if place_of_row == 0 else own | _variant(own["color"], place_of_row, len(of_method) - 1)
    return {row: found[row] for row in methods}


def of_method(method: str) -> Style:
    """What a method looks like, as keywords of matplotlib's `plot`."""
    return _style_at(_place(method))


def _place(method: str) -> int:
    if method in _KNOWN:
        return _KNOWN.index(method)
    return len(_KNOWN) + zlib.crc32(method.encode()) % (_PLACES - len(_KNOWN))


def _style_at(place: int) -> Style:
    return {
        "color": _COLOURS[place % len(_COLOURS)],
        "linestyle": _DASHES[place // len(_MARKERS) % len(_DASHES)],
        "marker": _MARKERS[place % len(_MARKERS)],
        "fillstyle": "full",
        "markersize": 3.5,
        "markeredgewidth": 0.6,
        "linewidth": 1.2,
    }


def _variant(colour: str, number: int, count: int) -> Style:
    """The `number`-th of `count` further rows of a method, both from 1."""
    share = number / count  # 0 is light, 1 is dark
    hue, _, saturation = colorsys.rgb_to_hls(*(int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)))
    mixed = colorsys.hls_to_rgb((hue + 0.06 * (0.5 - share)) % 1, 0.68 - 0.5 * share, saturation)
    return {
        "color": "#" + "".join(f"{round(255 * part):02X}" for part in mixed),
        "linestyle": _DASHES[number % len(_DASHES)],
        "fillstyle": _FILLS[number % len(_FILLS)],
    }
