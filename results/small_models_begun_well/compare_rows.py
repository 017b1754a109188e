"""Print the map's comparisons from its records: `PYTHONPATH=. python results/small_models_begun_well/compare_rows.py`.

Each compares AP after the last domain, paired by seed: the geometric mean of the ratio, its 95% interval (Student's t)
and the two-sided p-value of docs/statistics.md, corrected together with all others that have run (Holm).
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

import run_all
from analysis.inference import ERRORS, holm, interval, one_sided
from benchmark.jobs.study import open_records

HERE = Path(__file__).parent
BUDGETS = {"map_sixteenth": "C/16", "map_quarter": "C/4", "map_full": "C"}
SIZES = ("57k", "113k", "237k")  # parameters of the last model
PAIRS = (
    ("ELLE (exact), to {}", "ER, {} from the start"),
    ("ELLE, to {}", "ER, {} from the start"),
    ("ELLE (exact), to {}", "ELLE, to {}"),
)
HEADS = "Budget", "Last size", "Compared", "AP of both", "Change (95% interval)", "Seeds", "p", "p < 0.05"


def read_final_ap(suite: str, records: Path) -> pd.DataFrame:
    """AP after the last domain, a line a seed, a column a row."""
    ends = run_all.open_suite(str(HERE / f"{suite}.toml"), str(records)).evaluations.query("is_end and stage == 4")
    ap: pd.DataFrame = ends.pivot(index="seed", columns="row", values="ap")
    return ap


def compare_rows(aps: dict[str, pd.DataFrame]) -> list[list[str]]:
    """The cells of the table's lines: a line for each pair of rows that at least two seeds of a suite have."""
    lines, p_values = [], []
    for suite, ap in aps.items():
        for size in SIZES:
            for first, second in ((one.format(size), other.format(size)) for one, other in PAIRS):
                both = ap.reindex(columns=[first, second]).dropna()
                if len(both) < 2:
                    continue
                ratio = np.log((both[first] / both[second]).to_numpy())
                above, below = one_sided(ratio[:, None])
                p_values.append(2 * min(above[0], below[0]))
                mean, low, high = np.expm1([ratio.mean(), *interval(ratio)])
                values = " and ".join(f"{value:.1f}" for value in np.exp(np.log(both).mean()))
                change = f"{mean:+.1%} ({low:+.1%} to {high:+.1%})".replace("-", "−")
                lines.append([BUDGETS[suite], size, f"{first} / {second}", values, change, str(len(both))])
    corrected = holm(np.array(p_values))
    return [[*line, f"{p:.2g}", "yes" if p < ERRORS else ""] for line, p in zip(lines, corrected, strict=True)]


def main() -> None:
    with open_records(str(HERE)) as records:
        aps = {suite: read_final_ap(suite, records) for suite in BUDGETS if (records / "suites" / suite).is_dir()}
    rows = [HEADS, [":--"] * 3 + ["--:"] * 4 + [":--"], *compare_rows(aps)]
    print("\n".join(f"| {' | '.join(row)} |" for row in rows))


if __name__ == "__main__":
    main()
