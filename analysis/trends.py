"""Curves: AP and AP+ against the charged budget, downstream scores and ARS against the stage."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, cast

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from analysis import figures
from analysis.exhibits import Exhibit, View
from analysis.printed import slug
from analysis.study import Study
from benchmark.settings.units import UNITS

# a plain "+": each character beyond Latin-1 costs the PDF a second font
AXES: dict[str, tuple[str, Literal["log", "symlog"]]] = {"ap": ("AP", "log"), "ap_plus": ("AP+", "symlog")}


@dataclass(frozen=True, kw_only=True)
class TrendFigure(Exhibit):
    """AP and AP+ of the rows named in `rows` (all, if none), a line a row, a band from its lowest to highest seed.

    The paper prints no numbers for its curves, so that every view is ours. Rows of panels are suites.
    """

    kind: ClassVar[Literal["table", "figure"]] = "figure"
    rows: tuple[str, ...] = ()

    def render(self, study: Study, view: View = "ours") -> dict[str, bytes]:
        with figures.style():
            suites = self.suites(study)
            figure, axes = figures.panels(len(suites), len(AXES))
            shown = pd.concat([self._points(study, suite) for suite in suites])
            counts = shown.groupby(["suite", "row", "stage"])["seed"].nunique()
            labels, text = figures.over_seeds(counts)
            for suite, line in zip(suites, axes, strict=True):
                for axis, metric in zip(line, AXES, strict=True):
                    self._draw(axis, study, suite, metric, labels)
                if len(suites) > 1:
                    line[0].set_title(self.heading(study, suite), loc="left", pad=16)
            return figures.finish(figure, axes[0][0], text)

    def _points(self, study: Study, suite: str) -> pd.DataFrame:
        """The evaluations of the rows that are shown."""
        chosen = {slug(row) for row in self.rows}
        points = study.evaluations[study.evaluations["suite"] == suite]
        return points[points["row"].isin([row for row in points["row"].unique() if not chosen or slug(row) in chosen])]

    def _draw(self, axis: Axes, study: Study, suite: str, metric: str, labels: Mapping[str, str]) -> None:
        name, scale = AXES[metric]
        points = self._points(study, suite)
        points = points[np.isfinite(points[metric])]
        axis.set_ylabel(name)
        axis.set_xlabel(UNITS[study.of(suite)[0].line["config"]["budget"]["unit"]].label)
        if points.empty:
            axis.text(0.5, 0.5, "no evaluation yet", ha="center", transform=axis.transAxes)
            return
        keys = ["row_index", "row", "stage", "order"]
        means = (
            points.groupby(keys)[["charged", metric]]
            .mean()
            .assign(low=points.groupby(keys)[metric].min(), high=points.groupby(keys)[metric].max())
        )
        for (index, row), line in means.groupby(level=["row_index", "row"]):
            axis.plot(line["charged"], line[metric], label=labels[str(row)], **figures.line_style(index))
            figures.band(axis, line["charged"], line["low"], line["high"], index)
        figures.scales(axis, scale)
        _stage_boundaries(axis, study, suite)


def _stage_boundaries(axis: Axes, study: Study, suite: str) -> None:
    """A dotted line where a stage ends, and each stage's domain above it."""
    titles = study.stage_titles(suite)
    ends = study.ends[study.ends["suite"] == suite].groupby("stage")["charged"].mean()
    start = 0.0
    for stage, end in ends.items():
        axis.axvline(end, color="0.5", linestyle=":", linewidth=0.8, zorder=0)
        middle = ((start + end) / 2, 1.01)
        axis.annotate(titles[stage], middle, xycoords=("data", "axes fraction"), ha="center", fontsize="small")
        start = end


@dataclass(frozen=True, kw_only=True)
class ScoreFigure(Exhibit):
    """Downstream scores after each stage: a panel a domain's task and one for their average, a line a row."""

    kind: ClassVar[Literal["table", "figure"]] = "figure"

    def render(self, study: Study, view: View = "ours") -> dict[str, bytes]:
        suite = self.suites(study)[0]
        titles = {domain["name"]: domain["title"] for domain in study.of(suite)[0].domains}
        scores = study.scores[(study.scores["suite"] == suite) & study.scores["headline"]]
        by_seed = scores.groupby(["row_index", "row", "stage", "seed", "domain"])["test"].mean().mul(100)
        labels, text = figures.over_seeds(by_seed.groupby(["row", "stage", "domain"]).size())
        wide = by_seed.unstack("domain").reindex(columns=list(titles))
        wide["average"] = wide.mean(axis=1, skipna=False)
        with figures.style():
            figure, axes = figures.panels(-(-(len(titles) + 1) // 3), 3, width=2.6, height=2.2)
            flat = [axis for line in axes for axis in line]
            for axis, (column, title) in zip(flat, [*titles.items(), ("average", "Average")], strict=False):
                axis.set_title(title)
                _draw_by_stage(axis, wide[column].dropna(), labels, len(titles), "no score yet")
            for axis in flat[len(titles) + 1 :]:
                axis.set_axis_off()
            for line in axes:
                line[0].set_ylabel("Score (%)")
            return figures.finish(figure, flat[0], text)


@dataclass(frozen=True, kw_only=True)
class SimilarityFigure(Exhibit):
    """ARS after each stage from the second on, a line a row; the legend says why a row has none."""

    kind: ClassVar[Literal["table", "figure"]] = "figure"

    def render(self, study: Study, view: View = "ours") -> dict[str, bytes]:
        suite = self.suites(study)[0]
        found = study.similarities[study.similarities["suite"] == suite]
        ars = found.set_index(["row_index", "row", "stage", "seed"])["ars"].astype(float).dropna()
        with figures.style():
            figure, [[axis]] = figures.panels(1, 1, width=4.6, height=2.8)
            axis.set_ylabel("ARS (nats)")
            labels, text = figures.over_seeds(ars.groupby(["row", "stage"]).size())
            _draw_by_stage(axis, ars, labels, len(study.of(suite)[0].domains), "no similarity yet")
            axis.set_xlim(left=0.75)
            without = found[~found["row"].isin(ars.index.get_level_values("row"))]
            for row, reason in without.groupby("row", sort=False)["reason"].last().dropna().items():
                axis.plot([], [], linestyle="", label=f"{row}: {reason}")
            return figures.finish(figure, axis, text)


def _draw_by_stage(axis: Axes, values: pd.Series, labels: Mapping[str, str], count: int, nothing: str) -> None:
    """Means over seeds of values by row_index, row, stage and seed, of `count` stages; `nothing`: what to say then."""
    axis.set_xticks(range(count), [f"M{i + 1}" for i in range(count)])
    if values.empty:
        axis.text(0.5, 0.5, nothing, ha="center", transform=axis.transAxes)
        return
    stages = values.groupby(["row_index", "row", "stage"]).agg(["mean", "min", "max"])
    for key, line in stages.groupby(level=["row_index", "row"]):
        index, row = cast(tuple[int, str], key)
        x = line.index.get_level_values("stage")
        axis.plot(x, line["mean"], label=labels[row], **figures.line_style(index))
        figures.band(axis, x, line["min"], line["max"], index)
