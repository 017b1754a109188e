"""A suite of two made-up domains that trains in seconds, and its text."""

from __future__ import annotations

import json
from pathlib import Path

WORDS = {"a": "red green blue cyan", "b": "one two three four"}
SUITE = """
title = "Tiny"
methods = ["naive", "er"]
domains = [
  {{ name = "a", train = ["{text}/a.jsonl"] }},
  {{ name = "b", train = ["{text}/b.jsonl"] }},
]
[tokenizer]
vocabulary = 300
[data]
sequence_length = 18
memory_tokens = 800
valid_share = 0.2
near_copies = "keep"  # all texts are alike
[model]
architecture = "gpt"
head_size = 16
dropout = 0.0
ladder = [{{ layers = 1, hidden_size = 16 }}, {{ layers = 2, hidden_size = 32 }}]
[training]
batch_size = 10
learning_rate = 3e-3
precision = "fp32"  # the same numbers on every machine
[budget]
unit = "steps"
amount = 6.0
"""


def write(folder: Path) -> Path:
    """Write the text and tiny.toml."""
    for name in WORDS:
        chosen = words(name)
        lines = [
            json.dumps({"text": " ".join(chosen[i : i + 30]) + f" {i}"}) for i in range(0, 6000, 30)
        ]
        (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    (folder / "tiny.toml").write_text(SUITE.format(text=folder))
    return folder / "tiny.toml"


def words(name: str) -> list[str]:
    return [WORDS[name].split()[(i * i + i // 7) % 4] for i in range(6000)]
