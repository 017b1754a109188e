"""What the page's script draws and opens: curves by row, and each row's runs with their files and commands."""

from __future__ import annotations

import base64
import gzip
import json
import math
import shlex
from collections.abc import Container, Sequence
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from markupsafe import Markup
from matplotlib.markers import MarkerStyle

from analysis.study import Study
from analysis.styles import styles
from analysis.tables import number, rounded
from benchmark.files import read_bytes
from benchmark.records import RunRecords
from benchmark.settings.units import UNITS, recorded

_FOLDER = Path(__file__).parent
AGAIN = "again"  # the folder of a run's repetition
METRICS = {"ap": "AP", "ap_plus": "AP⁺"}


@cache
def scripts() -> tuple[str, Markup]:
    """The library that draws (Vega-Lite with all it needs, BSD-3-Clause), packed by gzip in base64, and our own script.

    Packed it is 0.4 MB, else 0.9 MB of each page.
    """
    library, own = (read_bytes(_FOLDER / name) for name in ("vega_lite_bundle.js", "explore.js"))
    assert b"</script" not in own
    return base64.b64encode(gzip.compress(library, mtime=0)).decode(), Markup(own.decode())


def data(study: Study) -> Markup:
    """JSON for the script: nothing in it can end its element or begin another."""
    style_of = styles(study.runs)
    dashes = {
        row: [1, 0] if style["linestyle"] == "-" else list(style["linestyle"][1]) for row, style in style_of.items()
    }
    own = next((run.line["config"]["budget"]["unit"] for run in study.runs), "seconds")
    others = {unit: UNITS[unit].label for unit in recorded() if unit != own}
    content = {
        "records": study.records,
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


def _points(study: Study) -> dict[str, list[Any]]:
    """Each evaluation of a row, as the names of what is known of it and a list each, which is short where many are.

    Means over seeds of what was charged and measured, and the range of the latter, in the digits of tables.
    """
    names = ["suite", "row", "stage", "seeds", "charged", *recorded(), *METRICS]
    names += [f"{metric}_{end}" for metric in METRICS for end in ("low", "high")]
    if study.evaluations.empty:
        return {"names": names, "lines": []}
    titles = {suite: study.stage_titles(suite) for suite in study.suites}
    groups = study.evaluations.groupby(["suite", "row_index", "row", "stage", "order"])
    means = groups[["charged", *recorded(), *METRICS]].mean()
    low, high = groups[list(METRICS)].min(), groups[list(METRICS)].max()
    spent = means[["charged", *recorded()]].map(lambda value: float(f"{value:.5g}"))
    measured = [means[list(METRICS)], *(end[[metric]] for metric in METRICS for end in (low, high))]
    numbers = pd.concat([spent, pd.concat(measured, axis=1).map(lambda value: rounded(value, 2))], axis=1)
    known = zip(means.index.tolist(), groups["seed"].nunique().tolist(), strict=True)
    described = [[suite, row, titles[suite][stage], seeds] for (suite, _, row, stage, _), seeds in known]
    lines = zip(described, numbers.to_numpy().tolist(), strict=True)
    return {"names": names, "lines": [[*one, *map(_short, other)] for one, other in lines]}


def _short(value: float) -> float | None:
    """A number as JSON writes it shortest; None for what is not finite."""
    return None if not math.isfinite(value) else int(value) if value.is_integer() else value


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
                **_command(study, run),
            }
        )
    return found


def _command(study: Study, run: RunRecords) -> dict[str, str]:
    """What the page shows for a run: one that is finished would not be trained again where its records are."""
    does, flags = "What is missing of it is trained by", []
    given = {"--methods": run.line["method"], "--seeds": str(run.seed)}
    if run.finished == len(run.domains):
        does = "Repeated, in a folder of its own, by"
        given |= {"--runs": AGAIN, "--out": f"{AGAIN}/report"}
    elif run.failure:
        does, flags = "Tried again from its last checkpoint by", ["--retry-failed"]
    words = [*_without(shlex.split(study.run_command(run.suite)), given), *chain.from_iterable(given.items()), *flags]
    return {"does": f"{does} (all rows of its method):", "command": shlex.join(words)}


def _without(words: Sequence[str], options: Container[str]) -> list[str]:
    """A command's words without those options, each with the value behind it."""
    rest, kept = iter(words), []
    for word in rest:
        if word in options:
            next(rest)
        else:
            kept.append(word)
    return kept
