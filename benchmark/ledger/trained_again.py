"""The outcome of training a stage twice: the same weights, a rounding difference, or others.

Another CPU, or another number of threads, sums in another order. Weights then differ in their last
bits, and perplexities in digits that no table shows.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

from benchmark.ledger import records

SAME = 1e-6  # the relative difference that perplexities of the same weights may have
ROUNDING = 1e-4  # and of weights that differ in rounding


@dataclass(frozen=True)
class Comparison:
    """The differences between two trainings of a stage."""

    grade: Literal["same", "rounding", "other"]
    outcome: str  # in words
    count: int  # of perplexities that were compared


def compare_stages(
    lines: Sequence[records.LineOfStage], recorded: Sequence[records.LineOfStage]
) -> Comparison:
    """Compare a finished stage with a recorded one of the same key.

    Compares weights, and perplexities on the texts that both measured. Their relative difference
    may be SAME if the weights are equal, else ROUNDING. Other weights without a perplexity to
    compare have the grade "other".
    """
    start = records.select_kind(lines, records.StageLine)[-1]
    recorded_start = records.select_kind(recorded, records.StageLine)[-1]
    weights = records.select_kind(lines, records.StageDone)[-1].weights
    recorded_weights = records.select_kind(recorded, records.StageDone)[-1].weights
    # the validation texts that have the same hash in both
    texts = [name for name, text in recorded_start.texts.items() if start.texts.get(name) == text]
    perplexities = _list_perplexities(lines, texts)
    recorded_perplexities = _list_perplexities(recorded, texts)
    count = len(perplexities.keys() & recorded_perplexities.keys())
    is_same = weights == recorded_weights
    tolerance = SAME if is_same else ROUNDING
    difference = _find_difference(recorded_perplexities, perplexities, tolerance)
    if not is_same and not count:
        difference = "each validation text is another, or is measured otherwise than recorded"
    machine = _describe_place(start)
    recorded_machine = _describe_place(recorded_start)
    if difference:
        return Comparison(
            "other",
            f"came to weights {weights} on {machine}, recorded are {recorded_weights} on "
            f"{recorded_machine}; {difference}",
            count,
        )
    if is_same:
        return Comparison("same", "the same weights", count)
    return Comparison(
        "rounding",
        f"weights differ in rounding, perplexities agree to {ROUNDING:.2%} (trained on {machine}, "
        f"recorded on {recorded_machine})",
        count,
    )


def _describe_place(stage: records.StageLine) -> str:
    """The machine of a stage, and its threads."""
    return f"{describe_machine(stage)}, threads: {stage.provenance.hardware.threads}"


def describe_machine(stage: records.StageLine) -> str:
    """The machine of a stage, in words."""
    hardware = stage.provenance.hardware
    processor = ", ".join(filter(None, (hardware.cpu, hardware.instructions)))
    return f"{hardware.device} ({processor})"


def _list_perplexities(
    lines: Sequence[records.LineOfStage], texts: Collection[str]
) -> dict[str, float | None]:
    """The perplexities of a stage on these texts, by text, step and phase."""
    perplexities: dict[str, float | None] = {}
    for line in records.select_kind(lines, records.EvaluationLine):
        place = f"after step {line.step} of {line.phase}"
        for name, value in line.perplexity.items():
            if name in texts:
                perplexities[f"{name} {place}"] = value
    return perplexities


def _find_difference(
    recorded: dict[str, float | None], measured: dict[str, float | None], tolerance: float
) -> str:
    """The first perplexity that differs from the recorded one, in words, "" if none does.

    The last perplexities of both must be of the same text and step.
    """
    recorded_last = next(reversed(recorded), "")
    last = next(reversed(measured), "")
    if last != recorded_last:
        return f"the last perplexity is {last}, recorded is {recorded_last}"
    for place in recorded:
        if place not in measured:
            continue
        recorded_value = recorded[place] or math.inf
        value = measured[place] or math.inf
        if not math.isclose(recorded_value, value, rel_tol=tolerance):
            return f"perplexity {recorded_value:g} is recorded on {place}, and {value:g} measured"
    return ""
