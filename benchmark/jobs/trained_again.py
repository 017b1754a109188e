"""What a stage came to that was trained twice: the same weights, or weights that differ in
rounding, or others.

Sums of another CPU, or of another number of threads, are rounded in another order. Weights then
differ in their last bits, and perplexities in digits that no table shows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from benchmark import records

SAME = 1e-6  # relative difference of perplexities that the same weights may have
ROUNDING = 1e-4  # and those that differ in rounding


@dataclass(frozen=True)
class Training:
    """What a stage came to, and on what machine."""

    machine: str
    weights: str
    perplexities: dict[str, float | None]  # by text and step, in the order of steps


@dataclass(frozen=True)
class Comparison:
    """How a stage that was trained twice differs."""

    grade: Literal["same", "rounding", "other"]
    outcome: str  # in words


def compare(here: Training, recorded: Training) -> Comparison:
    """Compare weights, and where these are others the perplexities."""
    if here.weights == recorded.weights:
        return Comparison("same", "the same weights")
    ends = [list(training.perplexities)[-1:] for training in (here, recorded)]
    if ends[0] != ends[1]:
        difference = f"the last perplexity is {' '.join(ends[0])}, recorded is {' '.join(ends[1])}"
    else:
        difference = find_difference(recorded.perplexities, here.perplexities, ROUNDING)
    if difference:
        return Comparison(
            "other",
            f"came to weights {here.weights} on {here.machine}, recorded are {recorded.weights} on "
            f"{recorded.machine}; {difference}",
        )
    return Comparison(
        "rounding",
        f"weights differ in rounding, perplexities agree to {ROUNDING:.2%} (trained on "
        f"{here.machine}, recorded on "
        f"{recorded.machine})",
    )


def read_training(lines: Sequence[records.LineOfStage]) -> Training:
    """What the records of a finished stage say of it."""
    begun, done = (
        records.find_last(lines, records.StageLine),
        records.find_last(lines, records.DoneLine),
    )
    machine = (
        f"{describe_machine(begun)}, threads: {begun.provenance.hardware.threads}"
        if begun
        else "no machine"
    )
    return Training(
        machine=machine,
        weights=done.weights if done else "",
        perplexities=list_perplexities(lines),
    )


def describe_machine(stage: records.StageLine) -> str:
    """The machine of a stage, in words."""
    hardware = stage.provenance.hardware
    return f"{hardware.device} ({', '.join(filter(None, (hardware.cpu, hardware.instructions)))})"


def list_perplexities(lines: Sequence[records.LineOfStage]) -> dict[str, float | None]:
    """The perplexities of a stage, by what they are of."""
    measured: dict[str, float | None] = {}
    for line in records.select_kind(lines, records.EvaluationLine):
        place = f"after step {line.step} of {line.phase}"
        measured |= {f"{name} {place}": value for name, value in line.perplexity.items()}
        measured |= {
            f"{name} without its copies {place}": value
            for name, value in line.without_copies.items()
        }
    return measured


def find_difference(
    there: Mapping[str, float | None], here: Mapping[str, float | None], tolerance: float
) -> str:
    """The first perplexity that is another when measured again, in words; empty where none is."""
    for place in (place for place in there if place in here):
        was, now = there[place] or math.inf, here[place] or math.inf
        if not math.isclose(was, now, rel_tol=tolerance):
            return f"perplexity {was:g} is recorded on {place}, and {now:g} measured"
    return ""
