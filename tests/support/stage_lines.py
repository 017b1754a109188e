"""Lines of a stage's records, as training writes them."""

from __future__ import annotations

from typing import Any

HARDWARE = {"device": "CPU", "count": 1, "cpu": "Example CPU"}
PROVENANCE = {"code": "1", "packages": {}, "hardware": HARDWARE, "threads": 1, "precision": "fp32", "world_size": 1}
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
    "phases": [{"name": name, "share": 0.5, "memory": 0.0, "trains": True} for name in ("recover", "adapt")],
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
    return {"kind": "evaluation", "phase": phase, "step": step, "fraction": 0.5, "charged": charged} | {
        "perplexity": {"news": value},
        "bits_per_byte": {"news": 1.0},
    }
