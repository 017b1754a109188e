"""ELLE with exact growth: the grown model computes what the old one did.

Take it to grow without a loss of quality at each stage, above all with a start model.

How exact it is depends on the architecture. Pre-LN networks (GPT) keep their function. See
benchmark/models/growth/exact.py (LEMON, Wang et al. 2023).
"""

from dataclasses import dataclass
from typing import Literal

from methods.elle import ELLE


@dataclass
class ELLEExact(ELLE):
    title = "ELLE (exact)"
    group = "controls"

    growth_mode: Literal["fpi", "exact", "aki"] = "exact"  # what sets it apart from ELLE
