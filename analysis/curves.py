"""Curves: AP and AP+ against the budget, scores and ARS against the stage."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from analysis import figures
from analysis.figures import (
    CaptionedFigure,
    FigureExhibit,
    Style,
    choose_styles,
    describe_rows,
    finish,
    make_panels,
    scale_y,
    write_in_empty_panel,
)
from analysis.metrics import AP, PERPLEXITIES, Metric
from analysis.study import Study
from benchmark.settings.names import make_slug
from benchmark.settings.units import UNITS


@dataclass(frozen=True, kw_only=True)
class TrendFigure(FigureExhibit):
    """The `metrics` of the rows named in `rows`, a line per row, with the range over its seeds.

    Without `rows`, all rows are drawn. Each suite is a line of panels, each panel `width` inches
    wide. Values before the first step of a stage, such as right after growth, and before the end of
    the first stage are drawn but do not set the scale. Grey lines have no band.
    """

    rows: tuple[str, ...] = ()
    metrics: tuple[Metric, ...] = PERPLEXITIES
    width: float = 4.2

    def _draw(self, study: Study) -> CaptionedFigure:
        parts = study.parts
        evaluations = study.evaluations
        if self.rows:
            slugs = evaluations["row"].map(make_slug)
            evaluations = evaluations[slugs.isin(map(make_slug, self.rows))]
        style_of = choose_styles(study, evaluations["row"].unique())
        seeds = evaluations.groupby(["suite", "row", "stage"])["seed"].nunique()
        labels, text = describe_rows(seeds)
        longest = max(len(title) for part in parts for title in part.stage_titles)
        height = 2.6 + 0.05 * longest
        figure, axes = make_panels(len(parts), len(self.metrics), self.width, height)
        ends = []
        has_starts = False
        is_cut = False
        for part, line in zip(parts, axes, strict=True):
            points = evaluations[evaluations["suite"] == part.suite]
            unit = UNITS[part.runs[0].line.config["budget"]["unit"]]
            for axis, metric in zip(line, self.metrics, strict=True):
                figures.format_amounts(axis, unit.label)
                axis.set_ylabel(metric.name)
                finite = points[np.isfinite(points[metric.column])]
                if finite.empty:
                    write_in_empty_panel(axis, "no evaluation yet")
                    continue
                means = _draw_trend(axis, finite, metric, style_of)
                _mark_stages(axis, part)
                last = means.groupby(level="row").last()
                last_points = zip(last["charged"], last["mean"], strict=True)
                ends.append((axis, dict(zip(last.index, last_points, strict=True))))
                has_starts |= bool((means["phase"] == "start").any())
                is_cut |= bool(means["mean"].max() > axis.get_ylim()[1])
            if len(parts) > 1:
                line[0].set_title(self.choose_heading(part), loc="left")
        figure.draw_without_rendering()  # names need the height of panels
        for axis, points_of_rows in ends:
            figures.name_ends(axis, points_of_rows, labels, style_of)
        starts = "A hollow circle is the value before a stage's first step" if has_starts else ""
        cut = "It is left out where it is above the panel" if is_cut and has_starts else ""
        return finish(
            figure,
            "Lower is better",
            text,
            starts,
            cut,
            figures.describe_grey(style_of),
            figures.describe_texts(study, [*style_of]),
        )


def _draw_trend(
    axis: Axes, points: pd.DataFrame, metric: Metric, style_of: Mapping[str, Style]
) -> pd.DataFrame:
    """Draw a metric's means and ranges over seeds, and return them.

    Markers are at the ends of stages.
    """
    groups = points.groupby(["row_index", "row", "stage", "order"])
    means = groups.agg(
        charged=("charged", "mean"),
        mean=(metric.column, "mean"),
        low=(metric.column, "min"),
        high=(metric.column, "max"),
        is_end=("is_end", "all"),
        phase=("phase", "first"),
        learned=("learned", "all"),
    )
    within = means[means["learned"]] if means["learned"].any() else means
    limits = (within["low"].min(), within["high"].max())
    for (_, row), line in means.groupby(level=["row_index", "row"]):
        _draw_row(axis, str(row), line, limits, style_of[str(row)])
    scale_y(axis, metric, limits)
    scale = axis.yaxis.get_transform()
    low, high = scale.transform(limits)
    margin = 0.05 * (high - low or 1)
    bottom, top = scale.inverted().transform([low - margin, high + margin])
    axis.set_ylim(bottom, top)
    amounts = means["charged"]
    least = 0 if metric is AP else amounts.min()
    axis.set_xlim(least, amounts.max())
    return means


def _draw_row(
    axis: Axes, row: str, means: pd.DataFrame, limits: tuple[float, float], style: Style
) -> None:
    """Draw the means of one row within `limits`, and their ranges over seeds.

    Line and band break at the start of a stage. A hollow circle there is the value before the first
    step, such as right after growth. If only the end of a stage was measured after its first step,
    line and band do not break there.
    """
    colour = style["color"]
    is_grey = colour == figures.GREY
    order = 2 - is_grey
    is_start = means["phase"] == "start"
    starts = means[is_start & means["mean"].between(*limits)]
    if len(starts):  # plotting nothing would distort the panel's layout
        axis.plot(
            starts["charged"],
            starts["mean"],
            "o",
            color=colour,
            markersize=3,
            markerfacecolor="white",
            zorder=order,
            clip_on=False,
        )
    # a start that stays in `line` has no value in `curve`, and so makes the break
    counts_after_start = (~is_start).groupby(level="stage").transform("sum")
    line = means[~is_start | (counts_after_start > 1)]
    charged = line["charged"]
    curve = line[["mean", "low", "high"]].where(line["phase"] != "start")
    ends = np.flatnonzero(line["is_end"])[::-1]  # the last one first, so that it has a marker
    marked = ends[:: figures.find_label_step(len(ends))].tolist()
    # the last marker stands on the panel's edge
    axis.plot(
        charged,
        curve["mean"].where(curve["mean"].between(*limits)),
        label=f"_{row}",
        markevery=marked,
        zorder=order,
        clip_on=False,
        **style,
    )
    if not is_grey:
        # without values right after growth, whose wide range would cover the rest
        axis.fill_between(
            charged, curve["low"], curve["high"], color=colour, alpha=0.15, linewidth=0
        )


def _mark_stages(axis: Axes, part: Study) -> None:
    """Draw where stages end, with the title of each stage's domain above it.

    In a long stream, only some stages have a mark and a title. Every other interval between marks
    is shaded.
    """
    ends = part.ends.groupby("stage")["charged"].mean()
    if ends.empty:
        return
    titles = [part.stage_titles[int(stage)] for stage in ends.index.to_numpy()]
    step = figures.find_label_step(len(ends))
    marks = ends.iloc[step - 1 :: step]
    for end in marks:
        axis.axvline(end, color="0.5", linestyle=":", linewidth=0.8, zorder=0)
    shaded_begins = [0.0, *marks][::2]
    for begin, end in zip(shaded_begins, marks[::2], strict=False):
        axis.axvspan(begin, end, color="0.96", linewidth=0, zorder=-1)
    titles_axis = axis.secondary_xaxis("top")
    width = axis.get_window_extent().width / axis.figure.dpi
    inches_per_unit = width / np.ptp(axis.get_xlim())
    stage_inches = inches_per_unit * np.diff(ends, prepend=0)
    title_inches = max(map(len, titles)) * figures.LETTER
    rotation = 90 if title_inches > min(stage_inches) else 0
    stage_begins = np.array([0.0, *ends][:-1])
    middles = (stage_begins + ends.to_numpy()) / 2
    titles_axis.set_xticks(
        middles[::step], titles[::step], rotation=rotation, fontsize=figures.SMALL
    )
    titles_axis.tick_params(length=0)
    titles_axis.spines["top"].set_visible(False)


@dataclass(frozen=True, kw_only=True)
class ScoreFigure(FigureExhibit):
    """Downstream scores after each stage, a panel per domain's task and one for their average.

    All panels share one y-axis.
    """

    def _draw(self, study: Study) -> CaptionedFigure:
        part = study.parts[0]
        scores = part.scores[part.scores["headline"]]
        groups = scores.groupby(["row_index", "row", "stage", "seed", "domain"])
        by_seed = groups["test"].mean().mul(100)
        seeds = by_seed.groupby(["row", "stage", "domain"]).size()
        labels, text = describe_rows(seeds, "bar")
        wide = by_seed.unstack("domain").reindex(columns=list(part.tasks))
        wide["average"] = wide.mean(axis=1, skipna=False)
        titles = {**part.tasks, "average": "Average"}
        figure, axes = make_panels(-(-len(titles) // 3), 3, 3.0, 2.2)
        style_of = choose_styles(part, by_seed.index.unique("row"))
        flat = [axis for line in axes for axis in line]
        for axis, (column, title) in zip(flat, titles.items(), strict=False):
            axis.set_title(title)
            axis.sharey(flat[0])
            values = wide[column].dropna()
            _draw_by_stage(axis, values, labels, style_of, "no score yet")
        for axis in flat[len(titles) :]:
            axis.set_axis_off()
        for line in axes:
            line[0].set_ylabel("Score (%, linear)")
        averages = wide["average"].groupby(["row", "stage"]).mean().dropna()
        last = averages.groupby("row").tail(1)
        means = []
        for (row, _), mean in last.items():
            means.append(f"{row} {figures.shorten_number(mean)}")
        figure.set_label(f"Averages after the last stage: {', '.join(means)}.")
        return finish(figure, text, figures.describe_texts(part))


@dataclass(frozen=True, kw_only=True)
class SimilarityFigure(FigureExhibit):
    """ARS after each stage from the second on, a line per row, with reasons for rows without it."""

    def _draw(self, study: Study) -> CaptionedFigure:
        part = study.parts[0]
        lines = part.similarities
        ars = lines.set_index(["row_index", "row", "stage", "seed"])["ars"].astype(float).dropna()
        figure, [[axis]] = make_panels(1, 1, 5.0, 3.0)
        axis.set_ylabel("ARS (nats, linear)")
        labels, text = describe_rows(ars.groupby(["row", "stage"]).size(), "bar")
        style_of = choose_styles(part, ars.index.unique("row"))
        _draw_by_stage(axis, ars, {}, style_of, "no similarity yet")
        last = ars.groupby(["row", "stage"]).mean().groupby(level="row").tail(1)
        ends = {row: (stage, value) for (row, stage), value in last.items()}
        figure.draw_without_rendering()  # names need the height of the panel
        figures.name_ends(axis, ends, labels, style_of)
        empty = lines[~lines["row"].isin(ars.index.get_level_values("row"))]
        reasons = empty.groupby("row", sort=False)["reason"].last().dropna()
        return finish(
            figure,
            text,
            *(f"{row}: {reason}" for row, reason in reasons.items()),
            figures.describe_grey(style_of),
            figures.describe_texts(part),
        )


def _draw_by_stage(
    axis: Axes,
    values: pd.Series,
    labels: Mapping[str, str],
    style_of: Mapping[str, Style],
    empty_text: str,
) -> None:
    """Draw the means over seeds of each row, on an axis of stages.

    `values` are indexed by row_index, row, stage and seed. If there are none, `empty_text` is
    written. Bars go from the lowest to the highest seed.
    """
    if values.empty:
        axis.set_xticks([])
        write_in_empty_panel(axis, empty_text)
        return
    axis.xaxis.set_major_locator(MaxNLocator(figures.FEW, integer=True, min_n_ticks=1))
    axis.xaxis.set_major_formatter(lambda stage, _: f"M{stage + 1:.0f}")
    table = values.groupby(["row_index", "row", "stage"]).agg(["mean", "min", "max"])
    for (_, row), line in table.groupby(level=[0, 1]):
        x = line.index.get_level_values("stage")
        style = style_of[str(row)]
        colour = style["color"]
        order = 2 - (colour == figures.GREY)
        axis.vlines(x, line["min"], line["max"], color=colour, linewidth=0.8, zorder=order)
        label = labels.get(str(row), f"_{row}")
        axis.plot(x, line["mean"], label=label, zorder=order, **style | {"linewidth": 0.7})
