"""The figure of performance profiles: how often a method is nearly the best."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from analysis import figures, metrics
from analysis.exhibits import Exhibit, View
from analysis.notes import below
from analysis.study import Study
from analysis.styles import styles


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
