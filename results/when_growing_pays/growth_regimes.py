"""Beyond the paper: as a function of budget and size, when does growing beat replay, and when starting large?"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import matplotlib.colors
import numpy as np
import seaborn
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis import inference
from analysis.figures import FigureExhibit, describe_texts, finish, make_panels, write_in_empty_panel
from analysis.metrics import Floats
from analysis.study import Study, find_header
from benchmark.records import DoneLine, find_last
from benchmark.store import RunRecords

FLOPS_OF_SIZE = 120.0  # FLOPs = 120 N², of the compute-optimal number of parameters N (Hoffmann et al. 2022)
GROWN, FIXED = "elle", "er"
PANEL = 3.5, 2.6  # inches
MARKERS = "os^Dv"
TEXT = 6.5  # points of what stands at a place


@dataclass(frozen=True)
class MapPoint:
    """A point of the map, and how ELLE did there beside ER: the logarithm of the ratio of their final AP."""

    name: str
    tokens_per_parameter: float  # that the first model has seen when it grows
    relative_size: float  # of the final model, as a multiple of the compute-optimal one of all FLOPs; NaN if unknown
    log_ratio: float


@dataclass(frozen=True)
class MapCell(MapPoint):
    """A point that was run: its log_ratio is a mean over seeds."""

    parameters: int  # of the last model
    seeds: int
    decided: bool  # whether the mean differs from 0 (paired by seed, two-sided t test at 5%)
    ap: dict[str, float]  # final AP by method, geometric mean over the seeds that all of them have
    ranked: tuple[str, ...]  # the methods of the stream by it, the best first
    told_apart: bool  # whether the best is below the second best, by the same test
    lower: str  # the method with all text at once that is below the best of the stream, where one is

    @property
    def best(self) -> str:
        return self.ranked[0]


@dataclass(frozen=True, kw_only=True)
class RegimesFigure(FigureExhibit):
    """A cell for each budget and final size that ELLE and ER were both run with; `points` were run elsewhere.

    `contenders` are methods and their titles; of a method with several rows in a cell the first one counts. Those that
    pool the budgets of several stages, as they have all text at once, are none of the stream's: where one is lower, the
    best has a ring. The line is where a plane fitted to the cells' log ratios, over the logarithms of both axes, is
    zero. The CSV file has the cells, each with what a fit to the others predicts for it.
    """

    contenders: Mapping[str, str]
    points: tuple[MapPoint, ...] = ()

    def write_numbers(self, study: Study) -> dict[str, bytes]:
        return {"csv": _write_csv(_select_with_flops(find_cells(study, [*self.contenders])), [*self.contenders])}

    def _draw(self, study: Study) -> Figure:
        every = find_cells(study, [*self.contenders])
        cells = _select_with_flops(every)
        figure, [[left, right]] = make_panels(1, 2, PANEL[0] + 0.8, PANEL[1] + 0.6)
        for axis in (left, right):
            axis.set_xlabel("Tokens a parameter of the first model (log)")
        left.set_ylabel("Final size / compute-optimal size (log)")
        right.tick_params(labelleft=False)  # the same as the left one's
        if not cells:
            write_in_empty_panel(
                left, "no pair of ELLE and ER has counted FLOPs" if every else "no finished pair of ELLE and ER yet"
            )
            return finish(figure)
        self._draw_ratios(left, cells)
        self._draw_best(right, cells)
        ends = (
            f"{cell.tokens_per_parameter:.0f} and {cell.relative_size:.2g}: {math.expm1(cell.log_ratio):+.0%}, "
            f"lowest {self.contenders[cell.best]}"
            for cell in cells
        )
        figure.set_label(f"By tokens a parameter and relative size, ELLE's AP over ER's: {'; '.join(ends)}.")
        rows = [run.row for run in study.runs if run.line.method in self.contenders]
        return finish(figure, self._describe(cells, len(every)), describe_texts(study, study.suites, rows))

    def _describe(self, cells: Sequence[MapCell], every: int) -> str:
        fewer = sum(len(cell.ap) < len(self.contenders) for cell in cells)
        return (
            "Left: final AP of ELLE over ER's, hatched: not decided at 5%; dashed: where a fitted plane is 0. "
            "Right: the lowest AP of the ways that get one domain after the other, open: not told from the second "
            "lowest at 5%; at each, the parameters of the last model."
            + (f" Not all ways have run in {fewer} of {len(cells)} cells." if fewer else "")
            + (f" Without FLOPs, and left out: {every - len(cells)}." if len(cells) < every else "")
        )

    def _draw_ratios(self, axis: Axes, cells: Sequence[MapCell]) -> None:
        every = [*cells, *self.points]
        _set_limits(axis, every)
        finite = [abs(place.log_ratio) for place in every if math.isfinite(place.log_ratio)]
        widest = max(finite, default=0.0) or 1.0
        scale = matplotlib.colors.Normalize(-widest, widest)
        texts = [
            ("" if isinstance(place, MapCell) else f"{place.name}, ")
            + f"{math.expm1(place.log_ratio):+.0%}".replace("-", "−")
            for place in every
        ]
        border = _find_border(axis, fit(cells))
        axis.plot(*border.T, color="0.2", linestyle="--", linewidth=1)
        for place, text, at in zip(every, texts, _place_texts(axis, every, texts, border), strict=True):
            undecided = isinstance(place, MapCell) and not place.decided
            drawn = axis.scatter(
                [place.tokens_per_parameter],
                [place.relative_size],
                c=[np.clip(place.log_ratio, -widest, widest)],
                norm=scale,
                cmap="RdBu_r",
                s=260 if isinstance(place, MapCell) else 110,
                marker="s" if isinstance(place, MapCell) else "o",
                edgecolors="0.3",
                linewidths=0.6,
                hatch="////" if undecided else None,
                zorder=2,
            )
            axis.text(*at, text, transform=axis.transAxes, ha="center", va="center", fontsize=TEXT, zorder=3)
        bar = axis.figure.colorbar(drawn, cax=axis.inset_axes((1.02, 0.0, 0.03, 1.0)))
        bar.ax.yaxis.set_major_formatter(lambda value, _: f"{math.expm1(value):+.0%}".replace("-", "−"))

    def _draw_best(self, axis: Axes, cells: Sequence[MapCell]) -> None:
        _set_limits(axis, [*cells, *self.points])
        colours = seaborn.color_palette("colorblind").as_hex()
        for (method, title), colour, marker in zip(self.contenders.items(), colours, MARKERS, strict=False):
            best = [cell for cell in cells if cell.best == method]
            lower = [cell for cell in cells if cell.lower == method]
            _scatter(axis, [cell for cell in best if cell.told_apart], colour, colour, marker, 90)
            _scatter(axis, [cell for cell in best if not cell.told_apart], "white", colour, marker, 90)
            _scatter(axis, lower, "none", colour, "o", 330)
            if best:  # in the legend once, whether faces are open or not
                _scatter(axis, [], colour, colour, marker, 90, title)
            if lower:
                _scatter(axis, [], "none", colour, "o", 140, f"{title}, all text at once, is lower")
        sizes = [f"{cell.parameters / 1000:.0f}k" for cell in cells]
        for text, at in zip(sizes, _place_texts(axis, cells, sizes, np.empty((0, 2))), strict=True):
            axis.text(*at, text, transform=axis.transAxes, ha="center", va="center", fontsize=TEXT)


def _select_with_flops(every: Sequence[MapCell]) -> list[MapCell]:
    return [cell for cell in every if math.isfinite(cell.relative_size)]


def _scatter(
    axis: Axes, cells: Sequence[MapCell], faces: str, edges: str, marker: str, size: float, label: str | None = None
) -> None:
    places = [cell.tokens_per_parameter for cell in cells], [cell.relative_size for cell in cells]
    axis.scatter(
        *places, facecolors=faces, edgecolors=edges, marker=marker, s=size, linewidths=1.4, label=label, zorder=2
    )


def find_cells(study: Study, contenders: Sequence[str]) -> list[MapCell]:
    """Every budget and final size that ELLE and ER have finished with, in the order of the rows."""
    final = {run.id: ap for run, ap in _find_final(study)}
    at_once = {run.line.method for run in study.runs if run.row in study.pooled}
    grown: dict[tuple[str, str, str, str], dict[str, dict[int, RunRecords]]] = {}
    fixed: dict[tuple[str, str, str], dict[int, RunRecords]] = {}
    for run in sorted(study.runs, key=lambda run: (run.suite, run.line.row_index)):
        method = run.line.method
        if run.id not in final or method not in contenders:
            continue
        config = run.line.config
        start = (run.suite, json.dumps(config["budget"]), str(config["model"]["ladder"][0]))
        if method == FIXED:
            fixed.setdefault(start, {}).setdefault(run.seed, run)
        else:
            of_cell = grown.setdefault((*start, str(config["model"]["ladder"][-1])), {})
            of_cell.setdefault(method, {}).setdefault(run.seed, run)
    cells = []
    for place, by_method in grown.items():
        by_method = {**by_method, FIXED: fixed.get(place[:3], {})}
        pairs = sorted(by_method.get(GROWN, {}).keys() & by_method[FIXED].keys())
        if pairs:
            ap = {method: {seed: final[run.id] for seed, run in runs.items()} for method, runs in by_method.items()}
            cells.append(_make_cell(by_method[GROWN][pairs[0]], pairs, ap, at_once))
    return cells


def _find_final(study: Study) -> Iterator[tuple[RunRecords, float]]:
    """The runs that ended, each with its AP after the last domain."""
    ends = study.ends.set_index(["run", "stage"])["ap"].to_dict()
    for run in study.runs:
        if (ap := ends.get((run.id, len(run.domains) - 1))) is not None:
            yield run, float(ap)


def _make_cell(run: RunRecords, pairs: Sequence[int], ap: dict[str, dict[int, float]], at_once: set[str]) -> MapCell:
    """A cell of ELLE's `run`, the seeds that it shares with ER, and AP by method and seed.

    `at_once` are methods that are none of the stream's.
    """
    heads, done = find_header(run.stages[0]), [find_last(stage, DoneLine) for stage in run.stages]
    spent = [line.charged for line in done if line is not None]
    flops = sum(charged.get("flops", math.nan) for charged in spent)
    ratio, p = _compare(ap[GROWN], ap[FIXED])
    common = sorted(set.intersection(*[set(by_seed) for by_seed in ap.values()]))
    means = {
        method: _compute_geometric_mean([by_seed[seed] for seed in common or by_seed]) for method, by_seed in ap.items()
    }
    in_order = sorted(means, key=means.__getitem__)
    ranked = tuple(method for method in in_order if method not in at_once)
    difference, p_of_best = _compare(ap[ranked[0]], ap[ranked[1]])
    return MapCell(
        name=run.row,
        tokens_per_parameter=spent[0]["tokens"] / heads.parameters,
        relative_size=find_header(run.stages[-1]).parameters / math.sqrt(flops / FLOPS_OF_SIZE),
        parameters=find_header(run.stages[-1]).parameters,
        log_ratio=ratio,
        seeds=len(pairs),
        decided=p <= inference.ERRORS,
        ap=means,
        ranked=ranked,
        told_apart=difference < 0 and p_of_best <= inference.ERRORS,
        lower=in_order[0] if in_order[0] in at_once else "",
    )


def _compare(ap: Mapping[int, float], other: Mapping[int, float]) -> tuple[float, float]:
    """The mean of the logarithm of the ratio over the seeds that both have, and its two-sided p-value."""
    seeds = sorted(ap.keys() & other.keys())
    if not seeds:
        return math.nan, 1.0
    ratios = np.log([ap[seed] / other[seed] for seed in seeds])
    above, below = inference.compute_one_sided_p(ratios[:, None])
    return float(ratios.mean()), float(2 * min(above[0], below[0]))


def _compute_geometric_mean(values: Sequence[float]) -> float:
    return float(np.exp(np.mean(np.log(values))))


def fit(places: Sequence[MapPoint]) -> tuple[float, float, float] | None:
    """The plane of log ratios (a, b, c): a + b ln(tokens a parameter) + c ln(relative size), by least squares.

    None where the places do not determine it.
    """
    usable = [place for place in places if math.isfinite(place.log_ratio)]
    design = np.array([(1.0, *_take_logs(place)) for place in usable]).reshape(-1, 3)
    if np.linalg.matrix_rank(design) < 3:
        return None
    a, b, c = np.linalg.lstsq(design, np.array([place.log_ratio for place in usable]), rcond=None)[0]
    return float(a), float(b), float(c)


def _take_logs(place: MapPoint) -> tuple[float, float]:
    return math.log(place.tokens_per_parameter), math.log(place.relative_size)


def predict(plane: tuple[float, float, float] | None, place: MapPoint) -> float:
    """The log ratio that a plane gives a place; NaN without a plane."""
    return math.nan if plane is None else float(np.dot(plane, (1.0, *_take_logs(place))))


def _find_border(axis: Axes, plane: tuple[float, float, float] | None) -> Floats:
    """Points of the line where a plane is 0, shape (n, 2), inside the axes."""
    if plane is None or not plane[2]:
        return np.empty((0, 2))
    x = np.geomspace(*axis.get_xlim(), 100)
    y = -(plane[0] + plane[1] * np.log(x)) / plane[2]
    low, high = np.log(axis.get_ylim())
    inside = (y >= low) & (y <= high)
    return np.stack([x[inside], np.exp(y[inside])], axis=1)


def _set_limits(axis: Axes, places: Sequence[MapPoint]) -> None:
    for set_scale, set_limits, values in (
        (axis.set_xscale, axis.set_xlim, [place.tokens_per_parameter for place in places]),
        (axis.set_yscale, axis.set_ylim, [place.relative_size for place in places]),
    ):
        set_scale("log")
        set_limits(min(values) / 2, max(values) * 2)
    for side in (axis.xaxis, axis.yaxis):
        side.set_major_formatter(lambda value, _: f"{value:,g}")


def _place_texts(
    axis: Axes, places: Sequence[MapPoint], texts: Sequence[str], line: Floats
) -> list[tuple[float, float]]:
    """Where the text of each place stands in the panel, as shares of it: above, below, or further off where others are.

    The first spot that meets no point of the line, no other text and no other place's marker, which are as large as
    those of cells.
    """
    to_panel = axis.transScale + axis.transLimits
    points = to_panel.transform([(place.tokens_per_parameter, place.relative_size) for place in places]) * PANEL
    marker = np.full(2, 0.13)  # half its side, inches
    halves = [np.array([0.055 * len(text), 1.2 * TEXT / 72]) / 2 for text in texts]
    taken: list[tuple[Floats, Floats]] = [(point, marker) for point in points]
    taken += [(point, np.full(2, 0.02)) for point in (to_panel.transform(line) * PANEL if len(line) else ())]
    spots = []
    for own, (point, half) in enumerate(zip(points, halves, strict=True)):
        steps = [(x, y) for far in range(8) for x in (0, -1, 1) for y in (1 + far, -1 - far)]
        steps = sorted([*steps, (-1, 0), (1, 0)], key=lambda step: abs(step[0]) + abs(step[1]))
        tried = [point + np.array([x * (half[0] + 0.15), y * (half[1] + 0.13)]) for x, y in steps]
        inside = [spot for spot in tried if (spot - half >= 0).all() and (spot + half <= PANEL).all()]
        others = [box for place, box in enumerate(taken) if place != own]
        free = (spot for spot in inside if not any((abs(spot - at) < half + size).all() for at, size in others))
        spot = next(free, tried[0])
        taken.append((spot, half))
        spots.append((float(spot[0] / PANEL[0]), float(spot[1] / PANEL[1])))
    return spots


def _write_csv(cells: Sequence[MapCell], contenders: Sequence[str]) -> bytes:
    out = io.StringIO()
    write = csv.writer(out, lineterminator="\n").writerow
    head = ["cell", "tokens_per_parameter", "relative_size", "seeds", "log_ratio", "decided"]
    head += ["log_ratio_predicted_by_the_others", "best", "second_best", "told_apart", "lower_with_all_text_at_once"]
    write([*head, *(f"ap_{method}" for method in contenders)])
    for cell in cells:
        others = predict(fit([other for other in cells if other is not cell]), cell)
        aps = [f"{cell.ap[method]:.2f}" if method in cell.ap else "" for method in contenders]
        numbers = [f"{cell.tokens_per_parameter:.1f}", f"{cell.relative_size:.3f}", cell.seeds, f"{cell.log_ratio:.4f}"]
        guess = "" if math.isnan(others) else f"{others:.4f}"
        best = [*cell.ranked[:2], _say_whether(cell.told_apart), cell.lower]
        write([cell.name, *numbers, _say_whether(cell.decided), guess, *best, *aps])
    return out.getvalue().encode()


def _say_whether(so: bool) -> str:
    return "yes" if so else "no"


EXHIBIT = RegimesFigure(
    label="fig:growth_regimes",
    caption="When growing pays: final AP of ELLE beside ER's, and the best of five ways, by budget and final size.",
    blocks={},
    contenders={
        "er": "ER",
        "elle": "ELLE",
        "elle_exact": "ELLE (exact)",
        "er_large": "ER (final size)",
        "scratch": "From scratch",
    },
    points=(
        # table:table1, BERT: 4.06 and 6.39 after CS. tab:arch: 62,500 steps of 2,048 x 512 tokens at 30.3 million
        # parameters, then 25,000 at each of 51.5, 82.2, 102 and 125 million: 6.9e19 FLOPs at six a parameter and token
        MapPoint("paper", 2163.0, 0.17, math.log(4.06 / 6.39)),
    ),
)
