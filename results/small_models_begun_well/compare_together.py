"""Print what all comparisons of `compare_rows.py` say together: `PYTHONPATH=. python
results/small_models_begun_well/compare_together.py`.

`compare_rows.py` corrects each table by itself. Here Holm corrects all tables together. Six seeds
have a least p-value (docs/statistics.md), with which nothing is significant among so many. So the
p-values here are of plain t tests.

Then Kendall's tau of the order of methods in the main table: between budgets, and between orders of
domains.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from compare_rows import (
    HERE,
    OLD,
    SIZES,
    TABLES,
    Change,
    correct_table,
    list_changes,
    open_suite,
    open_suites,
)
from scipy import stats

from analysis.inference import ERRORS, correct_by_holm
from benchmark.ledger.archive import Archives, read_archives

ORDERS = {
    "budgets": ("main_full", "main_quarter"),
    "orders of domains, 1.5e12 FLOPs": ("main_full", "main_full_orders"),
    "orders of domains, 3.8e11 FLOPs": ("main_quarter", "main_orders"),
}


def main() -> None:
    archives = read_archives(HERE)
    names = []
    means = []
    plain_p_values = []
    is_significant = []
    for title, (pairs, suites) in TABLES.items():
        studies = {suites[suite]: study for suite, study in open_suites(archives, suites).items()}
        changes = list_changes(pairs, studies)
        for (budget, _, rows), change in changes.items():
            names.append(f"{title}, {budget}, {rows}")
            means.append(change.mean)
            plain_p_values.append(compute_plain_p(change))
        is_significant += [p <= ERRORS for p in correct_table(changes.values())]
    together = correct_by_holm(np.array(plain_p_values))
    print(f"{len(names)} comparisons in {len(TABLES)} tables")
    print(f"significant within their table: {sum(is_significant)}, of which not together:")
    for name, mean, p, significant in zip(names, means, together, is_significant, strict=True):
        if significant and p > ERRORS:
            print(f"- {name}: {mean:+.1%}, p = {p:.2g}")
    for title, (first, second) in ORDERS.items():
        order = list_final_perplexities(archives, first)
        other_order = list_final_perplexities(archives, second)
        methods = [row for row in order.index if row in other_order.index]
        tau = stats.kendalltau(order[methods], other_order[methods]).statistic
        print(f"Kendall's tau of {len(methods)} methods between {title}: {tau:.2f}")


def compute_plain_p(change: Change) -> float:
    """The two-sided p-value of a t test, with Satterthwaite's degrees of freedom."""
    count = len(change.ratios)
    of_seeds = float(change.ratios.var(ddof=1)) / count
    variance = of_seeds + change.shared
    degrees = (count - 1) * (variance / of_seeds) ** 2
    return float(2 * stats.t.sf(abs(change.ratios.mean()) / np.sqrt(variance), degrees))


def list_final_perplexities(archives: Archives, suite: str) -> pd.Series:
    """The average perplexity of each method of a main table after the last domain."""
    ends = open_suite(archives, suite).ends
    last = ends[ends["stage"] == ends["stage"].max()]
    of_the_map = [f"to {size}" for size in SIZES]
    is_method = ~last["row"].str.contains("|".join([*of_the_map, OLD.format("")]))
    perplexities: pd.Series = last[is_method].groupby("row")["ap"].mean()
    return perplexities


if __name__ == "__main__":
    main()
