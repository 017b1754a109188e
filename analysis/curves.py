"""Curves: AP and AP+ against the charged budget, downstream scores and ARS against the stage."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from analysis import figures, metrics
from analysis.exhibits import Exhibit, View
from analysis.figures import Style, styles
from analysis.notes import TOLERANCE, below
from analysis.study import Study
from benchmark.settings.names import slug
from benchmark.settings.units import UNITS, recorded

AXES: dict[str, tuple[str, Literal["log", "symlog"]]] = {"ap": ("AP", "log"), "ap_plus": ("AP⁺", "symlog")}
FEW = 8  # rows whose bands do not hide each other


@dataclass(frozen=True, kw_only=True)
class TrendFigure(Exhibit):
    """AP and AP+ of the rows named in `rows` (all, if none), a line a row, with the range of its seeds.

    The paper prints no numbers for its curves, so that every view is ours. Rows of panels are suites.
    """

    kind: ClassVar[Literal["table", "figure"]] = "figure"
    rows: tuple[str, ...] = ()

    def render(self, study: Study, view: View = "ours") -> dict[str, bytes]:
        with figures.style():
            suites = self.suites(study)
            shown = pd.concat([self._points(study, suite) for suite in suites])
            count, style_of = shown["row"].nunique(), styles(study.runs)
            boundaries = {suite: _Boundaries.of(study, suite) for suite in suites}
            head = max(one.height for one in boundaries.values()) + 0.25 * (len(suites) > 1)
            grid = figures.panels(
                len(suites),
                len(AXES),
                max(one.width for one in boundaries.values()),
                max(1.8, figures.room_for_values(count)),
                between=1.3,
                right=0.7,
                top=head + 0.1,
                below=0.5 + head,
            )
            spread = "band" if count <= FEW else "bar at the end of a stage"
            counts = shown.groupby(["suite", "row", "stage"])["seed"].nunique()
            labels, text = figures.over_seeds(counts, spread)
            for suite, line in zip(suites, grid.axes, strict=True):
                for axis, metric in zip(line, AXES, strict=True):
                    unit = UNITS[study.of(suite)[0].line.config["budget"]["unit"]]
                    axis.set_xlabel(figures.named(unit.label, "linear"))
                    points = self._points(study, suite)
                    if _draw(axis, points[np.isfinite(points[metric])], metric, labels, style_of, count, grid.height):
                        boundaries[suite].draw(axis)
                if len(suites) > 1:
                    line[0].set_title(self.heading(study, suite), loc="left", pad=72 * boundaries[suite].height + 4)
            return figures.finish(grid, below(study, suites, text, rows=list(shown["row"].unique())))

    def _points(self, study: Study, suite: str) -> pd.DataFrame:
        """The evaluations of the rows that are shown."""
        chosen = {slug(row) for row in self.rows}
        points = study.evaluations[study.evaluations["suite"] == suite]
        return points[points["row"].isin([row for row in points["row"].unique() if not chosen or slug(row) in chosen])]


def _draw(
    axis: Axes,
    points: pd.DataFrame,
    metric: str,
    labels: Mapping[str, str],
    style_of: Mapping[str, Style],
    rows: int,
    height: float,
) -> bool:
    """Draw the means of a metric, and its range over seeds; false where there are no points."""
    name, scale = AXES[metric]
    axis.set_ylabel(name)
    if points.empty:
        axis.text(0.5, 0.5, "no evaluation yet", ha="center", transform=axis.transAxes)
        return False
    groups = points.groupby(["row_index", "row", "stage", "order"])
    means = groups[["charged", metric]].mean()
    means = means.assign(low=groups[metric].min(), high=groups[metric].max(), is_end=groups["is_end"].all())
    ends = []
    for (_, row), line in means.groupby(level=["row_index", "row"]):
        own = style_of[str(row)]
        axis.plot(line["charged"], line[metric], label=labels[str(row)], **own)
        if rows <= FEW:
            axis.fill_between(line["charged"], line["low"], line["high"], color=own["color"], alpha=0.15, linewidth=0)
        else:
            of_ends = line[line["is_end"]]
            axis.vlines(of_ends["charged"], of_ends["low"], of_ends["high"], color=own["color"], linewidth=0.8)
        ends.append((line[metric].iloc[-1], figures.short(line[metric].iloc[-1]), own))
    low, high = means["low"].min(), means["high"].max()
    scaled = figures.scale_of(scale, low, high)
    axis.set_ylabel(figures.named(name, scaled))
    figures.scale_y(axis, scaled, low, high)
    figures.amounts(axis, 0, means["charged"].max())
    figures.end_values(axis, height, ends)
    return True


@dataclass(frozen=True)
class _Boundaries:
    """Where stages end, and the title of each stage's domain; upright above the panel where it is too wide."""

    titles: list[str]
    ends: pd.Series  # by stage
    upright: bool
    width: float  # of a panel in which titles stand side by side, in inches
    height: float  # of the titles above it

    @classmethod
    def of(cls, study: Study, suite: str, width: float = 2.75) -> _Boundaries:
        titles = study.stage_titles(suite)
        ends = study.ends[study.ends["suite"] == suite].groupby("stage")["charged"].mean()
        if ends.empty:
            return cls(titles, ends, False, width, 0.15)
        shares = np.diff([0.0, *ends]) / ends.iloc[-1]
        widths = [figures.text_width(titles[int(stage)], figures.SMALL) for stage in ends.index.to_numpy()]
        upright = any(text + 0.03 > share * width for text, share in zip(widths, shares, strict=True))
        needed = 1.5 * figures.SMALL / 72 / max(min(shares), 0.01) if upright else width
        return cls(titles, ends, upright, max(width, min(needed, 8.0)), max(widths) + 0.05 if upright else 0.15)

    def draw(self, axis: Axes) -> None:
        start = 0.0
        for stage, end in zip(self.ends.index.to_numpy(), self.ends, strict=True):
            axis.axvline(end, color="0.5", linestyle=":", linewidth=0.8, zorder=0)
            axis.annotate(
                self.titles[int(stage)],
                ((start + end) / 2, 1.01),
                xycoords=("data", "axes fraction"),
                ha="center",
                va="bottom",
                rotation=90 if self.upright else 0,
                fontsize=figures.SMALL,
            )
            start = end


@dataclass(frozen=True, kw_only=True)
class ScoreFigure(Exhibit):
    """Downstream scores after each stage: a panel a domain's task and one for their average, on one axis."""

    kind: ClassVar[Literal["table", "figure"]] = "figure"

    def render(self, study: Study, view: View = "ours") -> dict[str, bytes]:
        suite = self.suites(study)[0]
        titles = {domain.name: domain.title for domain in study.of(suite)[0].domains}
        scores = study.scores[(study.scores["suite"] == suite) & study.scores["headline"]]
        by_seed = scores.groupby(["row_index", "row", "stage", "seed", "domain"])["test"].mean().mul(100)
        labels, text = figures.over_seeds(by_seed.groupby(["row", "stage", "domain"]).size(), "bar")
        wide = by_seed.unstack("domain").reindex(columns=list(titles))
        wide["average"] = wide.mean(axis=1, skipna=False)
        with figures.style():
            rows = wide.index.get_level_values("row").nunique()
            across, width, style_of = 3 if rows <= FEW else 2, 1.9 if rows <= FEW else 3.2, styles(study.runs)
            room = {"between": 0.7, "right": 0.6}  # for the values at the edge of a panel
            high = max(1.8, figures.room_for_values(rows))
            grid = figures.panels(-(-(len(titles) + 1) // across), across, width, high, **room)
            stages, lowest, highest = _stages(by_seed, len(titles)), by_seed.min(), by_seed.max()
            for axis, (column, title) in zip(grid.flat, [*titles.items(), ("average", "Average")], strict=False):
                axis.set_title(figures.wrapped(title, grid.width))
                values = wide[column].dropna()
                ends = _draw_by_stage(axis, values, labels, style_of, stages, grid.width, "no score yet", digits=1)
                if lowest < highest:
                    figures.scale_y(axis, "linear", lowest, highest)
                figures.end_values(axis, grid.height, ends)
                first = axis in [line[0] for line in grid.axes]
                axis.tick_params(axis="y", left=first, labelleft=first)
            for axis in grid.flat[len(titles) + 1 :]:
                axis.set_axis_off()
            for line in grid.axes:
                line[0].set_ylabel("Score (%, linear)")
            return figures.finish(grid, below(study, [suite], text))


@dataclass(frozen=True, kw_only=True)
class SimilarityFigure(Exhibit):
    """ARS after each stage from the second on, a line a row; the legend says why a row has none."""

    kind: ClassVar[Literal["table", "figure"]] = "figure"

    def render(self, study: Study, view: View = "ours") -> dict[str, bytes]:
        suite = self.suites(study)[0]
        found = study.similarities[study.similarities["suite"] == suite]
        ars = found.set_index(["row_index", "row", "stage", "seed"])["ars"].astype(float).dropna()
        with figures.style():
            rows = ars.groupby(["row_index", "row"]).ngroups
            grid = figures.panels(1, 1, 4.2, max(2.0, figures.room_for_values(rows)), right=0.7)
            [axis] = grid.flat
            axis.set_ylabel("ARS (nats, linear)")
            labels, text = figures.over_seeds(ars.groupby(["row", "stage"]).size(), "bar")
            stages, style_of = _stages(ars, len(study.of(suite)[0].domains)), styles(study.runs)
            ends = _draw_by_stage(axis, ars, labels, style_of, stages, grid.width, "no similarity yet")
            if len(ars):
                figures.scale_y(axis, "linear", ars.min(), ars.max())
                figures.end_values(axis, grid.height, ends)
            without = found[~found["row"].isin(ars.index.get_level_values("row"))]
            for row, reason in without.groupby("row", sort=False)["reason"].last().dropna().items():
                axis.plot([], [], linestyle="", label=f"{row}: {reason}")
            return figures.finish(grid, below(study, [suite], text))


def _stages(values: pd.Series, count: int) -> range:
    """The stages, of `count`, from the first to the last that has a value; all while none has any."""
    seen = values.index.get_level_values("stage")
    return range(int(seen.min()), int(seen.max()) + 1) if len(seen) else range(count)


def _draw_by_stage(
    axis: Axes,
    values: pd.Series,
    labels: Mapping[str, str],
    style_of: Mapping[str, Style],
    stages: range,
    width: float,
    nothing: str,
    digits: int = 2,
) -> list[tuple[float, str, Style]]:
    """Means over seeds of values by row_index, row, stage and seed, on an axis of `stages`; `nothing`: said if none.

    Rows stand beside each other at a stage, so that bars from the lowest to the highest seed do not hide each other.
    Returns what stands at the end of each line, in the `digits` of tables, for `figures.end_values`.
    """
    label = figures.text_width(f"M{stages.stop}", figures.SMALL) + 0.05
    each = -(-int(1000 * len(stages) * label) // int(1000 * width))
    axis.set_xticks(stages[::each], [f"M{i + 1}" for i in stages[::each]])
    axis.set_xlim(stages.start - 0.5, stages.stop - 0.5)
    if values.empty:
        axis.text(0.5, 0.5, nothing, ha="center", transform=axis.transAxes)
        return []
    means = values.groupby(["row_index", "row", "stage"]).agg(["mean", "min", "max"])
    lines, ends = list(means.groupby(level=["row_index", "row"])), []
    for place, ((_, row), line) in enumerate(lines):
        x = line.index.get_level_values("stage") + 0.7 * ((place + 0.5) / len(lines) - 0.5)
        own = style_of[str(row)]
        axis.vlines(x, line["min"], line["max"], color=own["color"], linewidth=0.8)
        axis.plot(x, line["mean"], label=labels[str(row)], **own | {"linewidth": 0.7})
        ends.append((line["mean"].iloc[-1], figures.short(line["mean"].iloc[-1], digits), own))
    return ends


@dataclass(frozen=True, kw_only=True)
class ProfileFigure(Exhibit):
    """Performance profiles: on what share of stages is a row's AP within a factor of the best.

    A row is judged on the stages of those suites that have it.
    """

    kind: ClassVar[Literal["table", "figure"]] = "figure"

    def render(self, study: Study, view: View = "ours") -> dict[str, bytes]:
        later = study.ends[study.ends["stage"] > 0]
        costs = later.groupby(["suite", "stage", "row"], sort=False)["ap"].mean().unstack("row")
        costs = costs.reindex(columns=list(dict.fromkeys(run.row for run in study.runs)))
        of_suites = {(run.suite, run.row) for run in study.runs}
        has = [[(suite, row) in of_suites for row in costs] for suite in costs.index.get_level_values("suite")]
        style_of = styles(study.runs)
        with figures.style():
            grid = figures.panels(1, 1, 4.4, max(2.0, figures.room_for_values(costs.shape[1])), right=0.7)
            [axis] = grid.flat
            counts = later.groupby(["suite", "stage", "row"])["seed"].nunique()
            labels, text = figures.over_seeds(counts, spread="")
            axis.set_xlabel("AP, as a multiple of the best row's (linear)")
            axis.set_ylabel("Share of stages (linear)")
            if costs.empty:
                axis.text(0.5, 0.5, "no finished stage yet", ha="center", transform=axis.transAxes)
                return figures.finish(grid)
            widest = float(np.nanmax(costs.div(costs.min(axis=1), axis=0)))
            ratios = np.linspace(1, min(max(widest, 1.05) * 1.02, 5), 200)
            shares = dict(zip(costs, metrics.performance_profile(costs, ratios, has), strict=True))
            rows = [row for row in costs if row in labels]  # one without a finished stage is no line
            for row in rows:
                drawn = style_of[row] | {"markevery": (5, 25)}
                axis.plot(ratios, shares[row], label=labels[row], drawstyle="steps-post", **drawn)
            axis.set_xlim(ratios[0], ratios[-1])
            figures.scale_y(axis, "linear", 0, 1)
            ends = [(shares[row][-1], f"{shares[row][-1]:.0%}", style_of[row]) for row in rows if shares[row][-1] < 1]
            figures.end_values(axis, grid.height, ends)
            own = [row for row in rows if len({suite for suite, one in of_suites if one == row}) < len(study.suites)]
            where = f"; of suites that have the row: {', '.join(own)}" if own else ""
            return figures.finish(grid, below(study, study.suites, f"AP: {text[0].lower()}{text[1:]}{where}"))


@dataclass(frozen=True, kw_only=True)
class ForgettingCostFigure(Exhibit):
    """AP+ after the last stage against what a run spent, a point a row with the range of its seeds.

    A panel a unit that was recorded for every row and in which rows differ; a suite's own budget they all spend alike.
    Rows of panels are suites. A line goes along the Pareto front of the means.
    """

    kind: ClassVar[Literal["table", "figure"]] = "figure"

    def render(self, study: Study, view: View = "ours") -> dict[str, bytes]:
        suites = self.suites(study)
        ends = {suite: ends_of(study, suite) for suite in suites}
        units = {suite: units_apart(ends[suite], study, suite) for suite in suites}
        style_of = styles(study.runs)
        with figures.style():
            heading = 0.2 * (len(suites) > 1)
            room = {"between": 0.55, "top": 0.2 + heading, "below": 0.6 + heading}
            grid = figures.panels(len(suites), max(map(len, units.values())), 3.0, 2.4, **room)
            every = pd.concat(ends.values())
            labels, text = figures.over_seeds(every.groupby(["suite", "row"]).size(), "bars")
            for suite, line in zip(suites, grid.axes, strict=True):
                for axis, unit in zip(line, units[suite], strict=False):
                    _draw_costs(axis, ends[suite], unit, labels, style_of)
                for axis in line[len(units[suite]) :]:
                    axis.set_visible(False)
                if len(suites) > 1:
                    line[0].set_title(self.heading(study, suite), loc="left")
            front = "The grey line is the Pareto front: no row is better in both" if len(every) else ""
            return figures.finish(grid, below(study, suites, text, front))


def ends_of(study: Study, suite: str) -> pd.DataFrame:
    """The last evaluation of each run of a suite that finished, where there is any AP+."""
    last = len(study.of(suite)[0].domains) - 1
    ends = study.ends[(study.ends["suite"] == suite) & (study.ends["stage"] == last)]
    return ends[np.isfinite(ends["ap_plus"])]


def units_apart(ends: pd.DataFrame, study: Study, suite: str) -> list[str]:
    """The units to draw: the budget's own where rows differ in no other."""
    means = ends.groupby("row")[recorded()].mean()
    apart = [unit for unit in recorded() if means[unit].max() > (1 + TOLERANCE) * means[unit].min()]
    own = study.of(suite)[0].line.config["budget"]["unit"]
    return [unit for unit in apart if means[unit].notna().all()] or [own if own in recorded() else "seconds"]


def _draw_costs(axis: Axes, ends: pd.DataFrame, unit: str, labels: dict[str, str], style_of: dict[str, Style]) -> None:
    axis.set_xlabel(f"{UNITS[unit].label}, whole stream (linear)")
    axis.set_ylabel("AP⁺")
    if ends.empty:
        axis.text(0.5, 0.5, "no finished run yet", ha="center", transform=axis.transAxes)
        return
    low, high = ends["ap_plus"].min(), ends["ap_plus"].max()
    scale = figures.scale_of("symlog", low, high)
    means = ends.groupby("row_index")[[unit, "ap_plus"]].mean().to_numpy()
    x, y = means[metrics.pareto_front(*means.T)].T
    axis.plot(x, y, drawstyle="steps-post", color="0.6", linewidth=0.8, zorder=1)
    for (_, row), points in ends.groupby(["row_index", "row"]):
        x, y, own = points[unit], points["ap_plus"], style_of[str(row)]
        axis.hlines(y.mean(), x.min(), x.max(), color=own["color"], linewidth=0.8)
        axis.vlines(x.mean(), y.min(), y.max(), color=own["color"], linewidth=0.8)
        axis.plot(x.mean(), y.mean(), label=labels[str(row)], **own | {"linestyle": "", "markersize": 5})
    axis.set_ylabel(figures.named("AP⁺", scale))
    figures.scale_y(axis, scale, low, high)
    margin = 0.03 * ends[unit].max()  # of the value, not of the range: rows may all spend nearly the same
    figures.amounts(axis, ends[unit].min() - margin, ends[unit].max() + margin)
