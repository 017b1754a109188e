"""What the page's script draws and opens: curves by row, and each row's runs with their files and commands."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from markupsafe import Markup
from matplotlib.markers import MarkerStyle

from analysis.study import Study
from analysis.styles import styles
from analysis.tables import number
from benchmark.settings.units import UNITS, recorded

_FOLDER = Path(__file__).parent
METRICS = {"ap": "AP", "ap_plus": "AP⁺"}


@cache
def scripts() -> tuple[Markup, Markup]:
    """The library that draws (Vega-Lite with all it needs, BSD-3-Clause), and our own script."""
    library, own = ((_FOLDER / name).read_text(encoding="utf-8") for name in ("vega_lite_bundle.js", "explore.js"))
    assert "</script" not in library + own
    return Markup(library), Markup(own)


def data(study: Study) -> Markup:
    """JSON for the script: nothing in it can end its element or begin another."""
    style_of = styles(study.runs)
    dashes = {
        row: [1, 0] if style["linestyle"] == "-" else list(style["linestyle"][1]) for row, style in style_of.items()
    }
    own = next((run.line["config"]["budget"]["unit"] for run in study.runs), "seconds")
    others = {unit: UNITS[unit].label for unit in recorded() if unit != own}
    content = {
        "suites": study.suites,
        "rows": [
            {"row": row, "colour": style["color"], "dash": dashes[row], "shape": _shape(style["marker"])}
            for row, style in style_of.items()
        ],
        "units": {"charged": UNITS[own].label, **others},
        "metrics": METRICS,
        "points": _points(study),
        "runs": _runs(study),
    }
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return Markup(text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029"))


@cache
def _shape(marker: str) -> str:
    """The outline of a marker of matplotlib's as an SVG path, from -1 to 1."""
    drawn = MarkerStyle(marker)
    outlines = map(np.asarray, drawn.get_path().transformed(drawn.get_transform()).to_polygons())
    return "".join(f"M{'L'.join(f'{2 * x:.2f},{-2 * y:.2f}' for x, y in outline)}Z" for outline in outlines)


def _points(study: Study) -> list[dict[str, Any]]:
    """Each evaluation of a row: means over seeds of what was charged and measured, and the range of the latter."""
    if study.evaluations.empty:
        return []
    titles = {suite: study.stage_titles(suite) for suite in study.suites}
    groups = study.evaluations.groupby(["suite", "row_index", "row", "stage", "order"])
    means = groups[["charged", *recorded(), *METRICS]].mean()
    low, high = groups[list(METRICS)].min(), groups[list(METRICS)].max()
    keys: list[Any] = means.index.tolist()
    found = []
    for (suite, _, row, stage, _), mean, least, most, seeds in zip(
        keys, _lines(means), _lines(low), _lines(high), groups["seed"].nunique(), strict=True
    ):
        point: dict[str, Any] = {"suite": suite, "row": row, "stage": titles[suite][stage]}
        point |= {"seeds": int(seeds), **mean}
        for metric in METRICS:
            point |= {f"{metric}_low": least[metric], f"{metric}_high": most[metric]}
        found.append(point)
    return found


def _lines(table: pd.DataFrame) -> Iterable[dict[str, float | None]]:
    """The lines of a table with numbers of five digits; None for what is not finite."""
    for line in table.to_dict("records"):
        yield {str(name): float(f"{value:.5g}") if math.isfinite(value) else None for name, value in line.items()}


def _runs(study: Study) -> list[dict[str, Any]]:
    """Each run: how far it is, what it ended with, where its records lie and what repeats it."""
    ends = {
        (suite, run): (stage, ap, ap_plus)
        for suite, run, stage, ap, ap_plus in study.ends[["suite", "run", "stage", "ap", "ap_plus"]].itertuples(
            index=False
        )
    }
    found = []
    for run in study.runs:
        stage, *values = ends.get((run.suite, run.id), (-1, math.nan, math.nan))
        whole = stage == len(run.domains) - 1
        state = (
            f"failed in stage {run.failure['stage'] + 1}" if run.failure else f"{run.finished} of {len(run.domains)}"
        )
        command = f"{study.run_command(run.suite)} --methods {run.line['method']} --seeds {run.seed}"
        found.append(
            {
                "suite": run.suite,
                "row": run.row,
                "seed": run.seed,
                "state": state,
                **{
                    name: number(value, 2) if whole and math.isfinite(value) else None
                    for name, value in zip(METRICS, values, strict=True)
                },
                "record": f"suites/{run.suite}/{run.id}.jsonl",
                "stages": run.line["stages"],
                "command": command,
            }
        )
    return found
