"""Lines of record files as JSON objects, which tests write by hand and read by key."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from benchmark.ledger import records

Line = dict[str, Any]


def read_lines(path: Path) -> list[Line]:
    """All lines of a file, except those that a killed writer left half written.

    Empty if there is no file.
    """
    decoded = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        with contextlib.suppress(json.JSONDecodeError):
            decoded.append(json.loads(line))
    return decoded


def read_stage_lines(path: Path) -> list[Line]:
    """The lines of a stage in the order of training, as `records.read_stage` returns them."""
    lines: list[Line] = msgspec.to_builtins(records.read_stage(path))
    return lines


def last_line(path: Path, kind: str) -> Line | None:
    """The last line of a kind."""
    return next((line for line in reversed(read_lines(path)) if line["kind"] == kind), None)


def write_lines(path: Path, lines: Iterable[Line]) -> None:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


def append_line(path: Path, line: Line) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps({"time": time.time(), **line}) + "\n")


# Lines of a stage, as training writes them

HARDWARE = {"device": "CPU", "count": 1, "cpu": "Example CPU"}
PROVENANCE = {"code": "1", "packages": {}, "hardware": HARDWARE, "precision": "fp32"}
STAGE: dict[str, Any] = {
    "kind": "stage",
    "key": "k",
    "index": 0,
    "domain": "news",
    "provenance": PROVENANCE,
    "parameters": 10,
    "trainable": 10,
    "layers": 1,
    "hidden_size": 2,
    "phases": [
        {"name": name, "share": 0.5, "memory": 0.0, "trains": True} for name in ("recover", "adapt")
    ],
    "budget": {"unit": "steps", "amount": 4},
    "data": {},
    "texts": {},
}
DONE: dict[str, Any] = {
    "kind": "done",
    "charged": {"seconds": 2.0, "steps": 2, "tokens": 2},
    "phases": [],
    "growth": None,
    "cores": {"wall": 2.0, "cpu": 2.0, "others": None, "share": None},
}
METRICS = {"kind": "metrics", "phase": "adapt", "step": 1, "values": {"conflicts": 0.0}}


def evaluation(phase: str, step: int, value: float) -> dict[str, Any]:
    charged = {"seconds": float(step), "steps": step, "tokens": step}
    return {
        "kind": "evaluation",
        "phase": phase,
        "step": step,
        "fraction": 0.5,
        "charged": charged,
    } | {
        "perplexity": {"news": value},
        "bits_per_byte": {"news": 1.0},
    }
