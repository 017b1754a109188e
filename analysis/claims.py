"""The paper's claims. They stand in claims.toml.

`analysis.verdicts` holds each against the runs at hand and the paper's own numbers.
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
    """`rows` are better than each row of `than` (empty: than all other methods of the paper).

    `table`: where the paper's numbers are. `metric`: a key of `analysis.metrics.METRICS`. `stages`:
    after the "last", or after "each" from the second on. `columns`: on the "average" of the tasks
    or on "each". `by`: better by more than this much, or where negative, at most this much worse.
    `within`: instead of `by`, the same up to this much.
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
