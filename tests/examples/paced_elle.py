"""`Paced` for ELLE, which grows and has two phases."""

from dataclasses import dataclass

from methods.elle import ELLE
from methods.paced import Paced  # type: ignore[import-not-found]


@dataclass
class PacedELLE(Paced, ELLE):  # type: ignore[misc]
    title = "Paced ELLE"

    gate: str = ""
    log: str = ""
