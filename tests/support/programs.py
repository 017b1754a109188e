"""Python programs that tests start in a folder of their choice."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def start_in(folder: Path, *words: object, path: Path = ROOT) -> subprocess.Popen[str]:
    """Start a Python program in a folder. It has one thread, and imports the code in `path`."""
    environment = {**os.environ, "PYTHONPATH": str(path), "OMP_NUM_THREADS": "1"}
    environment.pop("GOMP_SPINCOUNT", None)
    pipe = subprocess.PIPE
    command = [sys.executable, *map(str, words)]
    return subprocess.Popen(
        command, cwd=folder, env=environment, stdout=pipe, stderr=pipe, text=True
    )
