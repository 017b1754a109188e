"""Read the plan's claims from the records: `PYTHONPATH=. python results/when_growing_pays/claims.py`.

Each compares final AP after CS, paired by seed: the mean of the logarithm of the ratio, its 95% interval (Student's t),
and the two-sided p-value of docs/statistics.md. The five claims of `small.toml` are corrected together (Holm), and
so are the three of `orders.toml`; that of `less_time.toml` stands alone. A claim is held, or refuted, at 5%.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

import run_all
from analysis.inference import ERRORS, fewest_seeds, holm, interval, one_sided
from benchmark.jobs.results import opened

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
}


def read(suite: str, runs: Path) -> list[str]:
    """A row of a Markdown table for each claim of a suite: the first is said to end below the second."""
    ends = run_all.open_suite(str(HERE / f"{suite}.toml"), str(runs)).evaluations.query("is_end and stage == 4")
    ap = ends.pivot(index="seed", columns="row", values="ap")
    ap = ap.reindex(columns=list({row: 0 for claim in CLAIMS[suite] for row in claim}))  # some may not have run
    ratios = [np.log(ap[one] / ap[other]).dropna() for one, other in CLAIMS[suite]]
    sides = [one_sided(ratio.to_numpy()[:, None]) for ratio in ratios]
    p = holm(np.array([2 * min(above[0], below[0]) for above, below in sides]))
    rows, needed = [], fewest_seeds(2 * len(p))
    for (one, other), ratio, corrected in zip(CLAIMS[suite], ratios, p, strict=True):
        effect, verdict = "not run yet", ""
        if len(ratio) > 1:
            mean, low, high = np.expm1([ratio.mean(), *interval(ratio.to_numpy())])
            effect = f"{mean:+.1%} ({low:+.1%} to {high:+.1%})".replace("-", "−")
            decided = "held" if mean < 0 else "refuted"
            few = f"; with so few seeds nothing is (from {needed})" if len(ratio) < needed else ""
            verdict = decided if corrected <= ERRORS else f"undecided{few}"
        where = ", other orders" if suite == "orders" else ""
        rows.append(f"| {one} below {other}{where} | {effect} | {len(ratio)} | {corrected:.2g} | {verdict} |")
    return rows


def main() -> None:
    with opened(str(HERE)) as records:
        rows = [row for suite in CLAIMS for row in read(suite, records.folder)]
    print("| Claim | AP, change (95% interval) | Seeds | p | Verdict |\n| :-- | --: | --: | --: | :-- |")
    print("\n".join(rows))


if __name__ == "__main__":
    main()
