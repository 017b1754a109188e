"""What a stage came to that was trained twice.

It came to the same weights, or to weights that differ in rounding, or to others.
Sums of another CPU, or of another number of threads, are rounded in another order. Weights then
differ in their last bits, and perplexities in digits that no table shows.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from benchmark.ledger import records

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
    count: int  # of perplexities that were compared


def compare(training: Training, recorded: Training) -> Comparison:
    """Compare weights, and perplexities as closely as these weights allow."""
    count = len(training.perplexities.keys() & recorded.perplexities.keys())
    is_same = training.weights == recorded.weights
    tolerance = SAME if is_same else ROUNDING
    last = list(training.perplexities)[-1:]
    recorded_last = list(recorded.perplexities)[-1:]
    if last != recorded_last:
        difference = (
            f"the last perplexity is {' '.join(last)}, recorded is {' '.join(recorded_last)}"
        )
    else:
        difference = find_difference(recorded.perplexities, training.perplexities, tolerance)
    if difference:
        return Comparison(
            "other",
            f"came to weights {training.weights} on {training.machine}, recorded are "
            f"{recorded.weights} on {recorded.machine}; {difference}",
            count,
        )
    if is_same:
        return Comparison("same", "the same weights", count)
    return Comparison(
        "rounding",
        f"weights differ in rounding, perplexities agree to {ROUNDING:.2%} (trained on "
        f"{training.machine}, recorded on {recorded.machine})",
        count,
    )


def compare_stages(
    lines: Sequence[records.LineOfStage], recorded: Sequence[records.LineOfStage]
) -> Comparison:
    """Compare a finished stage with one of the same key, on the texts that both measured."""
    starts = [records.find_last(stage, records.StageLine) for stage in (recorded, lines)]
    recorded_texts, texts = (start.texts if start else {} for start in starts)
    # the validation texts that have the same hash in both
    same = [name for name, text in recorded_texts.items() if texts.get(name) == text]
    return compare(read_training(lines, same), read_training(recorded, same))


def read_training(lines: Sequence[records.LineOfStage], texts: Collection[str]) -> Training:
    """What the records of a finished stage say of it, with its perplexities on these texts."""
    start = records.find_last(lines, records.StageLine)
    done = records.find_last(lines, records.StageDone)
    machine = "no machine"
    if start:
        threads = start.provenance.hardware.threads
        machine = f"{describe_machine(start)}, threads: {threads}"
    return Training(
        machine=machine,
        weights=done.weights if done else "",
        perplexities=list_perplexities(lines, texts),
    )


def describe_machine(stage: records.StageLine) -> str:
    """The machine of a stage, in words."""
    hardware = stage.provenance.hardware
    processor = ", ".join(filter(None, (hardware.cpu, hardware.instructions)))
    return f"{hardware.device} ({processor})"


def list_perplexities(
    lines: Sequence[records.LineOfStage], texts: Collection[str]
) -> dict[str, float | None]:
    """The perplexities of a stage on these texts, by what they are of."""
    perplexities: dict[str, float | None] = {}
    for line in records.select_kind(lines, records.EvaluationLine):
        place = f"after step {line.step} of {line.phase}"
        for name, value in line.perplexity.items():
            if name in texts:
                perplexities[f"{name} {place}"] = value
    return perplexities


def find_difference(
    recorded: Mapping[str, float | None], measured: Mapping[str, float | None], tolerance: float
) -> str:
    """The first perplexity that is another when measured again, in words; empty where none is."""
    for place in recorded:
        if place not in measured:
            continue
        recorded_value = recorded[place] or math.inf
        value = measured[place] or math.inf
        if not math.isclose(recorded_value, value, rel_tol=tolerance):
            return f"perplexity {recorded_value:g} is recorded on {place}, and {value:g} measured"
    return ""
