"""Colour, marker and dashes of every row: they belong to its method, the same in all figures, suites and reports."""

from __future__ import annotations

import colorsys
import zlib
from collections.abc import Sequence
from typing import Any

from benchmark.records import RunRecords

Style = dict[str, Any]

_COLOURS = (  # Okabe and Ito's, then others; no yellow, which nobody sees as a line on white
    *("#7F7F7F", "#E69F00", "#009E73", "#CC79A7", "#0072B2", "#8C2D04", "#56B4E9", "#D55E00"),
    *("#6A51A3", "#A6761D", "#66A61E", "#000000"),
)
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "<", ">", "p", "h", "d")
_DASHES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (1, 1)), (0, (5, 1, 1, 1)))
_FILLS = ("full", "none", "left", "top")
# the paper's, then ours, so that neighbours of one table differ; whoever is not named gets a place by its name
_KNOWN = (
    *("naive", "ewc", "mas", "agem", "er", "logit_kd", "pnn", "elle", "elle_exact", "aki", "lora", "joint"),
    *("stack", "rewarm", "scratch", "er_large", "derpp", "merge"),
    *("infinite_lr", "ema", "llama_pro", "ar_schedule", "soup", "gstack", "mer", "lora_merged", "das", "lifelong_moe"),
    *("oracle",),
)
_PLACES = len(_COLOURS) * len(_MARKERS)  # as 12 and 13 have no common divisor, each is another pair


def styles(runs: Sequence[RunRecords]) -> dict[str, Style]:
    """The style of each row of some runs, as keywords of matplotlib's `plot`.

    The first row of a method has the method's own; further ones have its marker in other shades of its colour, from
    light to dark, with dashes and fillings of their own. An unknown method has what the hash of its name says.
    """
    methods: dict[str, str] = {}
    for run in runs:
        methods.setdefault(run.row, run.line["method"])
    rows: dict[str, list[str]] = {}
    for row, method in methods.items():
        rows.setdefault(method, []).append(row)
    found: dict[str, Style] = {}
    taken = {_KNOWN.index(method) for method in rows if method in _KNOWN}
    for method, of_method in sorted(rows.items()):
        place = _place(method)
        while method not in _KNOWN and place in taken:  # two unknown ones of one report
            place = (place + 1) % _PLACES
        taken.add(place)
        own = _style(place)
        for number, row in enumerate(of_method):
            found[row] = own if number == 0 else own | _variant(own["color"], number, len(of_method) - 1)
    return {row: found[row] for row in methods}


def of_method(method: str) -> Style:
    """What a method looks like, as keywords of matplotlib's `plot`."""
    return _style(_place(method))


def _place(method: str) -> int:
    if method in _KNOWN:
        return _KNOWN.index(method)
    return len(_KNOWN) + zlib.crc32(method.encode()) % (_PLACES - len(_KNOWN))


def _style(place: int) -> Style:
    return {
        "color": _COLOURS[place % len(_COLOURS)],
        "linestyle": _DASHES[place // len(_MARKERS) % len(_DASHES)],
        "marker": _MARKERS[place % len(_MARKERS)],
        "fillstyle": "full",
        "markersize": 3.5,
        "markeredgewidth": 0.6,
        "linewidth": 1.2,
    }


def _variant(colour: str, number: int, count: int) -> Style:
    """The `number`-th of `count` further rows of a method, both from 1."""
    share = number / count  # 0 is light, 1 is dark
    hue, _, saturation = colorsys.rgb_to_hls(*(int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)))
    mixed = colorsys.hls_to_rgb((hue + 0.06 * (0.5 - share)) % 1, 0.68 - 0.5 * share, saturation)
    return {
        "color": "#" + "".join(f"{round(255 * part):02X}" for part in mixed),
        "linestyle": _DASHES[number % len(_DASHES)],
        "fillstyle": _FILLS[number % len(_FILLS)],
    }
