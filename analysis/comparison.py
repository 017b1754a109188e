"""Two folders of records side by side: what rows came to, and what of settings, text, code and
hardware differs.
"""

from __future__ import annotations

import json
import math
import shlex
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from analysis.inference import show_mean
from analysis.metrics import PERPLEXITIES
from analysis.notes import note_left_out_runs
from analysis.study import Study, describe_hardware, find_header, find_other_texts
from analysis.tables import Block, Cell, Column, Table, TableRow, to_text
from benchmark.errors import UserError
from benchmark.records import Provenance
from benchmark.store import RunRecords, leave_out_older_texts

COLUMNS = (
    *("after", "seeds", "AP of A", "AP of B", "B against A", "95% interval"),
    *("AP⁺ of A", "AP⁺ of B", "B less A", "95% interval of that"),
)


class ComparisonError(UserError):
    """Records that have nothing in common."""


@dataclass(frozen=True)
class Side:
    """One of the two: what the user called it, and its runs by suite."""

    called: str
    suites: Mapping[str, Sequence[RunRecords]]


def compare(a: Side, b: Side, settings: Mapping[str, Any] | None = None) -> Iterator[str]:
    """A table of each suite that both have, and then what differs; two sides of one suite each are
    always compared.

    `settings`: only runs with these, by dotted key. Raises ComparisonError where there is nothing
    to compare, or a row was run with several.
    """
    pairs = [(name, name) for name in a.suites if name in b.suites]
    if not pairs and len(a.suites) == len(b.suites) == 1:
        pairs = [(next(iter(a.suites)), next(iter(b.suites)))]
    if not pairs:
        have = (f"{side.called} has {', '.join(side.suites) or 'no runs'}" for side in (a, b))
        raise ComparisonError(
            f"no suite is in both: {'; '.join(have)}; compare two folders of the same suite"
        )
    yield f"A is {a.called}, B is {b.called}.\n"
    for left, right in pairs:
        ours, theirs = (
            select_one_trial(a, left, settings or {}),
            select_one_trial(b, right, settings or {}),
        )
        yield to_text(build_comparison(left, ours, theirs))
        changes = [f"- {line}" for line in list_differences(ours, theirs)]
        yield (
            "\n".join(
                ["What differs:", *changes] if changes else ["Settings, code and hardware agree."]
            )
            + "\n"
        )
        yield describe_furthest_row(left, ours, theirs)


# settings in which runs of one row may differ: those of a seed and of a machine
NO_TRIAL = {
    "seed",
    "places",
    "domains",
    "row_index",
    "tuned",
    "tokenizer.folder",
    "training.checkpoint_seconds",
}
NO_TRIAL |= {"budget.reference", "model.start", "start.folder"}


def select_one_trial(side: Side, suite: str, settings: Mapping[str, Any]) -> list[RunRecords]:
    """The runs of a suite with these settings, left out where a newer one of the row has another
    text.

    Raises ComparisonError for none, or for several settings of a row.
    """
    runs = [run for run in side.suites[suite] if _is_asked_for(run, settings)]
    if not runs:
        asked = ", ".join(f"{key}={value}" for key, value in settings.items())
        raise ComparisonError(
            f"{side.called}: no run of {suite} has {asked}; give --set what some were run with"
        )
    first: dict[str, dict[str, Any]] = {}
    for run in runs:
        own = {
            key: value
            for key, value in _list_settings(run).items()
            if not {key, key.split(".")[0]} & NO_TRIAL
        }
        other = first.setdefault(run.row, own)
        if key := next((key for key in {**other, **own} if other.get(key) != own.get(key)), None):
            values = [_show(settings.get(key)) for settings in (other, own)]
            shown = next(value for value in values if value != "none")
            raise ComparisonError(
                f"{side.called}: row {run.row!r} of {suite} was run with {key} = "
                f"{' and with '.join(values)}: choose "
                f"one with --set {shlex.quote(f'{key}={shown}')}"
            )
    runs = leave_out_older_texts(runs)
    counted = Counter((run.row, run.seed) for run in runs if not run.why)
    if twice := next((key for key, count in counted.items() if count > 1), None):
        raise ComparisonError(
            f"{side.called}: row {twice[0]!r} of {suite} was run on several streams with seed "
            f"{twice[1]}: their order, "
            "weights or other settings of domains differ; keep the records of each in a folder of "
            "its own (--runs)"
        )
    return runs


def _is_asked_for(run: RunRecords, settings: Mapping[str, Any]) -> bool:
    """Whether a run has these settings; options of other methods do not count."""
    own = _list_settings(run)
    others = {
        key
        for key in settings
        if key.startswith("options.") and key.split(".")[1] != run.line.method
    }
    return all(own.get(key) == value for key, value in settings.items() if key not in others)


def build_comparison(name: str, a: Sequence[RunRecords], b: Sequence[RunRecords]) -> Table:
    """AP and AP⁺ of each row after the last domain that both have finished, and what they differ
    by.

    AP differs by a ratio, shown in percent; its interval is that of the logarithm. AP⁺ may be 0 or
    below, and differs by perplexities. Intervals are Student's over the seeds that both have.
    """
    ends, apart, titles = (
        _pair_ends(a, b),
        _find_rows_on_other_texts(a, b),
        Study(name, a).stage_titles,
    )
    rows = list(dict.fromkeys(run.row for run in (*a, *b)))
    lines = tuple(
        TableRow(row, _make_cells(ends[ends["row"] == row], titles, row in apart)) for row in rows
    )
    notes = []
    for other, runs in (("B", a), ("A", b)):
        if missing := [row for row in rows if row not in {run.row for run in runs}]:
            notes.append(f"{', '.join(missing)}: only in {other}.")
    notes.append(
        "B against A: below 0 is a lower AP in B. B less A: below 0 is less forgetting in B, in "
        "perplexity. Mean of "
        "the seeds that both have; one seed has no interval."
    )
    if apart:
        notes.append(f"On other texts in A and B, so nothing is compared: {', '.join(apart)}.")
    notes += [
        f"{side}: {note}"
        for side, runs in (("A", a), ("B", b))
        for note in note_left_out_runs(runs)
    ]
    return Table(
        "comparison",
        "",
        f"Suite {name}",
        "Row",
        tuple(map(Column, COLUMNS)),
        (Block("", lines),),
        tuple(notes),
    )


def describe_furthest_row(name: str, a: Sequence[RunRecords], b: Sequence[RunRecords]) -> str:
    """A sentence on the row whose AP differs most between A and B."""
    ends = _pair_ends(a, b)
    compared = ends[~ends["row"].isin(_find_rows_on_other_texts(a, b))]
    means = compared.groupby("row", sort=False)[["ap of A", "ap of B"]].mean()
    if means.empty:
        return f"{name}: no AP of A and B can be compared"
    ratios = np.log(means["ap of B"] / means["ap of A"]).abs()
    return f"{name}: AP of A and B is at most {100 * math.expm1(ratios.max()):.1f}% apart ({ratios.idxmax()})"


def _pair_ends(a: Sequence[RunRecords], b: Sequence[RunRecords]) -> pd.DataFrame:
    """The measures of both sides of each row and seed after the last stage that both have of the
    row.
    """
    measured = [metric.column for metric in PERPLEXITIES]
    ends = [Study("", runs).ends[["row", "seed", "stage", *measured]] for runs in (a, b)]
    both = ends[0].merge(ends[1], on=["row", "seed", "stage"], suffixes=(" of A", " of B"))
    return both[both["stage"] == both.groupby("row")["stage"].transform("max")].sort_values("seed")


def _find_rows_on_other_texts(a: Sequence[RunRecords], b: Sequence[RunRecords]) -> list[str]:
    """The rows whose texts are others in B."""
    ours, theirs = ({run.row: run for run in runs if run.line.texts} for runs in (a, b))
    return [row for row in ours if row in theirs and find_other_texts(ours[row], theirs[row])]


def _make_cells(ends: pd.DataFrame, titles: Sequence[str], apart: bool) -> tuple[Cell, ...]:
    """The cells of a row, from the `ends` that both sides have; nothing is compared where texts are
    `apart`.
    """
    if ends.empty:
        return tuple(Cell(text="--") for _ in COLUMNS)
    cells = [Cell(text=titles[ends["stage"].iloc[0]]), Cell(text=str(len(ends)))]
    for metric in PERPLEXITIES:
        ours, theirs = (
            ends[[f"{metric.column} of {side}" for side in "AB"]].dropna().to_numpy(float).T
        )
        cells += [Cell(tuple(values), few_seeds=int(len(ends) == 1)) for values in (ours, theirs)]
        if apart or not len(ours):
            cells += [Cell(), Cell()]
            continue
        cells += [
            Cell(text=text) for text in show_mean(metric.measure_change(theirs, ours), metric.show)
        ]
    return tuple(cells)


def list_differences(a: Sequence[RunRecords], b: Sequence[RunRecords]) -> Iterator[str]:
    """Settings, text, code, packages and hardware that are not the same, in words."""
    yield from _list_changed_settings(a, b)
    texts = [
        {name: text for run in runs for name, text in run.line.texts.items()} for runs in (a, b)
    ]
    changed = [name for name in texts[0] if name in texts[1] and texts[0][name] != texts[1][name]]
    if changed:
        yield f"validation text, or the tokenizer: {', '.join(changed)}"
    made = [
        [find_header(stage).provenance for run in runs for stage in run.stages if stage]
        for runs in (a, b)
    ]
    ways: dict[str, Callable[[Provenance], list[str]]] = {
        "code": lambda provenance: [provenance.code],
        "packages": lambda provenance: [
            f"{name} {version}" for name, version in provenance.packages.items()
        ],
        "hardware": lambda provenance: [describe_hardware(provenance)],
        "vector instructions": lambda provenance: [provenance.hardware.instructions],
    }
    for what, of in ways.items():
        ours, theirs = (
            list(dict.fromkeys(value for provenance in side for value in of(provenance)))
            for side in made
        )
        if set(ours) != set(theirs):
            yield f"{what}: {_list_own(ours, theirs)} → {_list_own(theirs, ours)}"


def _list_own(values: Sequence[str], others: Sequence[str]) -> str:
    return (
        "; ".join(value for value in values if value not in others)
        or "nothing that the other lacks"
    )


def _list_changed_settings(a: Sequence[RunRecords], b: Sequence[RunRecords]) -> Iterator[str]:
    """Each setting that differs between runs of the same row, and in which rows."""
    first = [{run.row: _list_settings(run) for run in runs} for runs in (a, b)]
    rows = [row for row in first[0] if row in first[1]]
    changes: dict[str, list[str]] = {}
    for row in rows:
        ours, theirs = first[0][row], first[1][row]
        for key in dict.fromkeys((*ours, *theirs)):
            if ours.get(key) != theirs.get(key):
                changes.setdefault(
                    f"{key}: {_show(ours.get(key))} → {_show(theirs.get(key))}", []
                ).append(row)
    for change, of in changes.items():
        yield change + ("" if of == rows else f" ({', '.join(of)})")


def _list_settings(run: RunRecords) -> dict[str, Any]:
    """A run's settings by dotted key, as --set has them."""
    return _flatten({"options": {run.line.method: run.line.options}, **run.line.config})


def _flatten(settings: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        flat |= (
            _flatten(value, f"{before}{key}.")
            if isinstance(value, dict)
            else {f"{before}{key}": value}
        )
    return flat


def _show(value: Any) -> str:
    return "none" if value is None else json.dumps(value, ensure_ascii=False)
