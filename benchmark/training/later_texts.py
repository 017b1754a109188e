"""Perplexity of stages that are done on texts that came to the stream, or to its probes, after them.

Off the clock, once, appended to the records of the stage: so a domain more completes what is known of the models
before it, and trains none of them again.
"""

from __future__ import annotations

from pathlib import Path

from benchmark import records
from benchmark.models import load
from benchmark.training.evaluate import bits_per_byte, perplexity
from benchmark.training.processes import World
from benchmark.training.stream import Stream


def evaluate_later_texts(stage: Path, stream: Stream, world: World, precision: str) -> None:
    """Append what the records of the stage in this folder lack; a stage that trained nothing lacks nothing."""
    path = stage / "records.jsonl"
    missing = world.agree(_missing(records.read_stage(path), stream) if world.leads else [])
    if not missing:
        return
    model = load(stage / "model").to(world.device)
    for index in missing:
        text = stream.evaluated[index]
        value = perplexity(model, stream, index, world, precision)
        found = {"perplexity": value, "bits_per_byte": bits_per_byte(value, text)}
        if world.leads:
            line = {"kind": "later", "domain": text.name, "text": stream.validation_keys[text.name], **found}
            records.append(path, line)


def _missing(lines: list[records.Record], stream: Stream) -> list[int]:
    """Indices of `stream.evaluated` that no line of a stage tells of."""
    if not any(line["kind"] == "evaluation" for line in lines):
        return []
    known = {(line["domain"], line["text"]) for line in lines if line["kind"] == "later"}
    known |= {item for line in lines if line["kind"] == "stage" for item in line.get("texts", {}).items()}
    return [
        index
        for index, text in enumerate(stream.evaluated)
        if (text.name, stream.validation_keys[text.name]) not in known
    ]
