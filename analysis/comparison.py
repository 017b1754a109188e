"""Compares two folders of records.

It shows AP and AP⁺ of each row, then which settings, texts, code, packages and hardware differ.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from analysis.inference import show_mean
from analysis.metrics import PERPLEXITIES
from analysis.notes import group_names, note_left_out_runs
from analysis.study import Study, find_other_texts
from analysis.tables import Block, Cell, Column, Table, TableRow, to_text
from benchmark.errors import UserError
from benchmark.ledger.runs import RunRecords, dump_settings, leave_out_older_texts
from benchmark.settings.decides import find_differences, flatten, list_purposes
from benchmark.settings.suite import DECIDE_A_RUN, RunConfig

COLUMNS = (
    "after",
    "seeds",
    "AP of A",
    "AP of B",
    "AP change",
    "95% interval of AP change",
    "AP⁺ of A",
    "AP⁺ of B",
    "AP⁺ change",
    "95% interval of AP⁺ change",
)
NOTHING = "nothing that the other lacks"
NONE = "no runs that were asked for"
Runs = Sequence[RunRecords]


class ComparisonError(UserError):
    """Records that cannot be compared."""


@dataclass(frozen=True)
class Side:
    """One side of a comparison: the user's name for it, and its runs by suite."""

    name: str
    suites: Mapping[str, Runs]


def compare(a: Side, b: Side, settings: Mapping[str, Any] | None = None) -> Iterator[str]:
    """A table of each suite that both sides have, followed by what differs.

    If each side has only one suite, these two are compared, whatever their names. Only runs with
    these `settings` (by dotted key) are compared. Raises ComparisonError if there is nothing to
    compare, or if a row was run with several settings or streams.
    """
    pairs = [(name, name) for name in a.suites if name in b.suites]
    if not pairs and len(a.suites) == len(b.suites) == 1:
        pairs = list(zip(a.suites, b.suites, strict=True))
    if not pairs:
        inventory = [f"{side.name} has {', '.join(side.suites) or NONE}" for side in (a, b)]
        raise ComparisonError(
            f"no suite is in both: {'; '.join(inventory)}; compare two folders of the same suite"
        )
    yield f"A is {a.name}, B is {b.name}.\n"
    for suite_a, suite_b in pairs:
        runs_a = select_one_trial(a, suite_a, settings or {})
        runs_b = select_one_trial(b, suite_b, settings or {})
        yield to_text(build_comparison(suite_a, runs_a, runs_b))
        changes = [f"- {line}" for line in list_differences(runs_a, runs_b)]
        yield "\n".join(_head_differences(changes, runs_a, runs_b)) + "\n"
        yield describe_furthest_row(suite_a, runs_a, runs_b)


def _head_differences(changes: Sequence[str], a: Runs, b: Runs) -> list[str]:
    """The differences with a heading, or a sentence if there are none."""
    if changes:
        return ["What differs:", *changes]
    if {run.row for run in a} & {run.row for run in b}:
        return ["Settings, code and hardware agree."]
    return ["No row is in both, so no settings are compared."]


OF_A_SEED = {"seed", "places", "domains"}  # settings that may differ between seeds of a row


def select_one_trial(side: Side, suite: str, settings: Mapping[str, Any]) -> list[RunRecords]:
    """The runs of a suite with these settings.

    A run is left out if a newer run of its row is on another text. Raises ComparisonError if no run
    has these settings, or if a row has several settings, or several streams for one seed.
    """
    runs = [run for run in side.suites[suite] if _is_asked_for(run, settings)]
    if not runs:
        request = ", ".join(f"{key}={value}" for key, value in settings.items())
        raise ComparisonError(
            f"{side.name}: no run of {suite} has {request}; give --set what some were run with"
        )
    trials: dict[str, dict[str, Any]] = {}
    for run in runs:
        trial = _list_trial_settings(run)
        first_trial = trials.setdefault(run.row, trial)
        changes = find_differences(first_trial, trial)
        if changes:
            key = changes[0].partition(":")[0]
            raise ComparisonError(
                f"{side.name}: row {run.row!r} of {suite} was run with several settings "
                f"({changes[0]}): choose one with --set {key}=VALUE"
            )
    runs = leave_out_older_texts(runs)
    counts = Counter((run.row, run.seed) for run in runs if not run.why)
    repeated = [place for place, count in counts.items() if count > 1]
    if repeated:
        row, seed = repeated[0]
        raise ComparisonError(
            f"{side.name}: row {row!r} of {suite} was run on several streams with seed "
            f"{seed}: their order, "
            "weights or other settings of domains differ; keep the records of each in a folder of "
            "its own (--runs)"
        )
    return runs


def _is_asked_for(run: RunRecords, settings: Mapping[str, Any]) -> bool:
    """Whether a run has these settings. Options of other methods do not count."""
    run_settings = _list_settings(run)
    for key, value in settings.items():
        is_option = key.startswith("options.")
        if is_option and key.split(".")[1] != run.line.method:
            continue
        if run_settings.get(key) != value:
            return False
    return True


def build_comparison(name: str, a: Runs, b: Runs) -> Table:
    """AP, AP⁺ and their changes for each row, after the last domain that both sides have finished.

    The change of AP is a ratio, shown in percent, with the interval of its logarithm. AP⁺ may be 0
    or negative, so its change is a difference. Intervals are Student's over shared seeds.
    """
    ends = _pair_ends(a, b)
    incomparable = _find_rows_on_other_texts(a, b)
    titles = Study(name, a).stage_titles
    rows = list(dict.fromkeys(run.row for run in (*a, *b)))
    lines = []
    for row in rows:
        ends_of_row = ends[ends["row"] == row]
        cells = _make_cells(ends_of_row, titles, row in incomparable)
        lines.append(TableRow(row, cells))
    return Table(
        name="comparison",
        label="",
        caption=f"Suite {name}",
        stub="Row",
        columns=tuple(map(Column, COLUMNS)),
        blocks=(Block("", tuple(lines)),),
        notes=tuple(_list_notes(a, b, rows, incomparable)),
    )


def _list_notes(
    a: Runs,
    b: Runs,
    rows: Sequence[str],
    incomparable: Sequence[str],
) -> Iterator[str]:
    """The notes below a comparison of these rows."""
    for side, opposite in (("B", a), ("A", b)):
        present = {run.row for run in opposite}
        missing = [row for row in rows if row not in present]
        if missing:
            yield f"{', '.join(missing)}: only in {side}."
    yield (
        "A change below 0 is a lower AP, or less forgetting (AP⁺, in perplexity), in B than in A. "
        "Mean of the seeds that both have. One seed has no interval."
    )
    paired = set(_pair_ends(a, b)["row"])
    unpaired = {run.row for run in a} & {run.row for run in b} - paired
    if unpaired:
        names = [row for row in rows if row in unpaired]
        yield f"{', '.join(names)}: no stage of a seed has ended in both on the same domains."
    if incomparable:
        yield f"On other texts in A and B, so nothing is compared: {', '.join(incomparable)}."
    for side, runs in (("A", a), ("B", b)):
        for note in note_left_out_runs(runs):
            yield f"{side}: {note}"


def describe_furthest_row(name: str, a: Runs, b: Runs) -> str:
    """A sentence on the row whose AP differs most between A and B."""
    ends = _pair_ends(a, b)
    incomparable = _find_rows_on_other_texts(a, b)
    compared = ends[~ends["row"].isin(incomparable)]
    if compared.empty:
        return f"{name}: no AP of A and B can be compared"
    log_ratios = np.log(compared["ap of B"] / compared["ap of A"])
    changes = log_ratios.groupby(compared["row"], sort=False).mean().abs()
    percent = 100 * math.expm1(changes.max())
    return f"{name}: AP of A and B is at most {percent:.1f}% apart (most for {changes.idxmax()})"


def _pair_ends(a: Runs, b: Runs) -> pd.DataFrame:
    """AP and AP⁺ of both sides, a line per row and seed.

    They are measured after the last stage of the row that both sides have finished on the same
    domains.
    """
    place = ["row", "seed", "stage", "domains"]
    columns = [*place, *(metric.column for metric in PERPLEXITIES)]
    pairs = _list_ends(a)[columns].merge(
        _list_ends(b)[columns], on=place, suffixes=(" of A", " of B")
    )
    last = pairs.groupby("row")["stage"].transform("max")
    return pairs[pairs["stage"] == last].sort_values("seed")


def _list_ends(runs: Runs) -> pd.DataFrame:
    """`Study.ends` with the set of domains that a run had met by then, which AP averages."""
    orders = {run.id: [domain.name for domain in run.domains] for run in runs}
    ends = Study("", runs).ends
    domains = [
        " ".join(sorted(orders[run][: stage + 1]))
        for run, stage in zip(ends["run"], ends["stage"], strict=True)
    ]
    return ends.assign(domains=domains)


def _find_rows_on_other_texts(a: Runs, b: Runs) -> list[str]:
    """The rows whose texts differ between A and B."""
    runs_a = {run.row: run for run in a if run.line.texts}
    runs_b = {run.row: run for run in b if run.line.texts}
    return [
        row for row, run in runs_a.items() if row in runs_b and find_other_texts(run, runs_b[row])
    ]


def _make_cells(
    ends: pd.DataFrame, titles: Sequence[str], is_incomparable: bool
) -> tuple[Cell, ...]:
    """The cells of a row, from the `ends` that both sides have.

    `is_incomparable`: the row's texts differ between A and B, so its changes stay empty.
    """
    if ends.empty:
        return tuple(Cell(text="--") for _ in COLUMNS)
    stage = ends["stage"].iloc[0]
    seeds = len(ends)
    cells = [Cell(text=titles[stage]), Cell(text=str(seeds))]
    for metric in PERPLEXITIES:
        columns = [f"{metric.column} of A", f"{metric.column} of B"]
        values_a, values_b = ends[columns].dropna().to_numpy(float).T
        cells.append(Cell(tuple(values_a)))
        cells.append(Cell(tuple(values_b)))
        if is_incomparable or not len(values_a):
            cells += [Cell(), Cell()]
            continue
        changes = metric.measure_change(values_b, values_a)
        mean, interval = show_mean(changes, metric.show)
        cells += [Cell(text=mean), Cell(text=interval)]
    return tuple(cells)


def list_differences(a: Runs, b: Runs) -> Iterator[str]:
    """Say which settings, texts, code, packages and hardware differ."""
    yield from _list_changed_settings(a, b)
    texts_a = _collect_texts(a)
    texts_b = _collect_texts(b)
    common = [name for name in texts_a if name in texts_b]
    changed = [name for name in common if texts_a[name] != texts_b[name]]
    if changed:
        yield f"validation text, or the tokenizer: {', '.join(changed)}"
    stages_a = Study("", a).stages
    stages_b = Study("", b).stages
    for column in ("code", "packages", "hardware"):
        parts_a = _list_parts(stages_a, column)
        parts_b = _list_parts(stages_b, column)
        extra_a = ", ".join(part for part in parts_a if part not in parts_b)
        extra_b = ", ".join(part for part in parts_b if part not in parts_a)
        if extra_a or extra_b:
            yield f"{column}: {extra_a or NOTHING} → {extra_b or NOTHING}"


def _list_parts(stages: pd.DataFrame, column: str) -> list[str]:
    """The distinct values of a column of `Study.stages`, with each package on its own."""
    values = stages[column]
    if column == "packages":
        values = values.str.split(", ").explode()
    return list(values.unique())


def _collect_texts(runs: Runs) -> dict[str, str]:
    """The hash of each validation text, by domain or probe."""
    texts: dict[str, str] = {}
    for run in runs:
        texts |= run.line.texts
    return texts


def _list_changed_settings(a: Runs, b: Runs) -> Iterator[str]:
    """Each setting that differs between runs of the same row, and in which rows."""
    rows_of_b = {run.row for run in b}
    rows = [row for row in dict.fromkeys(run.row for run in a) if row in rows_of_b]
    pairs = []
    for row in rows:
        run_a, run_b = _pick_runs(row, a, b)
        settings_a = _list_settings(run_a)
        for change in find_differences(settings_a, _list_settings(run_b), longest=None):
            pairs.append((change, row))
    for change, changed_rows in group_names(pairs).items():
        place = "" if changed_rows == rows else f" ({', '.join(changed_rows)})"
        yield change + place


def _pick_runs(row: str, a: Runs, b: Runs) -> tuple[RunRecords, RunRecords]:
    """A run of a row in A and in B, of a seed that both have if there is one."""
    runs_a = {run.seed: run for run in a if run.row == row}
    runs_b = {run.seed: run for run in b if run.row == row}
    for seed, run in runs_a.items():
        if seed in runs_b:
            return run, runs_b[seed]
    return next(iter(runs_a.values())), next(iter(runs_b.values()))


def _list_settings(run: RunRecords) -> dict[str, Any]:
    """A run's settings by dotted key, as --set names them.

    A setting that is newer than the run has its default.
    """
    line = run.line
    options = {line.method: line.options}
    try:
        config = dump_settings(RunConfig.model_validate(line.config))
    except ValueError:  # it has settings that no longer exist
        config = line.config
    return flatten({**config, "options": options})


def _list_trial_settings(run: RunRecords) -> dict[str, Any]:
    """A run's settings, without those that may differ between runs of one row."""
    purposes = list_purposes(RunConfig)
    trial = {}
    for key, value in _list_settings(run).items():
        purpose = purposes.get(key)
        is_of_trial = purpose is None or purpose in DECIDE_A_RUN
        if is_of_trial and key not in OF_A_SEED:
            trial[key] = value
    return trial
