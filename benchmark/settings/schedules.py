"""Schedules of the learning rate, with all differences between them.

A schedule is a sequence of pieces, each of which leads to a share of the peak rate. A suite and a
task name one of `SCHEDULES`, which begin with a warm-up. A method may also give a phase its own
`Schedule`.
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
FLOOR = 0.1  # the share of the peak rate at which "cosine" ends (Ibrahim et al. 2024)
# the share at the end in which "wsd" decays (Hägele et al. 2024, arXiv 2405.18392: 10 to 20%)
DECAY = 0.2


@dataclass(frozen=True)
class Piece:
    """A part of a schedule, which begins where the part before ends, or at `Schedule.begin`.

    With x the share of the piece that is over, and the rate going from a to b: "linear" is a (1 -
    x) + b x, "cosine" b + (a - b) / 2 (1 + cos(pi x)), "exponential" a (b / a)^x. "inverse_sqrt"
    has no `end`: it is a sqrt(s / t) when the share t of the whole is spent, if the piece begins at
    the share s.
    """

    until: float  # share of the whole that is spent when the piece ends
    end: float | None  # share of the peak rate when the piece ends
    curve: PieceCurve = "linear"

    def at(self, spent: float, start: float, begin: float) -> float:
        """The share of the peak rate when the share `spent` of the whole is spent.

        The piece began when the share `start` was spent, with the share `begin` of the peak rate.
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

    A piece of no length is a jump to its `end`. A schedule over the stream tells the method the
    stream's length, as `Stage.stream_info` does, so the keys of its stages depend on that length.
    Raises UserError for invalid pieces.
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


# name -> the pieces after the warm-up, given the share that warms up
SCHEDULES: dict[ScheduleName, Callable[[float], tuple[Piece, ...]]] = {
    "linear": lambda warmup: (Piece(1.0, 0.0),),  # to 0 (the paper's BERT)
    "inverse_sqrt": lambda warmup: (Piece(1.0, None, "inverse_sqrt"),),  # the paper's GPT
    "cosine": lambda warmup: (Piece(1.0, FLOOR, "cosine"),),
    "wsd": lambda warmup: (Piece(max(warmup, 1 - DECAY), 1.0), Piece(1.0, 0.0)),
    "constant": lambda warmup: (Piece(1.0, 1.0),),
}


def find_schedule(schedule: Schedule | ScheduleName, warmup: float) -> Schedule:
    """The schedule with that name and share of warm-up, or `schedule` itself if it is one."""
    if isinstance(schedule, Schedule):
        return schedule
    if schedule not in SCHEDULES:
        raise UserError(
            f"no schedule {schedule!r}: choose from {', '.join(SCHEDULES)}, or give a Schedule"
        )
    return Schedule((Piece(warmup, 1.0), *SCHEDULES[schedule](warmup)))
