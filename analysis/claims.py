"""The paper's claims, as claims.toml lists them.

`analysis.verdicts` compares each claim with a study's runs and with the paper's own numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

ZERO = "0"  # stands for a row whose values are all zero
PAPER = ("Naive", "EWC", "MAS", "A-GEM", "ER", "Logit-KD", "PNN", "ELLE")


@dataclass(frozen=True)
class Claim:
    """Each of `rows` is better than each of `than` (empty: than all other methods of the paper).

    `table`: the table with the paper's numbers. `metric`: a key of `analysis.metrics.METRICS`.
    `stages`: after the "last" stage, or after "each" stage from the second on. `columns`: on the
    "average" of the tasks, or on "each" task. `by`: better by more than this amount, or if it is
    negative, worse by less than its absolute value. `within`: instead of `by`, the same up to this
    amount.
    """

    topic: str
    text: str
    rows: tuple[str, ...]
    than: tuple[str, ...] = ()
    table: str = "main_pretraining"
    metric: str = "AP"
    stages: Literal["last", "each"] = "last"
    columns: Literal["average", "each"] = "average"
    by: float = 0.0
    within: float | None = None


def _read_claims() -> tuple[Claim, ...]:
    text = Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")
    return msgspec.toml.decode(text, type=dict[str, tuple[Claim, ...]])["claims"]


CLAIMS = _read_claims()
