"""Curves: AP and AP+ against the budget, scores and ARS against the stage."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis import figures
from analysis.figures import (
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
from analysis.notes import note_leaks
from analysis.study import Study
from benchmark.settings.names import make_slug
from benchmark.settings.units import UNITS


@dataclass(frozen=True, kw_only=True)
class TrendFigure(FigureExhibit):
    """The `metrics` of the rows named in `rows` (all, if none), a line a row, with the range of its
    seeds.

    Rows of panels, each `width` inches wide, are suites. What was measured before the first step of
    a stage, as right after growth, and on the way through the first stage is drawn but does not set
    the scale. Lines without a colour have no band.
    """

    rows: tuple[str, ...] = ()
    metrics: tuple[Metric, ...] = PERPLEXITIES
    width: float = 4.2

    def _draw(self, study: Study) -> Figure:
        parts, shown = study.parts, study.evaluations
        if self.rows:
            shown = shown[shown["row"].map(make_slug).isin(map(make_slug, self.rows))]
        style_of = choose_styles(study, shown["row"].unique())
        labels, text = describe_rows(shown.groupby(["suite", "row", "stage"])["seed"].nunique())
        longest = max(len(title) for part in parts for title in part.stage_titles)
        figure, axes = make_panels(len(parts), len(self.metrics), self.width, 2.6 + 0.05 * longest)
        ends, cut = [], False
        for part, line in zip(parts, axes, strict=True):
            points = shown[shown["suite"] == part.suite]
            unit = UNITS[part.runs[0].line.config["budget"]["unit"]]
            for axis, metric in zip(line, self.metrics, strict=True):
                figures.format_amounts(axis, unit.label)
                axis.set_ylabel(metric.name)
                drawn = points[np.isfinite(points[metric.column])]
                if drawn.empty:
                    write_in_empty_panel(axis, "no evaluation yet")
                    continue
                means = _draw_trend(axis, drawn, metric, style_of)
                _mark_stages(axis, part)
                last = means.groupby(level="row").last()[["charged", "mean"]]
                ends.append(
                    (
                        axis,
                        {
                            row: tuple(end)
                            for row, end in zip(last.index, last.to_numpy(), strict=True)
                        },
                    )
                )
                cut |= bool(means["mean"].max() > axis.get_ylim()[1])
            if len(parts) > 1:
                line[0].set_title(self.choose_heading(part), loc="left")
        figure.draw_without_rendering()  # names need the height of panels
        for axis, at in ends:
            figures.name_ends(axis, at, labels, style_of)
        above = (
            "Cut off: values before the first step of a stage and before the end of the first stage"
            if cut
            else ""
        )
        grey = figures.describe_grey(style_of)
        about = (
            figures.describe_texts(study, study.suites, [*style_of]),
            figures.describe_copies(study),
        )
        return finish(figure, text, above, grey, *about)


def _draw_trend(
    axis: Axes, points: pd.DataFrame, metric: Metric, style_of: Mapping[str, Style]
) -> pd.DataFrame:
    """Draw the means of a metric, which it returns, and its range over seeds; markers are at the
    ends of stages.
    """
    groups = points.groupby(["row_index", "row", "stage", "order"])
    measured = {
        "mean": (metric.column, "mean"),
        "low": (metric.column, "min"),
        "high": (metric.column, "max"),
    }
    kinds = {
        "is_end": ("is_end", "all"),
        "phase": ("phase", "first"),
        "learned": ("learned", "all"),
    }
    means = groups.agg(charged=("charged", "mean"), **measured, **kinds)
    within = means[means["learned"]] if means["learned"].any() else means
    limits = within["low"].min(), within["high"].max()
    for (_, row), line in means.groupby(level=["row_index", "row"]):
        own = style_of[str(row)]
        grey = own["color"] == figures.GREY
        ends = np.flatnonzero(line["is_end"])[::-1]
        ends = ends[:: figures.find_label_step(len(ends))].tolist()
        axis.plot(
            line["charged"],
            line["mean"],
            color=own["color"],
            linewidth=0.5,
            alpha=0.5,
            zorder=2 - grey,
        )
        inside = line["mean"].where(line["mean"].between(*limits))
        # the last marker stands on the panel's edge
        axis.plot(
            line["charged"],
            inside,
            label=f"_{row}",
            markevery=ends,
            zorder=2 - grey,
            clip_on=False,
            **own,
        )
        if not grey:
            steps = line[
                line["phase"] != "start"
            ]  # right after growth seeds lie far apart, and would cover the rest
            between = (steps[column] for column in ("charged", "low", "high"))
            axis.fill_between(*between, color=own["color"], alpha=0.15, linewidth=0)
    scale_y(axis, metric, limits)
    scale = axis.yaxis.get_transform()
    low, high = scale.transform(limits)
    margin = 0.05 * (high - low or 1)
    axis.set_ylim(*scale.inverted().transform([low - margin, high + margin]))
    axis.set_xlim(0 if metric is AP else means["charged"].min(), means["charged"].max())
    return means


def _mark_stages(axis: Axes, part: Study) -> None:
    """Draw where stages end, with the title of each stage's domain above it."""
    ends = part.ends.groupby("stage")["charged"].mean()
    if ends.empty:
        return
    titles = [part.stage_titles[int(stage)] for stage in ends.index.to_numpy()]
    each = figures.find_label_step(len(ends))
    marks = ends.iloc[each - 1 :: each]
    for end in marks:
        axis.axvline(end, color="0.5", linestyle=":", linewidth=0.8, zorder=0)
    for begin, end in zip([0.0, *marks][::2], marks[::2], strict=False):
        axis.axvspan(begin, end, color="0.96", linewidth=0, zorder=-1)
    above = axis.secondary_xaxis("top")
    inches = (
        axis.get_window_extent().width
        / axis.figure.dpi
        / np.ptp(axis.get_xlim())
        * np.diff(ends, prepend=0)
    )
    turned = 90 if max(map(len, titles)) * figures.LETTER > min(inches) else 0
    middles = (np.array([0.0, *ends][:-1]) + ends.to_numpy()) / 2
    above.set_xticks(middles[::each], titles[::each], rotation=turned, fontsize=figures.SMALL)
    above.tick_params(length=0)
    above.spines["top"].set_visible(False)


@dataclass(frozen=True, kw_only=True)
class ScoreFigure(FigureExhibit):
    """Downstream scores after each stage: a panel a domain's task and one for their average, on one
    axis.
    """

    def _draw(self, study: Study) -> Figure:
        part = study.parts[0]
        scores = part.scores[part.scores["headline"]]
        by_seed = (
            scores.groupby(["row_index", "row", "stage", "seed", "domain"])["test"].mean().mul(100)
        )
        labels, text = describe_rows(by_seed.groupby(["row", "stage", "domain"]).size(), "bar")
        wide = by_seed.unstack("domain").reindex(columns=list(part.tasks))
        wide["average"] = wide.mean(axis=1, skipna=False)
        shown, stages = (
            {**part.tasks, "average": "Average"},
            _find_stage_range(by_seed, len(part.runs[0].domains)),
        )
        figure, axes = make_panels(-(-len(shown) // 3), 3, 3.0, 2.2)
        style_of = choose_styles(part, by_seed.index.unique("row"))
        flat = [axis for line in axes for axis in line]
        for axis, (column, title) in zip(flat, shown.items(), strict=False):
            axis.set_title(title)
            axis.sharey(flat[0])
            _draw_by_stage(axis, wide[column].dropna(), labels, style_of, stages, "no score yet")
        for axis in flat[len(shown) :]:
            axis.set_axis_off()
        for line in axes:
            line[0].set_ylabel("Score (%, linear)")
        last = wide["average"].groupby(["row", "stage"]).mean().dropna().groupby("row").tail(1)
        means = ", ".join(
            f"{row} {figures.shorten_number(mean)}" for (row, _), mean in last.items()
        )
        figure.set_label(f"Averages after the last stage: {means}.")
        return finish(figure, text, figures.describe_texts(part, part.suites), *note_leaks(part))


@dataclass(frozen=True, kw_only=True)
class SimilarityFigure(FigureExhibit):
    """ARS after each stage from the second on, a line a row; below it stands why a row has none."""

    def _draw(self, study: Study) -> Figure:
        part = study.parts[0]
        lines = part.similarities
        ars = lines.set_index(["row_index", "row", "stage", "seed"])["ars"].astype(float).dropna()
        figure, [[axis]] = make_panels(1, 1, 5.0, 3.0)
        axis.set_ylabel("ARS (nats, linear)")
        labels, text = describe_rows(ars.groupby(["row", "stage"]).size(), "bar")
        stages = _find_stage_range(ars, len(part.runs[0].domains))
        style_of = choose_styles(part, ars.index.unique("row"))
        _draw_by_stage(axis, ars, {}, style_of, stages, "no similarity yet")
        ends = ars.groupby(["row", "stage"]).mean().groupby(level="row").tail(1)
        figure.draw_without_rendering()  # names need the height of the panel
        figures.name_ends(
            axis, {row: (stage, value) for (row, stage), value in ends.items()}, labels, style_of
        )
        without = lines[~lines["row"].isin(ars.index.get_level_values("row"))].groupby(
            "row", sort=False
        )["reason"]
        reasons = [f"{row}: {reason}" for row, reason in without.last().dropna().items()]
        about = figures.describe_texts(part, part.suites)
        return finish(figure, text, *reasons, figures.describe_grey(style_of), about)


def _find_stage_range(values: pd.Series, count: int) -> range:
    """The stages, of `count`, from the first to the last that has a value; all while none has any."""
    seen = values.index.get_level_values("stage")
    return range(int(seen.min()), int(seen.max()) + 1) if len(seen) else range(count)


def _draw_by_stage(
    axis: Axes,
    values: pd.Series,
    labels: Mapping[str, str],
    style_of: Mapping[str, Style],
    stages: range,
    nothing: str,
) -> None:
    """Means over seeds of values by row_index, row, stage and seed, on an axis of `stages`;
    `nothing`: said if none.

    Rows stand beside each other at a stage, so that bars from the lowest to the highest seed do not
    hide each other.
    """
    labelled = stages[:: figures.find_label_step(len(stages))]
    axis.set_xticks(labelled, [f"M{stage + 1}" for stage in labelled])
    axis.set_xlim(stages.start - 0.5, stages.stop - 0.5)
    if values.empty:
        write_in_empty_panel(axis, nothing)
        return
    lines = list(
        values.groupby(["row_index", "row", "stage"])
        .agg(["mean", "min", "max"])
        .groupby(level=[0, 1])
    )
    for place, ((_, row), line) in enumerate(lines):
        aside = 0.7 * ((place + 0.5) / len(lines) - 0.5)
        x, own = line.index.get_level_values("stage") + aside, style_of[str(row)]
        below = 2 - (own["color"] == figures.GREY)
        axis.vlines(x, line["min"], line["max"], color=own["color"], linewidth=0.8, zorder=below)
        label = labels.get(str(row), f"_{row}")
        axis.plot(x, line["mean"], label=label, zorder=below, **own | {"linewidth": 0.7})
