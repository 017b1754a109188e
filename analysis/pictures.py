"""Pictures of matrices: perplexity by stage and text, and the attention of heads."""

from __future__ import annotations

import math
import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import seaborn
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LogNorm
from matplotlib.patches import Rectangle
from matplotlib.ticker import NullLocator

from analysis import figures
from analysis.figures import CaptionedFigure, FigureExhibit, finish, make_panels
from analysis.study import Study, select_measure
from benchmark.settings.names import make_slug

COLOURS = "cividis"  # perceptually uniform, for all kinds of colour vision
MOST = 6  # rows of a matrix figure at most, so that a column of a paper has room for it
DARK = 0.53  # share of the colour scale above which white text is easier to read than black
CELL = 0.27  # inches of a number in a cell
TITLE = 0.9  # inches: the least width of a panel, so that its title has room
LABELS = 0.9  # inches for labels beside the panels
PANEL = 1.6  # inches: the height of a matrix that shows only colours
SHARES = {0.0: "0", 0.1: "10%", 0.25: "25%", 0.5: "50%", 1.0: "100%"}


@dataclass(frozen=True, kw_only=True)
class MatrixFigure(FigureExhibit):
    """The perplexity of every domain and probe after every stage, mean over seeds.

    Each row has a panel, and all panels share one scale. At most MOST rows are drawn: those named
    in `preferred_rows`, then others in the order in which they get colours. If seeds meet the
    domains in different orders, columns are the domains' places, as lines are. If runs begin with a
    start model, its own perplexities are the first line.
    """

    preferred_rows: tuple[str, ...] = ()

    def _draw(self, study: Study) -> CaptionedFigure:
        rows_of_parts = [(part, self._choose_rows(part)) for part in study.parts]
        suites_with = Counter(row for _, rows in rows_of_parts for row in rows)
        matrices = []
        for part, rows in rows_of_parts:
            for row, matrix in self._make_matrices(part, rows):
                title = row if suites_with[row] == 1 else f"{row} ({part.suite})"
                matrices.append((title, matrix))
        values = []
        for _, matrix in matrices:
            entries = matrix.to_numpy()
            values.append(entries[np.isfinite(entries)])
        numbers = np.concatenate([*values, np.empty(0)])
        if not numbers.size:
            return figures.make_empty_figure("no finished stage yet")
        columns = max(matrix.shape[1] for _, matrix in matrices)
        has_numbers = columns <= figures.FEW
        across, figure, axes = _make_matrix_panels(matrices)
        lowest = numbers.min()
        highest = min(numbers.max(), 10 * lowest)
        scale = LogNorm(lowest, highest)
        flat = [axis for line in axes for axis in line]
        first_index = matrices[0][1].axes[0]
        alike = all(matrix.axes[0].equals(first_index) for _, matrix in matrices)
        bottom = across * (len(axes) - 1)  # the place of the lowest line's first panel
        for place, (axis, (title, matrix)) in enumerate(zip(flat, matrices, strict=False)):
            has_texts = place >= bottom or bool(study.suites[1:])
            has_stages = place % across == 0 or not alike
            _draw_matrix(axis, matrix, scale, has_texts, has_stages)
            letters = int(axis.get_window_extent().width / figure.dpi / figures.LETTER)
            axis.set_title(textwrap.fill(title, letters), pad=3)
        for axis in flat[len(matrices) :]:
            axis.set_axis_off()
        for line in axes:
            line[0].set_ylabel("after")
        if has_numbers:
            figure.set_label(_describe_last_stage(matrices))
        else:
            _add_bar(figure, flat, scale, is_cut=scale.vmax < numbers.max())
        left_out = dict.fromkeys(
            run.row for part, rows in rows_of_parts for run in part.runs if run.row not in rows
        )
        left_out_note = ""
        if left_out:
            names = ", ".join(left_out)
            left_out_note = f"Left out: {names}. The records have the numbers of all rows"
        return finish(
            figure,
            _describe_colours(study),
            left_out_note,
            figures.describe_texts(study, [*suites_with]),
        )

    def _choose_rows(self, part: Study) -> list[str]:
        """The rows of a suite that are drawn, in its order."""
        rows = list(dict.fromkeys(run.row for run in part.runs))
        if len(rows) <= MOST:
            return rows
        slugs = [make_slug(row) for row in self.preferred_rows]
        named = [row for row in rows if make_slug(row) in slugs]
        # rows that train on all text at once come last: they have one line of numbers
        others = [row for row in figures.assign_colours(part) if row not in part.pooled]
        ranked = dict.fromkeys([*named, *others, *rows])
        best_rows = [row for row in ranked if row in rows][:MOST]
        return [row for row in rows if row in best_rows]

    def _make_matrices(
        self, part: Study, rows: Sequence[str]
    ) -> Iterator[tuple[str, pd.DataFrame]]:
        """The numbers in the panel of each of `rows`: a line per stage, a column per text."""
        titles = part.stage_titles
        for row in rows:
            runs = [run for run in part.runs if run.row == row]
            first = runs[0]
            stages = ["start", *titles] if first.start else titles
            probes = [probe.title for probe in first.line.probes]
            texts = titles[: len(first.domains)] + probes
            seeds = []
            for run in runs:
                names = [text.name for text in (*run.domains, *run.line.probes)]
                models = [run.start, *run.matrix] if run.start else run.matrix
                lines = [[select_measure(model, name) for name in names] for model in models]
                matrix = pd.DataFrame(lines, stages[: len(lines)], texts, float)
                seeds.append(matrix.reindex(stages))
            yield row, pd.concat(seeds).groupby(level=0, sort=False).mean()


def _make_matrix_panels(
    matrices: Sequence[tuple[str, pd.DataFrame]],
) -> tuple[int, CaptionedFigure, list[list[Axes]]]:
    """How many panels stand beside each other, the figure, and its panels."""
    count = len(matrices)
    columns = max(matrix.shape[1] for _, matrix in matrices)
    lines = max(matrix.shape[0] for _, matrix in matrices)
    widest = figures.WIDEST - 2 * figures.EDGE
    across = min(count, 2)
    height = PANEL
    if columns <= figures.FEW:
        across = min(count, max(1, int((widest - LABELS) / max(CELL * columns, TITLE))))
        height = 0.2 * (lines + 1)
    figure, axes = make_panels(math.ceil(count / across), across, widest / across, height)
    longest = max(len(text) for _, matrix in matrices for text in matrix.columns)
    figure.set_figheight(figure.get_figheight() + longest * figures.LETTER)
    figure.set_layout_engine("constrained", w_pad=0.02, h_pad=0.02, wspace=0, hspace=0)
    return across, figure, axes


def _add_bar(figure: CaptionedFigure, axes: Sequence[Axes], scale: LogNorm, is_cut: bool) -> None:
    """Add the scale of colours, for cells without numbers."""
    bar = figure.colorbar(
        ScalarMappable(scale, f"{COLOURS}_r"),
        ax=axes,
        label="Perplexity (log)",
        ticks=scale.inverse(np.linspace(0, 1, 4)),
        extend="max" if is_cut else "neither",
        anchor=(0, 1),
        shrink=min(1, 2.5 / figure.get_figheight()),
    )
    bar.ax.yaxis.set_minor_locator(NullLocator())
    bar.ax.yaxis.set_major_formatter(lambda value, _: figures.shorten_number(value))


def _describe_last_stage(matrices: Sequence[tuple[str, pd.DataFrame]]) -> str:
    """The numbers of each panel's last line, for readers who cannot see them."""
    lines = []
    for row, matrix in matrices:
        end = matrix.dropna(how="all").tail(1).to_numpy().flat
        lines.append(f"{row} {', '.join(map(figures.shorten_number, end))}")
    return f"After the last stage, of each text in order. {'. '.join(lines)}."


def _describe_colours(study: Study) -> str:
    """What the colours of the panels stand for."""
    finished_runs = [run for run in study.runs if run.finished]
    counts = Counter((run.suite, run.row) for run in finished_runs).values()
    seeds = " to ".join(map(str, sorted({min(counts), max(counts)})))
    average = "one seed" if seeds == "1" else f"mean of {seeds} seeds"
    return (
        f"Numbers are perplexities, {average}. Lower is better. "
        "Lines: after which stage. Columns: on which text. "
        "A frame marks the stage's own domain. A higher number below a frame is forgetting. "
        "Darker is higher, on one logarithmic scale for all panels, over a factor of ten at most"
    )


def _draw_matrix(
    axis: Axes, matrix: pd.DataFrame, scale: LogNorm, has_texts: bool, has_stages: bool
) -> None:
    """A panel of numbers, shape (stages, texts), a start model's line first.

    The domain that was just learned has a frame. In a long stream only some columns and lines have
    a label.
    """
    has_numbers = matrix.shape[1] <= figures.FEW
    step = figures.find_label_step(matrix.shape[1])
    values = matrix.to_numpy()
    is_finite = np.isfinite(values)
    seaborn.heatmap(
        matrix,
        mask=~is_finite,
        norm=scale,
        vmin=scale.vmin,  # else seaborn looks for the least number, but a panel may have none
        vmax=scale.vmax,
        cmap=f"{COLOURS}_r",
        annot=matrix.map(figures.shorten_number) if has_numbers else None,
        fmt="",
        annot_kws={"fontsize": figures.SMALL},
        cbar=False,
        xticklabels=step if has_texts else False,
        yticklabels=step if has_stages else False,
        ax=axis,
        rasterized=True,  # else viewers show lines between cells
    )
    first_stage_line = int("start" in matrix.index)
    width = 1.2 if has_numbers else 0.4
    lines_of_stages = range(first_stage_line, len(matrix))
    for column, line in zip(range(matrix.shape[1]), lines_of_stages, strict=False):
        if is_finite[line, column]:
            frame = Rectangle((column, line), 1, 1, fill=False, edgecolor="black", linewidth=width)
            axis.add_patch(frame)
    for text, value in zip(axis.texts, values[is_finite], strict=False):
        # seaborn writes in white on the middle of the scale, too
        text.set_color("white" if scale(value) > DARK else "black")
    longest = max(map(len, matrix.columns[::step]))
    is_wide = step > 1 or longest * figures.LETTER > CELL
    axis.tick_params(axis="x", length=0, rotation=90 if is_wide else 0)
    axis.tick_params(axis="y", length=0, rotation=0)
    axis.grid(False)


@dataclass(frozen=True, kw_only=True)
class AttentionFigure(FigureExhibit):
    """Pictures of attention: one column per model, one line per lineage of heads.

    They are of the first seed of the row named `row`. A picture shows for each query (from top to
    bottom) the keys that it attends to (from left to right). Its scale goes from 0 to its own
    maximum, in square roots. Above each model: how similar the attention of all its heads is to
    that of their own ancestors, and of other heads.
    """

    row: str

    def _draw(self, study: Study) -> CaptionedFigure:
        part = study.parts[0]
        lines = part.attentions
        lines = lines[lines["row"].map(make_slug) == make_slug(self.row)]
        lines = lines[lines["seed"] == lines["seed"].min()].sort_values("stage")
        models = lines[lines["heads"].map(len) > 0]
        if models.empty:
            reason = f": {lines['reason'].iloc[-1]}" if len(lines) else " yet"
            return figures.make_empty_figure(f"no attention{reason}")
        side = min(2.0, 6.0 / len(models))
        heads = max(models["heads"].map(len))
        figure, axes = make_panels(heads, len(models), side, side + 0.2)
        figure.set_layout_engine("compressed")  # pictures are square
        columns = list(zip(*axes, strict=True))
        for column, (_, model) in zip(columns, models.iterrows(), strict=True):
            _draw_heads(column, model)
        titles = [column[0].get_title().partition("\n")[0] for column in columns]
        figure.set_label(f"{', '.join(titles)}.")
        for line in axes:
            line[0].set_ylabel("← query")
        axes[-1][0].set_xlabel("key →")
        bar = figure.colorbar(
            ScalarMappable(cmap=COLOURS),
            ax=[axis for line in axes for axis in line],
            label="Share of maximum (square roots)",
            aspect=15,
            fraction=0.05,
        )
        ticks = [share**0.5 for share in SHARES]
        bar.set_ticks(ticks, labels=list(SHARES.values()))
        about = (
            f"Seed {models['seed'].iloc[0]} alone: how much another would differ is not known. "
            "Above each model: how alike heads are to their own ancestor (to other heads)"
        )
        rows = list(models["row"].unique())
        return finish(figure, about, figures.describe_texts(part, rows))


def _draw_heads(column: Sequence[Axes], model: pd.Series) -> None:
    heads = model["heads"]
    for axis, (layer, head), attention in zip(column, heads, model["maps"], strict=False):
        weights = np.array(attention, float)
        highest = max(weights.max(), 1e-12)
        shares = np.sqrt(weights / highest)
        axis.imshow(shares, cmap=COLOURS, vmin=0, vmax=1, interpolation="nearest")
        axis.set_title(f"L{layer + 1} H{head + 1}", fontsize=figures.SMALL, pad=2)
    for axis in column:
        axis.set(xticks=[], yticks=[])
        axis.grid(False)
        axis.spines[:].set_visible(False)
    for axis in column[len(heads) :]:
        axis.set_axis_off()
    likeness = model["own"]
    alike = ""
    if not np.isnan(likeness):
        alike = f": {likeness:.2f} ({model['others']:.2f})"
    top = column[0]
    title = f"M{model['stage'] + 1}{alike}\n{top.get_title()}"
    top.set_title(title, fontsize=figures.SMALL, pad=2)
