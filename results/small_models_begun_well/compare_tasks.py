"""Print the order of rows on tasks: `PYTHONPATH=. python
results/small_models_begun_well/compare_tasks.py`.

See plan.md, "Tasks": means over seeds, and Kendall's tau of the order by AP with each other order,
with the 95% interval of a bootstrap over seeds.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import scipy.stats

import run_all
from analysis.metrics import Floats
from analysis.study import Study, average_by_domain, select_measure

HERE = Path(__file__).parent
SUITE = "main_tasks"
DRAWS = 10_000
ORDERS = {
    "bits per byte": 1,
    "probes": -1,
    "domain of a text": -1,
}  # and what is better: 1: low, as of AP


def measure_rows(study: Study) -> pd.DataFrame:
    """A line each row and seed that has all measures: AP, and the columns of ORDERS, scores in
    percent.
    """
    last = study.ends["stage"].max()
    measures = study.ends[study.ends["stage"] == last].set_index(["row", "seed"])[["ap"]]
    for run in study.runs:
        if run.finished > last:
            bits = [
                select_measure(run.matrix[-1], probe.name, "bits_per_byte")
                for probe in run.line.probes
            ]
            measures.loc[(run.row, run.seed), "bits per byte"] = np.mean(bits)
    scores = average_by_domain(study.scores, ["row", "seed"])
    measures["probes"] = 100 * scores.drop(columns="").mean(axis=1, skipna=False)
    measures["domain of a text"] = 100 * scores[""]
    complete: pd.DataFrame = measures.dropna()
    return complete


def measure_baselines(study: Study) -> pd.DataFrame:
    """The scores of what needs no pre-training, in percent: on whole texts, and on what a row of a
    model holds.
    """
    scores = 100 * average_by_domain(study.baselines, ["name"])
    both: pd.DataFrame = pd.DataFrame(
        {"probes": scores.drop(columns="").mean(axis=1), "domain of a text": scores[""]}
    )
    return both


def agree(ap: Floats, other: Floats) -> tuple[float, float, float]:
    """Kendall's tau of the orders of rows by their means over seeds, with its interval, for values
    (rows, seeds).
    """
    draws = np.random.default_rng(0).integers(ap.shape[1], size=(DRAWS, ap.shape[1]))
    taus = [
        scipy.stats.kendalltau(ap[:, drawn].mean(1), other[:, drawn].mean(1)).statistic
        for drawn in draws
    ]
    tau = scipy.stats.kendalltau(ap.mean(1), other.mean(1)).statistic
    return tau, *np.quantile(taus, [0.025, 0.975])


def main() -> None:
    study = run_all.open_study(str(HERE / f"{SUITE}.toml"), str(HERE))
    measures = measure_rows(study)
    means, deviations = (
        measures.groupby("row").mean().sort_values("ap"),
        measures.groupby("row").std(),
    )
    print(f"| Row | AP | {' | '.join(ORDERS)} |\n| :-- | --: |{' --: |' * len(ORDERS)}")
    for row, (ap, bits, *scores) in zip(means.index, means.to_numpy(), strict=True):
        ap_moves, bits_move, *move = deviations.loc[row]
        cells = [f"{score:.1f} ± {by:.1f}" for score, by in zip(scores, move, strict=True)]
        print(
            f"| {row} | {ap:.1f} ± {ap_moves:.1f} | {bits:.3f} ± {bits_move:.3f} | "
            f"{' | '.join(cells)} |"
        )
    for name, scores in measure_baselines(study).iterrows():
        print(f"| {name} | | | {' | '.join(f'{score:.1f}' for score in scores)} |")
    by_seed = measures.unstack("seed").loc[means.index]
    for name, sign in ORDERS.items():
        tau, low, high = agree(np.log(by_seed["ap"].to_numpy()), sign * by_seed[name].to_numpy())
        print(
            f"Kendall's tau of AP with {name}: {tau:.2f} ({low:.2f} to {high:.2f})".replace(
                "-", "−"
            )
        )


if __name__ == "__main__":
    main()
