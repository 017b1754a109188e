"""Models that are more than a network: columns, adapters, experts, a kind a file.

Each file has `load(folder)`, the saved model, and `load_column(folder, domain)`, what is fine-tuned of it.
"""

from __future__ import annotations

from pathlib import Path

FILES = {"progressive": "progressive.json", "lora": "adapters.safetensors", "experts": "experts.safetensors"}
"""The file by which the folder of a saved model is known to be of a kind, by the name of the kind's module."""


def name_of(folder: Path) -> str | None:
    """The kind of the model in a folder, None where it is a network alone."""
    return next((name for name, file in FILES.items() if (folder / file).is_file()), None)
