"""Print what the claims of plan.md on small trials for large decisions rest on, from the records:
`PYTHONPATH=. python results/open_text/compare_sizes.py`.

Final APs are geometric means over seeds. `size_*.toml` are the untuned rows, `tuned_*.toml` the
tuned ones. A suite without records is left out. A row is named if `rates_240k.toml` found a rate
with which it ends more than 3% lower than with the carried one. The order from 57 to 240 thousand
parameters is printed with the named rows and without them.
"""

from __future__ import annotations

import math
from itertools import combinations
from pathlib import Path

import numpy as np
import pandas as pd

import run_all
from analysis.study import Study

HERE = Path(__file__).parent
SIZES = ("24k", "57k", "240k")
GROWING = ("PNN", "ELLE", "ELLE (exact)")
RATIOS = {
    "ELLE over ER": ("ELLE", "ER"),
    "exact over final size": ("ELLE (exact)", "ER (final size)"),
}
APART = 0.03  # below that, methods or rates count as equally good
RATES = "rates_240k"
OTHER_RATES = (", half", ", twice")  # ends of the names of its rows


def main() -> None:
    studies = read_studies()
    named = name_rows(studies[RATES]) if RATES in studies else []
    for kind in ("tuned", "size"):
        means = {}
        for size in SIZES:
            study = studies.get(f"{kind}_{size}")
            if study is None:
                continue
            means[size] = mean_over_seeds(study)
            seeds = study.ends["seed"].nunique()
            print(f"{kind}_{size}, {seeds} seeds:", means[size].sort_values().round(1).to_dict())
        for small, large in combinations(means, 2):
            compare_orders(f"{kind}, {small} to {large}", means[small], means[large])
        if named and "240k" in means:
            small_means = means["57k"].drop(named)
            large_means = means["240k"].drop(named)
            compare_orders(f"{kind}, 57k to 240k, without the named", small_means, large_means)
    compare_growth(studies)


def read_studies() -> dict[str, Study]:
    """The studies of all suites with records, by name."""
    studies = {}
    names = [f"{kind}_{size}" for kind in ("tuned", "size") for size in SIZES]
    for name in [*names, RATES]:
        if list(HERE.glob(f"records/{name}-s*.tar.gz")):
            studies[name] = run_all.open_study(str(HERE / f"{name}.toml"), str(HERE))
    return studies


def name_rows(study: Study) -> list[str]:
    """Print each row's final AP with its three rates, and return the rows to name."""
    means = mean_over_seeds(study)
    named = []
    for row in means.index:
        if row.endswith(OTHER_RATES):
            continue
        rates = [row, *(f"{row}{end}" for end in OTHER_RATES)]
        aps = means[rates]
        change = aps.min() / aps[row] - 1
        print(f"{aps.idxmin()} is the best rate, {change:+.1%}:", aps.round(1).to_dict())
        if change < -APART:
            named.append(row)
    print(f"named: {', '.join(named)}")
    return named


def select_last(study: Study, column: str) -> pd.DataFrame:
    """A number at the end of the stream, by seed and row."""
    last = study.ends[study.ends["stage"] == study.ends["stage"].max()]
    numbers: pd.DataFrame = last.pivot(index="seed", columns="row", values=column)
    return numbers


def mean_over_seeds(study: Study) -> pd.Series[float]:
    """The final AP of each row."""
    means: pd.Series[float] = np.exp(np.log(select_last(study, "ap")).mean())
    return means


def compare_orders(title: str, before: pd.Series[float], after: pd.Series[float]) -> None:
    """Print how the order of rows at one size predicts that at another (claims 1 to 3)."""
    rows = before.index.intersection(after.index)
    before = before[rows]
    after = after[rows]
    tau = before.corr(after, method="kendall")
    print(f"{title}: Kendall's tau is {tau:.2f} over {len(rows)} rows")
    for one, other in combinations(rows, 2):
        change = before[one] / before[other] - 1
        later_change = after[one] / after[other] - 1
        if change * later_change < 0:
            apart = "apart" if abs(math.log1p(change)) >= math.log1p(APART) else "close"
            print(f"  turned, {apart}: {one} over {other} {change:+.1%}, then {later_change:+.1%}")
    staying = [row for row in rows if row not in GROWING]
    for words, choices in {"all rows": rows, "rows that do not grow": staying}.items():
        choice = before[choices].idxmin()
        best = after[choices].idxmin()
        regret = after[choice] / after[best] - 1
        print(f"  {words}: {choice} is chosen, {best} is best, regret {regret:.1%}")


def compare_growth(studies: dict[str, Study]) -> None:
    """Print Naive's forgetting, and what growing changes, by size (claims 4 and 5)."""
    ratios: dict[str, list[float]] = {name: [] for name in RATIOS}
    parameters = []
    for size in SIZES:
        study = studies[f"tuned_{size}"]
        forgetting = select_last(study, "log_ap_plus")["Naive"].mean()
        print(f"{size}: Naive forgets {forgetting:.2f} nats")
        large = study.stages[study.stages["row"] == "ER (final size)"]
        parameters.append(math.log(large["parameters"].max()))
        means = mean_over_seeds(study)
        aps = select_last(study, "ap")
        for name, (one, other) in RATIOS.items():
            ratios[name].append(means[one] / means[other] - 1)
            seeds = ", ".join(f"{value:+.1%}" for value in aps[one] / aps[other] - 1)
            print(f"  {name}: {ratios[name][-1]:+.1%} ({seeds})")
    for name, values in ratios.items():
        slope, intercept = np.polyfit(parameters[:2], values[:2], 1)
        predicted = slope * parameters[2] + intercept
        print(
            f"{name}: a line through smaller sizes predicts {predicted:+.1%}, not {values[2]:+.1%}"
        )


if __name__ == "__main__":
    main()
