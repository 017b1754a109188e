"""The figure of performance profiles: how often a method is nearly the best."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from analysis import figures, metrics
from analysis.exhibits import Exhibit, View
from analysis.study import Study


@dataclass(frozen=True, kw_only=True)
class ProfileFigure(Exhibit):
    """Performance profiles: on how many stages of how many suites is a method's AP within a factor of the best."""

    kind: ClassVar[Literal["table", "figure"]] = "figure"

    def render(self, study: Study, view: View = "ours") -> dict[str, bytes]:
        later = study.ends[study.ends["stage"] > 0]
        costs = later.groupby(["suite", "stage", "row"], sort=False)["ap"].mean().unstack("row")
        costs = costs.reindex(columns=list(dict.fromkeys(run.row for run in study.runs)))
        with figures.style():
            figure, [[axis]] = figures.panels(1, 1, width=5.2, height=2.8)
            counts = later.groupby(["suite", "stage", "row"])["seed"].nunique()
            labels, text = figures.over_seeds(counts, band=False)
            axis.set_xlabel("AP, as a multiple of the best row's")
            axis.set_ylabel("Share of stages")
            if costs.empty:
                axis.text(0.5, 0.5, "no finished stage yet", ha="center", transform=axis.transAxes)
            else:
                widest = float(np.nanmax(costs.div(costs.min(axis=1), axis=0)))
                ratios = np.linspace(1, min(max(widest, 1.05) * 1.02, 5), 200)
                for index, (row, line) in enumerate(
                    zip(costs, metrics.performance_profile(costs, ratios), strict=True)
                ):
                    style = figures.line_style(index) | {"marker": ""}
                    if row in labels:  # a row without a finished stage keeps its colour for later
                        axis.plot(ratios, line, label=labels[row], drawstyle="steps-post", **style)
            return figures.finish(figure, axis, text and f"AP: {text[0].lower()}{text[1:]}")
