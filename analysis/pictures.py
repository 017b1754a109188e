"""The figure of the matrix stage x text: what a stream does to each of its domains, and to probes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import matplotlib.colors
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.collections import QuadMesh

from analysis import figures, notes
from analysis.exhibits import Exhibit, View
from analysis.lifelong_tables import ORACLE, loss_matrix
from analysis.metrics import Floats
from analysis.notes import below
from analysis.study import Study, of_text
from benchmark.settings.names import slug
from benchmark.store import RunRecords

CELL = 0.36, 0.2  # inches
WIDEST = 11.0  # inches of panels beside each other
NUMBER = 6.0  # points
COLOURS = "cividis_r"


@dataclass(frozen=True, kw_only=True)
class MatrixFigure(Exhibit):
    """The perplexity of every domain and probe after every stage, mean over seeds; a panel a row, one scale for all.

    Where seeds meet the domains in different orders columns are the domains' places, as lines are. Where runs begin
    with a start model its own perplexities are the first line. `oracle`: domains alone, their perplexities divided by
    those of the oracles of each seed (e to the power of `analysis.metrics.regrets`).
    """

    oracle: bool = False
    kind: ClassVar[Literal["table", "figure"]] = "figure"

    def render(self, study: Study, view: View = "ours") -> dict[str, bytes]:
        matrices = [matrix for suite in self.suites(study) for matrix in self._matrices(study, suite)]
        what = "Perplexity over the oracle's" if self.oracle else "Perplexity"
        every = np.concatenate(
            [*(matrix.perplexity[np.isfinite(matrix.perplexity)] for matrix in matrices), np.empty(0)]
        )
        with figures.style():
            if not every.size:
                grid = figures.panels(1, 1)
                grid.flat[0].text(0.5, 0.5, "no finished stage yet", ha="center", transform=grid.flat[0].transAxes)
                return figures.finish(grid)
            sheet = _Sheet.of(matrices)
            grid = figures.panels(
                1, 1, *sheet.size, left=sheet.room.left, right=figures.BAR + 0.1, top=sheet.room.top, bottom=0.1
            )
            [axis] = grid.flat
            axis.set_axis_off()
            axis.set(xlim=(0, sheet.size[0]), ylim=(sheet.size[1], 0))
            scale = matplotlib.colors.LogNorm(every.min(), every.max())
            cells = sheet.draw(axis, matrices, scale)
            figures.colour_bar(grid, cells, f"{what} (log)", _ticks(every.min(), every.max()))
            finished = [(run.suite, run.row) for run in study.runs if run.finished]
            seeds = max(map(finished.count, finished))
            over = "one seed" if seeds == 1 else f"mean of up to {seeds} seeds"
            about = f"{what}, {over}; the same colours in all panels, logarithmic"
            return figures.finish(grid, notes.below(study, self.suites(study), about))

    def _matrices(self, study: Study, suite: str) -> Iterator[_Matrix]:
        runs, titles = study.of(suite), study.stage_titles(suite)
        oracles = {run.seed: np.diagonal(loss_matrix(run)) for run in runs if run.line.method == ORACLE}
        for row, of_row in _by_row(runs).items():
            if self.oracle:
                none = np.full(len(titles), np.nan)
                over = [loss_matrix(run) / oracles.get(run.seed, none) for run in of_row]
                yield _Matrix(row, _mean(over), titles, titles)
            else:
                stages = ["start"] * bool(of_row[0].start) + titles
                one = of_row[0]
                texts = titles[: len(one.domains)] + [probe.title for probe in one.line.probes]
                yield _Matrix(row, _mean([_perplexities(run) for run in of_row]), stages, texts)


@dataclass(frozen=True)
class _Matrix:
    """What one panel shows: `perplexity` (stages, texts) and the titles of its lines and columns."""

    row: str
    perplexity: Floats
    stages: list[str]
    texts: list[str]


@dataclass(frozen=True)
class _Sheet:
    """Where panels stand on a sheet of inches, its origin above on the left.

    All panels share one axis, one mesh of cells: an axis a panel would take three times as long to draw.
    """

    across: int
    lines: int
    panel: tuple[float, float]
    room: figures.Room  # at the bottom for the titles of texts
    upright: bool  # whether titles of texts are too wide to stand side by side

    @classmethod
    def of(cls, matrices: Sequence[_Matrix]) -> _Sheet:
        wide = max(2.0, CELL[0] * max(len(matrix.texts) for matrix in matrices))
        high = CELL[1] * max(len(matrix.stages) for matrix in matrices)
        left = 0.35 + max(figures.text_width(title, figures.SMALL) for one in matrices for title in one.stages)
        longest = max(figures.text_width(title, figures.SMALL) for one in matrices for title in one.texts)
        upright = longest > CELL[0] - 0.03
        top = 0.08 + 0.15 * max(1 + figures.wrapped(one.row, wide).count("\n") for one in matrices)
        between = 0.15 if all(one.stages == matrices[0].stages for one in matrices) else left
        across = max(1, min(len(matrices), int((WIDEST - left + between) // (wide + between))))
        lines = -(-len(matrices) // across)
        labels = 0.1 + (longest if upright else 0.12)
        alike = all(one.texts == matrices[0].texts for one in matrices) and len(matrices) % across == 0
        below = top + (0.08 if alike else labels)
        room = figures.Room(left=left, top=top, between=between, below=below, bottom=labels)
        return cls(across, lines, (wide, high), room, upright)

    @property
    def size(self) -> tuple[float, float]:
        wide, high = self.panel
        return (
            self.across * (wide + self.room.between) - self.room.between,
            self.lines * (high + self.room.below) - self.room.below + self.room.bottom,
        )

    def draw(self, axis: Axes, matrices: Sequence[_Matrix], scale: matplotlib.colors.LogNorm) -> QuadMesh:
        texts, stages = (max(len(getattr(one, name)) for one in matrices) for name in ("texts", "stages"))
        x = _edges(self.across, texts, self.panel[0], self.room.between)
        y = _edges(self.lines, stages, self.panel[1], self.room.below)
        cells = np.full((len(y) - 1, len(x) - 1), np.nan)
        dark = 0.5
        for place, matrix in enumerate(matrices):
            line, column = divmod(place, self.across)
            top, left = line * (stages + 1), column * (texts + 1)
            cells[top : top + len(matrix.stages), left : left + len(matrix.texts)] = matrix.perplexity
            self._label(axis, matrices, place, x[left : left + texts + 1], y[top : top + stages + 1])
            for (stage, text), value in np.ndenumerate(matrix.perplexity):
                if np.isfinite(value):
                    at = (x[left + text : left + text + 2].mean(), y[top + stage : top + stage + 2].mean())
                    colour = "white" if scale(value) > dark else "black"
                    axis.text(*at, _number(value), gid=matrix.row, color=colour, size=NUMBER, ha="center", va="center")
        masked = np.ma.masked_where(~np.isfinite(cells), cells)
        return axis.pcolormesh(x, y, masked, cmap=COLOURS, norm=scale)

    def _label(self, axis: Axes, matrices: Sequence[_Matrix], place: int, x: Floats, y: Floats) -> None:
        """The row's name above a panel; titles of stages and texts where the next panel's are others, or none."""
        matrix, small = matrices[place], figures.SMALL
        name = figures.wrapped(matrix.row, self.panel[0])
        axis.text((x[0] + x[-1]) / 2, y[0] - 0.05, name, ha="center", va="bottom", size=figures.TEXT)
        if place % self.across == 0 or matrix.stages != matrices[place - 1].stages:
            for title, low, high in zip(matrix.stages, y, y[1:], strict=False):
                axis.text(x[0] - 0.05, (low + high) / 2, title, ha="right", va="center", size=small)
            middle = (y[0] + y[-1]) / 2
            axis.text(x[0] - self.room.left + 0.1, middle, "after", rotation=90, va="center", size=figures.TEXT)
        under = matrices[place + self.across] if place + self.across < len(matrices) else None
        if under is None or under.texts != matrix.texts:
            turned = 90 if self.upright else 0
            bottom = y[len(matrix.stages)] + 0.05
            for title, low, high in zip(matrix.texts, x, x[1:], strict=False):
                axis.text((low + high) / 2, bottom, title, ha="center", va="top", rotation=turned, size=small)


def _number(value: float) -> str:
    """Three digits where they fit into a cell."""
    return f"{value:.0f}" if 1000 <= value < 1e5 else f"{value:.3g}" if value < 1000 else figures.short(value)


def _edges(panels: int, cells: int, length: float, gap: float) -> Floats:
    """Where the cells of panels beside each other begin and end."""
    one = np.linspace(0.0, length, cells + 1)
    return np.concatenate([one + place * (length + gap) for place in range(panels)])


def _ticks(low: float, high: float) -> dict[float, str]:
    """Plain numbers on the colour bar: both ends, and 1, 2, 5, 10 ... where these leave room."""
    plain = [m * 10.0**e for e in range(-1, 12) for m in (1, 2, 5)]
    room = (high / low) ** 0.12
    inside = [value for value in plain if low * room < value < high / room]
    return {value: _number(value) for value in (low, *inside[:: -(-len(inside) // 5) or 1], high)}


def _by_row(runs: Sequence[RunRecords]) -> dict[str, list[RunRecords]]:
    found: dict[str, list[RunRecords]] = {}
    for run in runs:
        found.setdefault(run.row, []).append(run)
    return found


def _perplexities(run: RunRecords) -> Floats:
    """The matrix of a run, shape (stages, texts), a line more for a start model; NaN for what is not measured."""
    names = [text.name for text in (*run.domains, *run.line.probes)]
    found = np.full((len(run.domains) + bool(run.start), len(names)), np.nan)
    for place, measured in enumerate([run.start] * bool(run.start) + run.matrix):
        found[place] = [of_text(measured, name) for name in names]
    return found


def _mean(matrices: Sequence[Floats]) -> Floats:
    """The mean of several matrices, over what is measured."""
    found = np.stack(matrices)
    measured_at = ~np.isnan(found)
    totals = np.where(measured_at, found, 0.0).sum(axis=0)
    return np.divide(totals, measured_at.sum(axis=0), out=np.full(totals.shape, np.nan), where=measured_at.any(axis=0))


PICTURE, BESIDE = 0.85, 0.95  # inches: a picture's side, and the numbers beside the last one
COLOURS_OF_HEADS = "cividis"  # of even lightness, for all kinds of colour vision
TICKS = {0.0: "0", 0.1: "10%", 0.25: "25%", 0.5: "50%", 1.0: "100%"}


@dataclass(frozen=True, kw_only=True)
class AttentionFigure(Exhibit):
    """One row of pictures a model, one column a lineage of heads, of the first seed of the row named `row`.

    A picture shows for each query (from top to bottom) the keys that it attends to (from left to right), each picture
    from 0 to its own maximum, on a scale of square roots. Beside it: how much all heads attend as their own ancestor
    does, and as the others of its model do.
    """

    kind: ClassVar[Literal["table", "figure"]] = "figure"
    row: str

    def render(self, study: Study, view: View = "ours") -> dict[str, bytes]:
        found = study.attentions[study.attentions["suite"] == self.suites(study)[0]]
        found = found[found["row"].map(slug) == slug(self.row)]
        found = found[found["seed"] == found["seed"].min()].sort_values("stage")
        with figures.style():
            shown = found[found["heads"].map(len) > 0]
            seed = (
                f"Seed {shown['seed'].iloc[0]} alone: how much another would differ is not known" if len(shown) else ""
            )
            text = below(study, self.suites(study)[:1], seed, rows=list(shown["row"].unique()))
            return _no_heads(found) if shown.empty else _draw_heads(shown, text)


def _no_heads(found: pd.DataFrame) -> dict[str, bytes]:
    grid = figures.panels(1, 1)
    [axis] = grid.flat
    axis.set_axis_off()
    text = f"no attention: {found['reason'].iloc[-1]}" if len(found) else "no attention yet"
    axis.text(0.5, 0.5, figures.wrapped(text, grid.width), ha="center", transform=axis.transAxes)
    return figures.finish(grid)


def _draw_heads(models: pd.DataFrame, text: str) -> dict[str, bytes]:
    rows, columns = len(models), max(models["heads"].map(len))
    room = {"left": 0.65, "right": BESIDE + figures.BAR, "between": 0.06, "below": 0.24, "bottom": 0.3}
    grid = figures.panels(rows, columns, PICTURE, PICTURE, **room)
    for line, (_, model) in zip(grid.axes, models.iterrows(), strict=True):
        for axis, (layer, head), attention in zip(line, model["heads"], model["maps"], strict=False):
            weights = np.array(attention, float)
            shares = np.sqrt(weights / max(weights.max(), 1e-12))
            picture = axis.imshow(shares, cmap=COLOURS_OF_HEADS, vmin=0, vmax=1, interpolation="nearest")
            axis.set_title(f"L{layer + 1} H{head + 1}", fontsize=figures.SMALL, pad=2)
        for axis in line:
            axis.set(xticks=[], yticks=[])
            axis.grid(False)
            axis.spines[:].set_visible(False)
        for axis in line[len(model["heads"]) :]:
            axis.set_axis_off()
        line[0].set_ylabel(f"M{model['stage'] + 1}\nquery ↓")
        if model["own"] == model["own"]:
            _beside(line[-1], 0.5, f"{model['own']:.2f} ({model['others']:.2f})")
    for axis in grid.axes[-1]:
        axis.set_xlabel("key →")
    _beside(grid.axes[0][-1], 0.9, "own ancestor\n(other heads)")
    ticks = {share**0.5: text for share, text in TICKS.items()}
    figures.colour_bar(grid, picture, "Share of maximum\n(square roots)", ticks)
    return figures.finish(grid, text)


def _beside(axis: Axes, height: float, text: str) -> None:
    axis.text(1.08, height, text, transform=axis.transAxes, ha="left", va="center", fontsize=figures.SMALL)
