"""Schedules of the learning rate. All differences between them are here; whoever needs a rate asks.

A schedule is a value: pieces, one after the other, each of which leads to a share of the peak rate.
A suite and a task name one of `SCHEDULES`, which begin with their warm-up; a method may also give a
`Schedule` of its own to a phase.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

from benchmark.errors import UserError

ScheduleName = Literal["linear", "inverse_sqrt", "cosine", "wsd", "constant"]
PieceCurve = Literal["linear", "cosine", "inverse_sqrt", "exponential"]
Extent = Literal["phase", "stage", "stream"]
FLOOR = 0.1  # where "cosine" ends (Ibrahim et al. 2024)
# of the whole, the last part of "wsd" (Hägele et al. 2024, arXiv 2405.18392: 10 to 20%)
DECAY = 0.2


@dataclass(frozen=True)
class Piece:
    """A part of a schedule, from where the one before it ends, or from `Schedule.begin`.

    With x the share of the piece that is over, and the rate going from a to b: "linear" is a (1 -
    x) + b x, "cosine" b + (a - b) / 2 (1 + cos(pi x)), "exponential" a (b / a)^x. "inverse_sqrt" is
    a sqrt(s / t) at the share t of the whole, where the piece begins at the share s; it has no
    `end` of its own.
    """

    until: float  # share of the whole that is spent when the piece ends
    end: float | None  # share of the peak rate then
    curve: PieceCurve = "linear"

    def at(self, spent: float, start: float, begin: float) -> float:
        """The level when the share `spent` of the whole is spent.

        The piece began at the share `start`, with the level `begin`.
        """
        if self.end is None:
            if start:
                return begin * math.sqrt(start / spent)
            return begin
        length = self.until - start
        if self.curve == "cosine":
            cosine = math.cos(math.pi * (spent - start) / length)
            return self.end + (begin - self.end) / 2 * (1 + cosine)
        if self.curve == "exponential":
            return float(begin * (self.end / begin) ** ((spent - start) / length))
        return (begin * (self.until - spent) + self.end * (spent - start)) / length


@dataclass(frozen=True)
class Schedule:
    """The share of the peak rate, by the share that is spent of a phase, a stage or the stream.

    Pieces of no length are left out. One over the stream tells the method how long that is, as
    `Stage.stream_info` does; the keys of its stages depend on it. Raises UserError for pieces that
    are none.
    """

    pieces: tuple[Piece, ...]
    over: Extent = "phase"
    begin: float = 0.0  # share of the peak rate at the very beginning

    def __post_init__(self) -> None:
        ends = [0.0, *(piece.until for piece in self.pieces)]
        if not self.pieces or ends != sorted(ends) or ends[-1] != 1:
            raise UserError(
                f"a schedule's pieces end at {ends[1:]} of the whole: let these rise, the last one "
                "be 1"
            )
        if self.over not in get_args(Extent):
            raise UserError(
                f"a schedule over {self.over!r}: choose from {', '.join(get_args(Extent))}"
            )
        for piece in self.pieces:
            if piece.curve not in get_args(PieceCurve):
                raise UserError(
                    f"a piece's curve is {piece.curve!r}: choose from "
                    f"{', '.join(get_args(PieceCurve))}"
                )
            if (piece.end is None) != (piece.curve == "inverse_sqrt"):
                raise UserError(
                    f"{piece}: all curves but inverse_sqrt have an end: give one, a share of the "
                    "peak rate"
                )

    def at(self, spent: float) -> float:
        """The share of the peak rate when the share `spent` of the whole is spent."""
        spent = min(max(spent, 0.0), 1.0)
        start = 0.0
        level = self.begin
        for piece in self.pieces:
            if piece.until > start:
                if spent < piece.until or piece.until == 1:
                    return piece.at(spent, start, level)
                level = piece.at(piece.until, start, level)
                start = piece.until
            elif piece.end is not None:
                level = piece.end
        return level


# their pieces after the share that warms up
SCHEDULES: dict[ScheduleName, Callable[[float], tuple[Piece, ...]]] = {
    "linear": lambda warmup: (Piece(1.0, 0.0),),  # to 0 (the paper's BERT)
    "inverse_sqrt": lambda warmup: (Piece(1.0, None, "inverse_sqrt"),),  # the paper's GPT
    "cosine": lambda warmup: (Piece(1.0, FLOOR, "cosine"),),
    "wsd": lambda warmup: (Piece(max(warmup, 1 - DECAY), 1.0), Piece(1.0, 0.0)),
    "constant": lambda warmup: (Piece(1.0, 1.0),),
}


def find_schedule(schedule: Schedule | ScheduleName, warmup: float) -> Schedule:
    """The schedule of that name with that share of warm-up; a schedule as a value is itself."""
    if isinstance(schedule, Schedule):
        return schedule
    if schedule not in SCHEDULES:
        raise UserError(
            f"no schedule {schedule!r}: choose from {', '.join(SCHEDULES)}, or give a Schedule"
        )
    return Schedule((Piece(warmup, 1.0), *SCHEDULES[schedule](warmup)))
