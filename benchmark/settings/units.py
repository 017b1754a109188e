"""Units of a budget, with all differences between them.

Every method gets the same amount of the budget's unit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Work:
    """A charge, over all processes: a step, or what a method does before the first one."""

    steps: int = 0
    tokens: int = 0  # of text in the rows that are trained on
    flops: float = 0.0
    machine_seconds: float = 0.0  # seconds on the machine that the budget names


@dataclass(frozen=True)
class Unit:
    """One of the units that a suite can name, see `UNITS`."""

    name: str  # in suites and in records
    label: str  # of axes
    meaning: str  # for docs/suite_keys.md
    cost: Callable[[Work], float] | None  # of some work. None: wall time, which the clock measures
    in_seconds: bool = False  # amounts are written as durations
    by_table: bool = False  # the budget names a table of step times
    full_name: str = ""  # in texts that must say whose seconds they are

    @property
    def is_wall_time(self) -> bool:
        """Whether runs are comparable only if each ran alone, on the same kind of machine."""
        return self.cost is None

    def format(self, amount: float, gpu_seconds: float = 0) -> str:
        """An amount for people: `5,400 s (1:30:00)`, `99.5 days in all`, `5.4e+14 FLOPs`."""
        if self.name == "flops":
            return f"{amount:.3g} FLOPs"
        if not self.in_seconds:
            return f"{amount:,.0f} {self.name}"
        hours = f", {gpu_seconds / 3600:,.1f} GPU-hours" if gpu_seconds else ""
        machine = " of the reference machine" if self.by_table else ""
        if amount >= 2 * 86_400:
            return f"{format_duration(amount)} in all{machine}{hours}"
        return f"{amount:,.0f} s ({format_duration(amount)}{hours}){machine}"


UNITS = {
    unit.name: unit
    for unit in (
        Unit(
            "seconds",
            "Measured train wall time (s)",
            "train wall time (the paper's)",
            None,
            in_seconds=True,
            full_name="measured seconds",
        ),
        Unit(
            "steps",
            "Training steps",
            "optimizer steps, whatever a method does in one",
            lambda work: work.steps,
        ),
        Unit(
            "tokens",
            "Training tokens",
            "text tokens of all sequences that a method is given, also A-GEM's memory batch",
            lambda work: work.tokens,
        ),
        Unit(
            "flops",
            "Training FLOPs",
            "floating-point operations of all matrix products",
            lambda work: work.flops,
        ),
        Unit(
            "reference",
            "Train wall time on the reference machine (s)",
            "steps times the time per step in the file of `budget.reference`",
            lambda work: work.machine_seconds,
            in_seconds=True,
            by_table=True,
            full_name="seconds of the reference machine",
        ),
    )
}


def list_recorded_units() -> list[str]:
    """The units in which every stage records what it has spent, whatever its budget's unit."""
    return [name for name, unit in UNITS.items() if not unit.by_table]


def format_duration(seconds: float) -> str:
    """Seconds as people write them: `99.5 days`, `1:02:03`, `2:03`."""
    if seconds >= 2 * 86_400:
        return f"{seconds / 86_400:,.1f} days"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}:{minutes:02}:{rest:02}"
    return f"{minutes}:{rest:02}"
