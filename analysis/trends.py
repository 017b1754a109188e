"""Curves of AP and AP+ against the charged budget."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from matplotlib.axes import Axes

from analysis import figures
from analysis.entry import Entry, View
from analysis.frames import Study
from analysis.printed import slug

AXES: dict[str, tuple[str, Literal["log", "symlog"]]] = {"ap": ("AP", "log"), "ap_plus": ("AP⁺", "symlog")}


@dataclass(frozen=True, kw_only=True)
class TrendFigure(Entry):
    """AP and AP+ of the rows named in `rows` (all, if none), a line a row, a band from its lowest to highest seed.

    The paper prints no numbers for its curves, so that every view is ours. Rows of panels are suites.
    """

    kind: ClassVar[Literal["table", "figure"]] = "figure"
    rows: tuple[str, ...] = ()

    def render(self, study: Study, view: View = "ours") -> dict[str, bytes]:
        with figures.look():
            figure, axes = figures.panels(len(study.suites), len(AXES))
            for suite, line in zip(study.suites, axes, strict=True):
                for axis, metric in zip(line, AXES, strict=True):
                    self._draw(axis, study, suite, metric)
                if len(study.suites) > 1:
                    line[0].set_title(self.heading(study, suite), loc="left", pad=16)
            figures.legend(figure, axes[0][0])
            return figures.to_files(figure)

    def _draw(self, axis: Axes, study: Study, suite: str, metric: str) -> None:
        name, scale = AXES[metric]
        chosen = {slug(row) for row in self.rows}
        points = study.evaluations[study.evaluations["suite"] == suite]
        shown = [not chosen or slug(row) in chosen for row in points["row"]]
        points = points[np.array(shown, bool) & np.isfinite(points[metric])]
        axis.set_ylabel(name)
        axis.set_xlabel(figures.UNIT_LABELS[study.of(suite)[0].config["budget"]["unit"]])
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
            style = figures.line_style(index)
            axis.plot(line["charged"], line[metric], label=row, **style)
            axis.fill_between(line["charged"], line["low"], line["high"], color=style["color"], alpha=0.2, linewidth=0)
        figures.scales(axis, scale)
        _stage_boundaries(axis, study, suite)


def _stage_boundaries(axis: Axes, study: Study, suite: str) -> None:
    """A dotted line where a stage ends, and each stage's domain above it."""
    titles = [domain["title"] for domain in study.of(suite)[0].domains]
    ends = study.ends[study.ends["suite"] == suite].groupby("stage")["charged"].mean()
    start = 0.0
    for stage, end in ends.items():
        axis.axvline(end, color="0.5", linestyle=":", linewidth=0.8, zorder=0)
        middle = ((start + end) / 2, 1.01)
        axis.annotate(titles[stage], middle, xycoords=("data", "axes fraction"), ha="center", fontsize="small")
        start = end
