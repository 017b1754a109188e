"""The result of a suite's runs in three sentences: the best row, what growth gained, what was forgotten."""

from __future__ import annotations

import math

import numpy as np

from analysis import inference
from analysis.figures import short
from analysis.metrics import AP
from analysis.study import Study

GROWN = 1.05  # times the parameters: prompts and adapters are less


def summarize(study: Study, suite: str) -> list[str]:
    """Sentences on the rows that get one domain after the other, have ended, and had the text of most.

    Growth is the best row that grows beside the best that begins as small and stays so, paired by seed.
    """
    last, apart = len(study.of(suite)[0].domains) - 1, study.never_best(suite) | study.pooled
    ends = study.ends[(study.ends["suite"] == suite) & (study.ends["stage"] == last) & ~study.ends["row"].isin(apart)]
    if ends.empty:
        return []
    ap, lost = ends.groupby("row")["ap"].mean(), ends.groupby("row")["ap_plus"].mean().dropna()
    best, seeds = str(ap.idxmin()), ends.groupby("row")["seed"].nunique()
    over = "one seed" if seeds[best] == 1 else f"mean of {seeds[best]} seeds"
    of = ", of the rows that get one domain after the other" if study.pooled else ""
    title = study.stage_titles(suite)[last]
    said = [f"Best: {best} has the lowest AP after {title}, {short(ap[best])} ({over}){of}."]
    sizes = study.stages[study.stages["suite"] == suite].groupby("row")["parameters"].agg(["min", "max"]).loc[ap.index]
    grows = sizes["max"] > GROWN * sizes["min"]
    if grows.any():
        row = ap[grows].idxmin()
        small = ap[~grows & (sizes["max"] < GROWN * sizes["min"][row])]
        if len(small):
            pairs = ends.pivot_table(index="seed", columns="row", values="ap")[[row, small.idxmin()]].dropna()
            ratios = np.log(pairs[row] / pairs[small.idxmin()]).to_numpy()
            low, high = inference.interval(ratios, study.text_variance(suite, row, small.idxmin(), last))
            between = "" if math.isnan(low) else f" (95% interval {AP.show(low)} to {AP.show(high)})"
            change = AP.show(float(ratios.mean())) if len(ratios) else "(no seed in common)"
            said.append(
                f"Growth: {row}, the best row that grows, ends with {change} AP{between} against {small.idxmin()}, the "
                "best that stays small."
            )
    if len(lost) > 1:
        least = " and ".join(lost.index[lost == lost.min()])
        said.append(
            f"Forgotten, by AP⁺: {short(lost[best])} with {best}; least with {least}, {short(lost.min())}, "
            f"and most with {lost.idxmax()}, {short(lost.max())}."
        )
    return said
