"""ELLE, paced: it has two phases and grows."""

from dataclasses import dataclass

from methods.elle import ELLE
from methods.paced import Paced


@dataclass
class PacedELLE(Paced, ELLE):
    title = "Paced ELLE"

    gate: str = ""
    log: str = ""
