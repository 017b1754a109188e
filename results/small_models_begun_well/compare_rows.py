"""Print comparisons from the study's records: `PYTHONPATH=. python results/small_models_begun_well/compare_rows.py`.

Each compares AP after the last domain, paired by seed: the geometric mean of the ratio, its 95% interval, and the
two-sided p-value of docs/statistics.md, corrected together with all others of its table that have run (Holm). Where the
losses of validation documents are recorded, the interval holds the choice of them too.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

import run_all
from analysis.inference import ERRORS, holm, interval, one_sided
from analysis.study import Study
from benchmark.jobs.study import open_records

HERE = Path(__file__).parent
TABLES = {  # corrected together: suites, and what they are called
    "The map": {"map_sixteenth": "C/16", "map_quarter": "C/4", "map_full": "C", "map_four": "4C"},
    "One million parameters": {"million": "1e14 FLOPs"},
    "Muon": {"muon_quarter": "C/4"},
    "The main table": {"main_quarter": "C/4"},
    "The main table, another order for each seed": {"main_orders": "C/4"},
}
SIZES = ("57k", "113k", "237k", "1M")  # parameters of the last model
PAIRS = (
    ("ELLE (exact), to {}", "ER, {} from the start"),
    ("ELLE, to {}", "ER, {} from the start"),
    ("ELLE (exact), to {}", "ELLE, to {}"),
)
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
HEADS = "Budget", "Last size", "Compared", "AP of both", "Change (95% interval)", "Seeds", "p", "p < 0.05"


def compare_rows(studies: Mapping[str, Study]) -> list[list[str]]:
    """The cells of a table's lines: a line for each pair of rows that at least two seeds of a suite have."""
    lines, p_values = [], []
    for budget, study in studies.items():
        last = study.ends["stage"].max()
        ap = study.ends[study.ends["stage"] == last].pivot(index="seed", columns="row", values="ap")
        of_sizes = [(size, *(row.format(size) for row in pair)) for size in SIZES for pair in PAIRS]
        for size, first, second in (*of_sizes, *(("57k", *pair) for pair in OF_57K)):
            both = ap.reindex(columns=[first, second]).dropna()
            if len(both) < 2:
                continue
            ratio = np.log((both[first] / both[second]).to_numpy())
            above, below = one_sided(ratio[:, None])
            p_values.append(2 * min(above[0], below[0]))
            shared = study.text_variance(study.suites[0], first, second, last)
            mean, low, high = np.expm1([ratio.mean(), *interval(ratio, shared)])
            values = " and ".join(f"{value:.1f}" for value in np.exp(np.log(both).mean()))
            change = f"{mean:+.1%} ({low:+.1%} to {high:+.1%})".replace("-", "−")
            lines.append([budget, size, f"{first} / {second}", values, change, str(len(both))])
    corrected = holm(np.array(p_values))
    return [[*line, f"{p:.2g}", "yes" if p < ERRORS else ""] for line, p in zip(lines, corrected, strict=True)]


def main() -> None:
    with open_records(str(HERE)) as records:
        for title, suites in TABLES.items():
            there = {budget: suite for suite, budget in suites.items() if (records / "suites" / suite).is_dir()}
            opened = {
                budget: run_all.open_study(str(HERE / f"{suite}.toml"), str(records)) for budget, suite in there.items()
            }
            rows = [
                HEADS,
                [":--"] * 3 + ["--:"] * 4 + [":--"],
                *compare_rows(opened),
            ]
            print(f"\n{title}\n\n" + "\n".join(f"| {' | '.join(row)} |" for row in rows))


if __name__ == "__main__":
    main()
