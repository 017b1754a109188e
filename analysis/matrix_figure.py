"""The figure of the matrix stage x text: what a stream does to each of its domains, and to probes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import matplotlib.colors
import numpy as np
import seaborn

from analysis import figures
from analysis.exhibits import Exhibit, View
from analysis.metrics import Floats
from analysis.study import Study, of_text
from benchmark.records import RunRecords

ACROSS = 4  # panels


@dataclass(frozen=True, kw_only=True)
class MatrixFigure(Exhibit):
    """The perplexity of every domain and probe after every stage, mean over seeds; a panel a row, one scale for all.

    Where runs begin with a start model its own perplexities are the first line.
    """

    kind: ClassVar[Literal["table", "figure"]] = "figure"

    def render(self, study: Study, view: View = "ours") -> dict[str, bytes]:
        shown = [(suite, row, runs) for suite in self.suites(study) for row, runs in _rows(study.of(suite)).items()]
        matrices = [_mean(runs) for _, _, runs in shown]
        finite = [matrix[np.isfinite(matrix)] for matrix in matrices]
        every = np.concatenate([*finite, np.empty(0)])
        with figures.style():
            across = min(ACROSS, len(shown)) or 1
            figure, grid = figures.panels(-(-len(shown) // across) or 1, across, width=3.0, height=2.4)
            axes = [axis for line in grid for axis in line]
            for axis in axes[len(shown) or 1 :]:
                axis.set_visible(False)
            if not every.size:
                axes[0].text(0.5, 0.5, "no finished stage yet", ha="center", transform=axes[0].transAxes)
                return figures.finish(figure, axes[0])
            scale = matplotlib.colors.LogNorm(every.min(), every.max())
            for axis, (suite, row, runs), matrix in zip(axes, shown, matrices, strict=False):
                texts = [*runs[0].domains, *runs[0].line["probes"]]
                stages = ["start"] * bool(runs[0].start) + study.stage_titles(suite)
                seaborn.heatmap(
                    matrix,
                    ax=axis,
                    mask=~np.isfinite(matrix),
                    annot=True,
                    fmt=".3g",
                    annot_kws={"fontsize": 6},
                    cmap="cividis_r",
                    norm=scale,
                    vmin=scale.vmin,  # or seaborn would look for them, in vain where a row has not started
                    vmax=scale.vmax,
                    cbar=False,
                    xticklabels=[text["title"] for text in texts],
                    yticklabels=stages,
                )
                axis.tick_params(length=0, labelsize=7, labelrotation=0)
                axis.set_title(row)
                axis.set_ylabel("after" if axis in [line[0] for line in grid] else "")
            seeds = max(len(runs) for _, _, runs in shown)
            over = "one seed" if seeds == 1 else f"mean of up to {seeds} seeds"
            return figures.finish(figure, axes[0], f"Perplexity, {over}; the same colours in all panels, logarithmic")


def _rows(runs: Sequence[RunRecords]) -> dict[str, list[RunRecords]]:
    found: dict[str, list[RunRecords]] = {}
    for run in runs:
        found.setdefault(run.row, []).append(run)
    return found


def _mean(runs: Sequence[RunRecords]) -> Floats:
    """The matrix of a row, shape (stages, texts), a line more for a start model; NaN for what is not measured."""
    names = [text["name"] for text in (*runs[0].domains, *runs[0].line["probes"])]
    lines = len(runs[0].domains) + bool(runs[0].start)
    found = np.full((len(runs), lines, len(names)), np.nan)
    for number, run in enumerate(runs):
        for place, measured in enumerate([run.start] * bool(run.start) + run.matrix):
            found[number, place] = [of_text(measured, name) for name in names]
    measured_at = ~np.isnan(found)
    totals = np.where(measured_at, found, 0.0).sum(axis=0)
    return np.divide(totals, measured_at.sum(axis=0), out=np.full(totals.shape, np.nan), where=measured_at.any(axis=0))
