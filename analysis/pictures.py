"""Pictures of matrices: perplexity by stage and text, and the attention of heads and of what they
came from.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import NullLocator
from seaborn.utils import relative_luminance

from analysis import figures
from analysis.figures import FigureExhibit, finish, make_panels
from analysis.study import Study, select_measure
from benchmark.settings.names import make_slug

COLOURS = "cividis"  # of even lightness, for all kinds of colour vision
WIDEST = 11.0  # inches of panels beside each other
CELL = 0.37  # inches that a cell with a number is wide
PANEL = 3.4  # inches of a side of a matrix that shows colours alone
SHARES = {0.0: "0", 0.1: "10%", 0.25: "25%", 0.5: "50%", 1.0: "100%"}


@dataclass(frozen=True, kw_only=True)
class MatrixFigure(FigureExhibit):
    """The perplexity of every domain and probe after every stage, mean over seeds; a panel a row,
    one scale for all.

    Where seeds meet the domains in different orders columns are the domains' places, as lines are.
    Where runs begin with a start model its own perplexities are the first line.
    """

    def _draw(self, study: Study) -> Figure:
        matrices = [matrix for part in study.parts for matrix in self._make_matrices(part)]
        values = [matrix.to_numpy()[np.isfinite(matrix.to_numpy())] for _, matrix in matrices]
        every = np.concatenate([*values, np.empty(0)])
        if not every.size:
            return figures.make_empty_figure("no finished stage yet")
        columns = max(matrix.shape[1] for _, matrix in matrices)
        width = height = PANEL
        if columns <= figures.FEW:
            width = 0.2 + CELL * columns
            height = 0.3 + 0.22 * max(matrix.shape[0] for _, matrix in matrices)
        most = min(len(matrices), max(1, int(WIDEST // width)))
        across = min(
            range(most, most // 2, -1), key=lambda count: -len(matrices) % count
        )  # fewest empty places
        down = -(-len(matrices) // across)
        figure, axes = make_panels(down, across, width, height)
        flat, scale = (
            [axis for line in axes for axis in line],
            LogNorm(every.min(), min(every.max(), 10 * every.min())),
        )
        figure.set_layout_engine("constrained", w_pad=0.02, h_pad=0.02, wspace=0, hspace=0)
        alike = all(matrix.axes[0].equals(matrices[0][1].axes[0]) for _, matrix in matrices)
        each = figures.find_label_step(columns)
        for place, (axis, (row, matrix)) in enumerate(zip(flat, matrices, strict=False)):
            _draw_matrix(axis, matrix, scale)
            axis.set_title(row, pad=3)
            lowest, leftmost = (
                place // across == down - 1 or study.suites[1:],
                place % across == 0 or not alike,
            )
            texts, stages = matrix.columns[::each], matrix.index[::each]
            axis.set_xticks(range(0, matrix.shape[1], each), texts if lowest else [""] * len(texts))
            axis.set_yticks(
                range(0, matrix.shape[0], each), stages if leftmost else [""] * len(stages)
            )
            is_wide = each > 1 or max(map(len, texts)) * figures.LETTER > CELL
            axis.tick_params(axis="x", rotation=90 if is_wide else 0)
        for axis in flat[len(matrices) :]:
            axis.set_axis_off()
        for line in axes:
            line[0].set_ylabel("after")
        bar = figure.colorbar(
            ScalarMappable(scale, f"{COLOURS}_r"),
            ax=flat,
            label="Perplexity (log)",
            ticks=np.geomspace(every.min(), min(every.max(), 10 * every.min()), 4),
            extend="max" if scale.vmax < every.max() else "neither",
            anchor=(0, 1),
            shrink=min(1, 2.5 / figure.get_figheight()),
        )
        bar.ax.yaxis.set_minor_locator(NullLocator())
        bar.ax.yaxis.set_major_formatter(lambda value, _: figures.shorten_number(value))
        ends = ((row, matrix.dropna(how="all").tail(1).to_numpy().flat) for row, matrix in matrices)
        lines = (f"{row} {', '.join(map(figures.shorten_number, end))}" for row, end in ends)
        if columns <= figures.FEW:
            figure.set_label(f"After the last stage, of each text in order: {'; '.join(lines)}.")
        counts = Counter((run.suite, run.row) for run in study.runs if run.finished).values()
        seeds = " to ".join(map(str, sorted({min(counts), max(counts)})))
        over = "one seed" if seeds == "1" else f"mean of {seeds} seeds"
        about = f"Perplexity, {over}; the same colours in all panels, logarithmic, over a factor of ten at most"
        return finish(
            figure,
            about,
            figures.describe_texts(study, study.suites),
            figures.describe_copies(study),
        )

    def _make_matrices(self, part: Study) -> Iterator[tuple[str, pd.DataFrame]]:
        """The numbers that a panel shows of each row: a line a stage, a column a text."""
        runs, titles = part.runs, part.stage_titles
        for row in dict.fromkeys(run.row for run in runs):
            of_row = [run for run in runs if run.row == row]
            stages = ["start", *titles] if of_row[0].start else titles
            texts = titles[: len(of_row[0].domains)] + [
                probe.title for probe in of_row[0].line.probes
            ]
            seeds = []
            for run in of_row:
                names = [text.name for text in (*run.domains, *run.line.probes)]
                measured = [run.start, *run.matrix] if run.start else run.matrix
                lines = [[select_measure(each, name) for name in names] for each in measured]
                seeds.append(
                    pd.DataFrame(lines, stages[: len(lines)], texts, float).reindex(stages)
                )
            yield row, pd.concat(seeds).groupby(level=0, sort=False).mean()


def _draw_matrix(axis: Axes, matrix: pd.DataFrame, scale: LogNorm) -> None:
    """A panel of numbers, shape (stages, texts), a start model's line first; what was just trained
    on has a frame.
    """
    values, few = matrix.to_numpy(), matrix.shape[1] <= figures.FEW
    colours = colormaps[f"{COLOURS}_r"]
    axis.imshow(
        np.where(np.isfinite(values), values, np.nan), cmap=colours, norm=scale, aspect="auto"
    )
    first = len(matrix) - len(matrix.index.drop("start", errors="ignore"))
    for (line, column), value in np.ndenumerate(values):
        if not np.isfinite(value):
            continue
        if few:
            dark = relative_luminance(colours(scale(value))) <= 0.18
            style: figures.Style = {
                "ha": "center",
                "va": "center",
                "fontsize": 6,
                "color": "white" if dark else "black",
            }
            axis.text(column, line, figures.shorten_number(value), **style)
        if line == first + column:
            wide = 1.2 if few else 0.4
            corner = (column - 0.5, line - 0.5)
            axis.add_patch(Rectangle(corner, 1, 1, fill=False, edgecolor="black", linewidth=wide))
    axis.tick_params(length=0)
    axis.grid(False)
    axis.spines[:].set_visible(False)


@dataclass(frozen=True, kw_only=True)
class AttentionFigure(FigureExhibit):
    """One column of pictures a model, one row a lineage of heads, of the first seed of the row
    named `row`.

    A picture shows for each query (from top to bottom) the keys that it attends to (from left to
    right), each picture from 0 to its own maximum, on a scale of square roots. Above it: how much
    all heads attend as their own ancestor does, and as the others of its model do.
    """

    row: str

    def _draw(self, study: Study) -> Figure:
        part = study.parts[0]
        lines = part.attentions
        lines = lines[lines["row"].map(make_slug) == make_slug(self.row)]
        lines = lines[lines["seed"] == lines["seed"].min()].sort_values("stage")
        shown = lines[lines["heads"].map(len) > 0]
        if shown.empty:
            return figures.make_empty_figure(
                f"no attention: {lines['reason'].iloc[-1]}" if len(lines) else "no attention yet"
            )
        side = min(2.0, 6.0 / len(shown))
        figure, axes = make_panels(max(shown["heads"].map(len)), len(shown), side, side + 0.2)
        figure.set_layout_engine("compressed")  # pictures are square
        for column, (_, model) in zip(zip(*axes, strict=True), shown.iterrows(), strict=True):
            _draw_heads(column, model)
        titles = (column[0].get_title().partition("\n")[0] for column in zip(*axes, strict=True))
        figure.set_label(f"{', '.join(titles)}.")
        for line in axes:
            line[0].set_ylabel("← query")
        axes[-1][0].set_xlabel("key →")
        scale = ScalarMappable(cmap=COLOURS)
        flat = [axis for line in axes for axis in line]
        bar = figure.colorbar(
            scale, ax=flat, label="Share of maximum (square roots)", aspect=15, fraction=0.05
        )
        bar.set_ticks([share**0.5 for share in SHARES], labels=list(SHARES.values()))
        about = (
            f"Seed {shown['seed'].iloc[0]} alone: how much another would differ is not known. "
            "Above each model: how "
            "alike heads are to their own ancestor (to other heads)"
        )
        return finish(
            figure, about, figures.describe_texts(part, part.suites, list(shown["row"].unique()))
        )


def _draw_heads(column: Sequence[Axes], model: pd.Series) -> None:
    for axis, (layer, head), attention in zip(column, model["heads"], model["maps"], strict=False):
        weights = np.array(attention, float)
        shares = np.sqrt(weights / max(weights.max(), 1e-12))
        axis.imshow(shares, cmap=COLOURS, vmin=0, vmax=1, interpolation="nearest")
        axis.set_title(f"L{layer + 1} H{head + 1}", fontsize=figures.SMALL, pad=2)
    for axis in column:
        axis.set(xticks=[], yticks=[])
        axis.grid(False)
        axis.spines[:].set_visible(False)
    for axis in column[len(model["heads"]) :]:
        axis.set_axis_off()
    alike = f": {model['own']:.2f} ({model['others']:.2f})" if model["own"] == model["own"] else ""
    column[0].set_title(
        f"M{model['stage'] + 1}{alike}\n{column[0].get_title()}", fontsize=figures.SMALL, pad=2
    )
