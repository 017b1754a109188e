"""The attention of heads and of what they came from, as pictures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from analysis import figures
from analysis.exhibits import Exhibit, View
from analysis.notes import below
from analysis.study import Study
from benchmark.settings.names import slug

PICTURE, BESIDE = 0.85, 0.95  # inches: a picture's side, and the numbers beside the last one
COLOURS = "cividis"  # of even lightness, for all kinds of colour vision
TICKS = {0.0: "0", 0.1: "10%", 0.25: "25%", 0.5: "50%", 1.0: "100%"}


@dataclass(frozen=True, kw_only=True)
class AttentionFigure(Exhibit):
    """One row of pictures a model, one column a lineage of heads, of the first seed of the row named `row`.

    A picture shows for each query (from top to bottom) the keys that it attends to (from left to right), each picture
    from 0 to its own maximum, on a scale of square roots. Beside it: how much all heads attend as their own ancestor
    does, and as the others of its model do.
    """

    kind: ClassVar[Literal["table", "figure"]] = "figure"
    row: str

    def render(self, study: Study, view: View = "ours") -> dict[str, bytes]:
        found = study.attentions[study.attentions["suite"] == self.suites(study)[0]]
        found = found[found["row"].map(slug) == slug(self.row)]
        found = found[found["seed"] == found["seed"].min()].sort_values("stage")
        with figures.style():
            shown = found[found["heads"].map(len) > 0]
            seed = (
                f"Seed {shown['seed'].iloc[0]} alone: how much another would differ is not known" if len(shown) else ""
            )
            text = below(study, self.suites(study)[:1], seed, rows=list(shown["row"].unique()))
            return _nothing(found) if shown.empty else _draw(shown, text)


def _nothing(found: pd.DataFrame) -> dict[str, bytes]:
    grid = figures.panels(1, 1)
    [axis] = grid.flat
    axis.set_axis_off()
    text = f"no attention: {found['reason'].iloc[-1]}" if len(found) else "no attention yet"
    axis.text(0.5, 0.5, figures.wrapped(text, grid.width), ha="center", transform=axis.transAxes)
    return figures.finish(grid)


def _draw(models: pd.DataFrame, text: str) -> dict[str, bytes]:
    rows, columns = len(models), max(models["heads"].map(len))
    room = {"left": 0.65, "right": BESIDE + figures.BAR, "between": 0.06, "below": 0.24, "bottom": 0.3}
    grid = figures.panels(rows, columns, PICTURE, PICTURE, **room)
    for line, (_, model) in zip(grid.axes, models.iterrows(), strict=True):
        for axis, (layer, head), attention in zip(line, model["heads"], model["maps"], strict=False):
            weights = np.array(attention, float)
            shares = np.sqrt(weights / max(weights.max(), 1e-12))
            picture = axis.imshow(shares, cmap=COLOURS, vmin=0, vmax=1, interpolation="nearest")
            axis.set_title(f"L{layer + 1} H{head + 1}", fontsize=figures.SMALL, pad=2)
        for axis in line:
            axis.set(xticks=[], yticks=[])
            axis.grid(False)
            axis.spines[:].set_visible(False)
        for axis in line[len(model["heads"]) :]:
            axis.set_axis_off()
        line[0].set_ylabel(f"M{model['stage'] + 1}\nquery ↓")
        if model["own"] == model["own"]:
            _beside(line[-1], 0.5, f"{model['own']:.2f} ({model['others']:.2f})")
    for axis in grid.axes[-1]:
        axis.set_xlabel("key →")
    _beside(grid.axes[0][-1], 0.9, "own ancestor\n(other heads)")
    ticks = {share**0.5: text for share, text in TICKS.items()}
    figures.colour_bar(grid, picture, "Share of maximum\n(square roots)", ticks)
    return figures.finish(grid, text)


def _beside(axis: Axes, height: float, text: str) -> None:
    axis.text(1.08, height, text, transform=axis.transAxes, ha="left", va="center", fontsize=figures.SMALL)
