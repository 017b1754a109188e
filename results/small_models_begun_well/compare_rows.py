"""Print comparisons from the study's records: `PYTHONPATH=. python
results/small_models_begun_well/compare_rows.py`.

Each compares AP after the last domain, paired by seed: the geometric mean of the ratio, its 95%
interval, and the two-sided p-value of docs/statistics.md, corrected together with all others of its
table that have run (Holm). Where the losses of validation documents are recorded, the interval and
p hold the choice of them too.

A verdict is lower or higher with p up to 0.05. Else it is "within 3%" where two one-sided tests
say so, which are of this comparison alone (WITHIN), or not decided.
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd
from msgspec import structs

import run_all
from analysis.inference import ERRORS, compute_interval, compute_one_sided_p, correct_by_holm
from analysis.metrics import Floats
from analysis.study import Study
from benchmark.ledger.archive import Archives, lay_out, read_archives
from benchmark.ledger.runs import RunRecords

HERE = Path(__file__).parent
SIZES = ("57k", "113k", "237k", "1M")  # parameters of the last model
LARGE = (
    ("ELLE (exact), to {}", "ER, {} from the start"),
    ("ELLE, to {}", "ER, {} from the start"),
    ("ELLE (exact), to {}", "ELLE, to {}"),
)
AGAIN = (
    ("ELLE, to {}", "ELLE, to {}, noise of before"),
    ("ELLE (exact), to {}, trained again", "ELLE (exact), to {}"),
)
SMALL = (("ELLE, to {}", "ER, 13k"), ("ELLE (exact), to {}", "ER, 13k"))
SMALL_OF_1M = (("ELLE, to {}", "ER, 230k"), ("ELLE (exact), to {}", "ER, 230k"))
OF_57K = (  # rows of the main table
    ("ELLE", "ER"),
    ("ELLE (exact)", "ER"),
    ("ELLE (exact)", "ELLE"),
    ("ELLE (exact)", "ER (final size)"),
    ("ELLE (exact)", "PNN"),
    ("Logit-KD", "ER"),
    ("EWC", "Naive"),
    ("A-GEM", "Naive"),
)
# What ran later, in suites of its own: with 6.1e12 FLOPs two seeds of ELLE and staying small, two
# rows of the million
ADDED = {"map_four": "map_four_elle", "map_four_elle": "map_four_small", "million": "million_small"}
# ELLE again, with noise that fits how weights begin (plan.md, "ELLE's noise"): its rows take the
# place of those before
RENEWED = {
    "map_sixteenth": "elle_sixteenth",
    "map_quarter": "elle_quarter",
    "map_full": "elle_full",
    "map_four": "elle_four",
    "main_quarter": "elle_quarter",
    "main_full": "elle_full",
    "main_orders": "elle_orders",
    "main_full_orders": "elle_full_orders",
}
OLD = "{}, noise of before"  # a row that was trained again
CONTROL = "ELLE (exact), to 57k"  # trained again with the same settings
LESS, MAIN = "3.8e11 FLOPs", "1.5e12 FLOPs"
MAP = {
    "map_sixteenth": "9.6e10 FLOPs",
    "map_quarter": LESS,
    "map_full": MAIN,
    "map_four": "6.1e12 FLOPs",
}
TABLES = {  # what is compared in which suites; each table is corrected by itself
    "ELLE with its new noise over itself, and exact growth trained again (a control)": (AGAIN, MAP),
    "The map": (LARGE, MAP),
    "The map, growing or staying small": (SMALL, MAP),
    "The map, equal seconds": (LARGE, {"map_seconds": "36 s"}),
    "The map, growing or staying small, equal seconds": (SMALL, {"map_seconds": "36 s"}),
    "One million parameters": (LARGE, {"million": "1e14 FLOPs"}),
    "One million parameters, growing or staying small": (SMALL_OF_1M, {"million": "1e14 FLOPs"}),
    "Muon, fused": (LARGE, {"muon_quarter": LESS}),
    "The main table": (OF_57K, {"main_full": MAIN}),
    "The main table, another order for each seed": (OF_57K, {"main_full_orders": MAIN}),
    "The main table, less": (OF_57K, {"main_quarter": LESS}),
    "The main table, less, another order for each seed": (OF_57K, {"main_orders": LESS}),
}
HEADS = (
    "Budget",
    "Last size",
    "Compared",
    "AP of both",
    "Change (95% interval)",
    "Seeds",
    "p",
    "Verdict",
)
WITHIN = 0.03  # of AP, up and down: a change that is no finding of this study


@dataclass(frozen=True)
class Change:
    """AP after the last domain of one row over that of another, over the seeds that both have."""

    suite: str
    ap: pd.DataFrame  # of both rows, a line per seed
    ratios: np.ndarray  # logarithms, one a seed
    shared: float  # the variance of their mean by the choice of validation documents
    mean: float  # of the ratio, less 1; `low` and `high` too
    low: float
    high: float


def compare(study: Study, first: str, second: str) -> Change | None:
    """None before two seeds have both rows."""
    last = study.ends["stage"].max()
    ap = study.ends[study.ends["stage"] == last].pivot(index="seed", columns="row", values="ap")
    both = ap.reindex(columns=[first, second]).dropna()
    if len(both) < 2:
        return None
    ratios = np.log((both[first] / both[second]).to_numpy())
    shared = study.compute_text_variance(first, second, last)
    mean, low, high = np.expm1([ratios.mean(), *compute_interval(ratios, shared)])
    suite = study.suites[0]
    return Change(suite=suite, ap=both, ratios=ratios, shared=shared, mean=mean, low=low, high=high)


def compare_rows(pairs: Sequence[tuple[str, str]], studies: Mapping[str, Study]) -> list[list[str]]:
    """The cells of a table's lines: a line for each pair of rows, and size, that at least two seeds
    of a suite have.
    """
    lines = []
    bound = np.log1p(WITHIN)
    changes = list_changes(pairs, studies)
    p_values = correct_table(changes.values())
    for (names, change), p in zip(changes.items(), p_values, strict=True):
        values = " and ".join(f"{value:.1f}" for value in np.exp(np.log(change.ap).mean()))
        shown = f"{change.mean:+.1%} ({change.low:+.1%} to {change.high:+.1%})".replace("-", "−")
        p_same = compute_sameness_p(change.ratios, bound, change.shared)
        verdict = name_change(change.mean, p, p_same, f"{WITHIN:.0%}")
        lines.append([*names, values, shown, str(len(change.ap)), f"{p:.2g}", verdict])
    return lines


def list_changes(
    pairs: Sequence[tuple[str, str]], studies: Mapping[str, Study]
) -> dict[tuple[str, str, str], Change]:
    """The changes of a table, by budget, last size and the rows that are compared."""
    changes = {}
    sizes = SIZES if pairs is not OF_57K else SIZES[:1]
    for (budget, study), size, pair in itertools.product(studies.items(), sizes, pairs):
        first, second = (row.format(size) for row in pair)
        change = compare(study, first, second)
        if change is not None:
            changes[budget, size, f"{first} / {second}"] = change
    return changes


def correct_table(changes: Iterable[Change]) -> Floats:
    """The p-value of each change of a table, corrected together with the others by Holm."""
    p_values = [compute_two_sided_p(change.ratios, change.shared) for change in changes]
    return correct_by_holm(np.array(p_values))


def compute_two_sided_p(changes: Floats, shared: float = 0.0) -> float:
    """The p-value of "the mean of `changes` (seeds,) is not 0"."""
    above, below = compute_one_sided_p(changes, shared)
    return min(1.0, 2 * float(min(above, below)))


def compute_sameness_p(changes: Floats, bound: float, shared: float = 0.0) -> float:
    """The p-value of "the mean of `changes` (seeds,) lies within plus or minus `bound`".

    It is the larger p-value of two one-sided tests (Schuirmann 1987).
    """
    above, _ = compute_one_sided_p(changes + bound, shared)
    _, below = compute_one_sided_p(changes - bound, shared)
    return float(max(above, below))


def name_change(mean: float, p: float, p_of_sameness: float, within: str) -> str:
    """The verdict on a change: lower, higher, within some bound, or not decided.

    `p` is the p-value of a difference, `p_of_sameness` that of a change within the bound. Both may
    be corrected. `within` names the bound, such as "3%". If both are significant, the verdict is
    lower or higher.
    """
    if p <= ERRORS:
        return "lower" if mean < 0 else "higher"
    if p_of_sameness <= ERRORS:
        return f"within {within}"
    return "not decided"


def open_suites(archives: Archives, suites: Iterable[str]) -> dict[str, Study]:
    """The suites that have records, as studies, by name, with what was added to them."""
    studies = {suite: open_suite(archives, suite) for suite in suites}
    return {suite: study for suite, study in studies.items() if not study.ends.empty}


def open_suite(archives: Archives, suite: str) -> Study:
    with tempfile.TemporaryDirectory() as scratch:
        records = lay_out(archives, Path(scratch), [suite]).root
        study = run_all.open_study(str(HERE / f"{suite}.toml"), str(records))
    runs = list(study.runs)
    if suite in ADDED:
        runs += _move(open_suite(archives, ADDED[suite]).runs, suite)
    if suite in RENEWED and _has_records(archives, RENEWED[suite]):
        renewed = _move(open_suite(archives, RENEWED[suite]).runs, suite)
        control = [run for run in renewed if run.row == CONTROL]
        renewed = [run for run in renewed if run.row != CONTROL]
        rows = {run.row for run in renewed if run.finished == len(run.domains)}
        runs = [_rename(run, OLD) if run.row in rows else run for run in runs]
        runs += [run for run in renewed if run.row in rows]
        runs += [_rename(run, "{}, trained again") for run in control]
    return replace(study, runs=runs)


def _has_records(archives: Archives, suite: str) -> bool:
    return any(path.name.startswith(f"{suite}-s") for path in archives)


def _move(runs: Iterable[RunRecords], suite: str) -> list[RunRecords]:
    """The runs as those of another suite."""
    return [replace(run, line=structs.replace(run.line, suite=suite)) for run in runs]


def _rename(run: RunRecords, form: str) -> RunRecords:
    return replace(run, line=structs.replace(run.line, row=form.format(run.row)))


def main() -> None:
    archives = read_archives(HERE)
    for title, (pairs, suites) in TABLES.items():
        studies = {suites[suite]: study for suite, study in open_suites(archives, suites).items()}
        rows = [HEADS, [":--"] * 3 + ["--:"] * 4 + [":--"], *compare_rows(pairs, studies)]
        print(f"\n{title}\n\n" + "\n".join(f"| {' | '.join(row)} |" for row in rows))


if __name__ == "__main__":
    main()
