"""Read the plan's claims from the records: `PYTHONPATH=. python results/when_growing_pays/claims.py`.

Each compares final AP after CS, paired by seed: the mean of the logarithm of the ratio, its 95% interval (Student's t),
and the two-sided p-value of docs/statistics.md. The five claims of `small.toml` are corrected together (Holm), and
so are the three of `orders.toml` and of `faster.toml`; that of `less_time.toml` stands alone. A claim is held, or
refuted, at 5%.

Beside it stands the p-value of the exact sign-flip test, which assumes nothing of the noise but its symmetry, and is
not corrected: with n seeds its least value is 2/2^n, so six seeds give 0.031 at best, and after Holm's correction over
five or three claims none could be below 5%. It decides nothing.

Of `faster.toml` there is an estimate too: the share of its time with which exact growth comes to ELLE's final AP.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

import run_all
from analysis.inference import ERRORS, compute_interval, compute_one_sided_p, correct_by_holm, count_fewest_seeds
from benchmark.jobs.study import open_records

HERE = Path(__file__).parent
CLAIMS = {
    "small": (
        ("ELLE", "ER"),
        ("ELLE (exact)", "ELLE"),
        ("ELLE (exact)", "ER (final size)"),
        ("ELLE", "ER (final size)"),
        ("ER (final size)", "ER"),
    ),
    "less_time": (("ELLE (exact), 70%", "ELLE"),),
    "orders": (("ELLE", "ER"), ("ELLE (exact)", "ELLE"), ("ER (final size)", "ELLE")),
    "faster": (
        ("ELLE (exact), less recovery, 70%", "ELLE"),
        ("ELLE (exact), constant rate, 70%", "ELLE"),
        ("ELLE, more noise, 70%", "ELLE"),
    ),
}
BESIDE = {"faster": ("small", "less_time")}  # suites whose runs of the same seeds a suite is compared with
EXACT = {0.5: "ELLE (exact), 50%", 0.7: "ELLE (exact), 70%", 1.0: "ELLE (exact)"}  # by the share of the time
LARGEST_SHARE = 0.7  # of which the plan says that exact growth needs no more


def compute_sign_flip_p(values: np.ndarray) -> float:
    """The two-sided p-value of "the mean is 0" for values (n,) that are symmetric around it, whatever their shape.

    The share of all 2^n ways to flip their signs whose mean is as far from 0 as theirs. No noise is assumed, so it is
    never below 2 / 2^n: six seeds come to 0.031 at best. 1 without values and where one is not finite.
    """
    if not np.isfinite(values).all():
        return 1.0
    sums = np.zeros(1)
    for value in values:
        sums = np.concatenate([sums + value, sums - value])
    least = abs(values.sum()) - 1e-9 * np.abs(values).sum()  # sums that are equal but for rounding
    return float((np.abs(sums) >= least).mean())


def read_final_ap(suite: str, runs: Path) -> pd.DataFrame:
    """AP after the last domain, a line a seed, a column a row: the suite's own, and those of suites beside it."""
    of_rows: dict[str, pd.Series] = {}
    for name in (suite, *BESIDE.get(suite, ())):
        ends = run_all.open_study(str(HERE / f"{name}.toml"), str(runs)).evaluations.query("is_end and stage == 4")
        for row, aps in ends.pivot(index="seed", columns="row", values="ap").items():
            of_rows.setdefault(str(row), aps)
    ap: pd.DataFrame = pd.DataFrame(of_rows)
    return ap


def read(suite: str, ap: pd.DataFrame) -> list[str]:
    """A row of a Markdown table for each claim of a suite: the first is said to end below the second."""
    ap = ap.reindex(columns=list({row: 0 for claim in CLAIMS[suite] for row in claim}))  # some may not have run
    ratios = [np.log((ap[row] / ap[other]).dropna().to_numpy()) for row, other in CLAIMS[suite]]
    sides = [compute_one_sided_p(ratio[:, None]) for ratio in ratios]
    p = correct_by_holm(np.array([2 * min(above[0], below[0]) for above, below in sides]))
    rows, needed = [], count_fewest_seeds(2 * len(p))
    for (row, other), ratio, corrected in zip(CLAIMS[suite], ratios, p, strict=True):
        effect, verdict = "not run yet", ""
        if len(ratio) > 1:
            mean, low, high = np.expm1([ratio.mean(), *compute_interval(ratio)])
            effect = f"{mean:+.1%} ({low:+.1%} to {high:+.1%})".replace("-", "−")
            decided = "held" if mean < 0 else "refuted"
            few = f"; with so few seeds nothing is (from {needed})" if len(ratio) < needed else ""
            verdict = decided if corrected <= ERRORS else f"undecided{few}"
        where = ", other orders" if suite == "orders" else ""
        numbers = f"{len(ratio)} | {corrected:.2g} | {compute_sign_flip_p(ratio):.2g}"
        rows.append(f"| {row} below {other}{where} | {effect} | {numbers} | {verdict} |")
    return rows


def estimate_share(shares: Sequence[float], ap: Sequence[float], other: float) -> float:
    """The least of these shares of the time, or between them, with which a row comes to another's AP.

    Log AP is linear in the log of the time between the shares. The first one where AP is there already, infinite where
    it does not come there with the last one.
    """
    times, above = np.log(shares), np.log(ap) - math.log(other)
    if above[0] <= 0:
        return shares[0]
    for after in range(1, len(shares)):
        if above[after] <= 0:
            before = after - 1
            way = above[before] / (above[before] - above[after])
            return float(np.exp(times[before] + way * (times[after] - times[before])))
    return math.inf


def estimate(ap: pd.DataFrame) -> str:
    """The plan's share of the time that exact growth needs, as a sentence; empty before two seeds have all runs."""
    seeds = ap.reindex(columns=[*EXACT.values(), "ELLE"]).dropna()
    if len(seeds) < 2:
        return ""
    logs = np.log([estimate_share([*EXACT], row[:-1], row[-1]) for row in seeds.to_numpy()])
    high = math.exp(
        compute_interval(logs)[1]
    )  # no mean and no lower end: a seed that is there with the least share needs less
    verdict = "held" if high <= LARGEST_SHARE else "not held"
    return (
        f"Exact growth comes to ELLE's AP with at most {high:.0%} of its time (upper end of the 95% interval, "
        f"{len(seeds)} seeds); at most {LARGEST_SHARE:.0%}: {verdict}."
    )


def main() -> None:
    with open_records(str(HERE)) as records:
        run = {suite: read_final_ap(suite, records) for suite in CLAIMS if (records / "suites" / suite).is_dir()}
    heads = "Claim", "AP, change (95% interval)", "Seeds", "p", "p, sign flips (2/2^seeds at least)", "Verdict"
    print("| " + " | ".join(heads) + " |\n| :-- | --: | --: | --: | --: | :-- |")
    print("\n".join(row for suite, ap in run.items() for row in read(suite, ap)))
    if "faster" in run and (said := estimate(run["faster"])):
        print(f"\n{said}")


if __name__ == "__main__":
    main()
