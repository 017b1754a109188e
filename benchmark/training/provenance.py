"""What a result depends on besides its settings: code, packages, hardware."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from functools import cache
from importlib import metadata
from pathlib import Path

from benchmark.files import read_bytes, read_text
from benchmark.record_lines import Provenance
from benchmark.training.processes import World

ROOT = Path(__file__).parents[2]
COMMIT_FILE = "COMMIT"  # in a snapshot of the code, which has no git
PACKAGES = ("torch", "transformers", "tokenizers", "safetensors", "numpy", "scikit-learn", "submitit")


def provenance(world: World, precision: str) -> Provenance:
    """What a stage that this process trains now is made with."""
    return Provenance(
        code=code_version(),
        packages={"python": sys.version.split()[0], **{name: metadata.version(name) for name in PACKAGES}},
        hardware=world.hardware(),
        threads=world.hardware()["threads"],
        precision=precision,
        world_size=world.size,
    )


@cache
def code_version() -> str:
    """`<commit>+<hash of the sources of benchmark/ and methods/>`; without git only the hash."""
    digest = hashlib.sha256()
    for package in ("benchmark", "methods"):
        for path in sorted((ROOT / package).rglob("*.py")):
            digest.update(path.relative_to(ROOT).as_posix().encode() + b"\0" + read_bytes(path))
    sources = f"sources-{digest.hexdigest()[:12]}"
    return f"{known}+{sources}" if (known := commit()) else sources


def commit() -> str:
    """The commit of the code, or nothing."""
    if (ROOT / COMMIT_FILE).exists():
        return read_text(ROOT / COMMIT_FILE)
    command = ["git", "-C", str(ROOT), "rev-parse", "--short=12", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""
