"""Perplexity of what is not in training: of stages that are done on texts that came after them, and of a start model.

Off the clock, once, appended to the records: so a domain more, or a probe, completes what is known of the models before
it, and trains none of them again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import cast

from benchmark import records
from benchmark.models import LanguageModel
from benchmark.models.of_stage import load_evaluated
from benchmark.record_lines import LineOfStage
from benchmark.training.evaluate import bits_per_byte, perplexity
from benchmark.training.processes import World
from benchmark.training.stream import Stream


def evaluate_later_texts(stage: Path, stream: Stream, world: World, precision: str) -> None:
    """Append what the records of the stage in this folder lack; a stage that trained nothing lacks nothing."""
    path = stage / "records.jsonl"
    trained = world.leads and any(line["kind"] == "evaluation" for line in records.read_stage(path))
    if world.agree(trained):
        evaluate_missing(path, lambda: load_evaluated(stage), stream, world, precision)


def evaluate_missing(
    path: Path, load_model: Callable[[], LanguageModel], stream: Stream, world: World, precision: str
) -> None:
    """Append to `path` the perplexity of a model on each text that no line of it tells of."""
    lines = cast(list[LineOfStage], records.read(path)) if world.leads and path.exists() else []
    missing = world.agree(_missing(lines, stream))
    if not missing:
        return
    model = load_model().to(world.device)
    for index in missing:
        text = stream.evaluated[index]
        value = perplexity(model, stream, index, world, precision)
        found = {"perplexity": value, "bits_per_byte": bits_per_byte(value, text)}
        if world.leads:
            line = {"kind": "later", "domain": text.name, "text": stream.validation_keys[text.name], **found}
            records.append(path, line)


def _missing(lines: Sequence[LineOfStage], stream: Stream) -> list[int]:
    """Indices of `stream.evaluated` that none of these lines tells of."""
    known = {(line["domain"], line["text"]) for line in lines if line["kind"] == "later"}
    known |= {item for line in lines if line["kind"] == "stage" for item in line.get("texts", {}).items()}
    return [
        index
        for index, text in enumerate(stream.evaluated)
        if (text.name, stream.validation_keys[text.name]) not in known
    ]
