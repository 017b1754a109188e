"""The attention of heads and of what they came from, as pictures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis import figures
from analysis.exhibits import Exhibit, View
from analysis.printed import slug
from analysis.study import Study

CELL, LEFT, RIGHT, TOP, BOTTOM = 0.85, 0.45, 1.05, 0.3, 0.3  # inches
COLOURS = "cividis"  # of even lightness, for all kinds of colour vision


@dataclass(frozen=True, kw_only=True)
class AttentionFigure(Exhibit):
    """One row of pictures a model, one column a lineage of heads, of the first seed of the row named `row`.

    A picture shows for each query (from top to bottom) the columns that it attends to, each picture from 0 to its own
    maximum, on a scale of square roots. Beside it: how much all heads attend as their own ancestor does, and as the
    others of its model do.
    """

    kind: ClassVar[Literal["table", "figure"]] = "figure"
    row: str

    def render(self, study: Study, view: View = "ours") -> dict[str, bytes]:
        found = study.attentions[study.attentions["suite"] == self.suites(study)[0]]
        found = found[found["row"].map(slug) == slug(self.row)]
        found = found[found["seed"] == found["seed"].min()].sort_values("stage")
        with figures.style():
            shown = found[found["heads"].map(len) > 0]
            if shown.empty:
                return figures.to_files(_nothing(found))
            return figures.to_files(_draw(shown))


def _nothing(found: pd.DataFrame) -> Figure:
    figure, [[axis]] = figures.panels(1, 1)
    axis.set_axis_off()
    text = f"no attention: {found['reason'].iloc[-1]}" if len(found) else "no attention yet"
    axis.text(0.5, 0.5, text, ha="center", transform=axis.transAxes, wrap=True)
    return figure


def _draw(models: pd.DataFrame) -> Figure:
    rows, columns = len(models), max(models["heads"].map(len))
    width, height = LEFT + columns * CELL + RIGHT, TOP + rows * CELL + BOTTOM
    figure = Figure(figsize=(width, height))
    axes = figure.subplots(rows, columns, squeeze=False)
    figure.subplots_adjust(LEFT / width, BOTTOM / height, 1 - RIGHT / width, 1 - TOP / height, wspace=0.08, hspace=0.3)
    for line, (_, model) in zip(axes, models.iterrows(), strict=True):
        for axis, (layer, head), attention in zip(line, model["heads"], model["maps"], strict=True):
            axis.imshow(np.sqrt(np.array(attention)), cmap=COLOURS, vmin=0, interpolation="nearest")
            axis.set_title(f"L{layer + 1} H{head + 1}", fontsize="small", pad=2)
            axis.set(xticks=[], yticks=[])
        line[0].set_ylabel(f"M{model['stage'] + 1}", rotation=0, ha="right", va="center")
        if model["own"] == model["own"]:
            _beside(line[-1], f"{model['own']:.2f} ({model['others']:.2f})")
    _beside(axes[0][-1], "own ancestor\n(other heads)")
    text = f"Seed {models['seed'].iloc[0]} alone: how much another would differ is not known"
    figure.text(0.5, 0.06 / height, text, ha="center", fontsize="small")
    return figure


def _beside(axis: Axes, text: str) -> None:
    axis.text(1.08, 0.5, text, transform=axis.transAxes, ha="left", va="center", fontsize="small")
