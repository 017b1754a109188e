"""The figure of forgetting against cost: what it took not to forget."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from analysis import figures, metrics
from analysis.exhibits import Exhibit, View
from analysis.notes import TOLERANCE, below
from analysis.study import Study
from analysis.styles import Style, styles
from benchmark.settings.units import UNITS, recorded


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
                    _draw(axis, ends[suite], unit, labels, style_of)
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
    own = study.of(suite)[0].line["config"]["budget"]["unit"]
    return [unit for unit in apart if means[unit].notna().all()] or [own if own in recorded() else "seconds"]


def _draw(axis: Axes, ends: pd.DataFrame, unit: str, labels: dict[str, str], style_of: dict[str, Style]) -> None:
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
