"""`run_all.py doctor`: is this machine, or the cluster behind it, fit for a suite? A line each, with the cure.

Each executor looks at its own place. Nothing of that stays.
"""

from __future__ import annotations

import os
import platform
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmark.jobs import executors
from benchmark.jobs.executors import Finding
from benchmark.locks import Lease
from benchmark.settings.suite import RunConfig, Suite

LITTLE = 10e9  # bytes of free space


def doctor(suite: Suite, configs: Sequence[RunConfig], runs: Path) -> int:
    """Print what is found. Returns an exit status: 1 where something is wrong."""
    wrong = False
    for finding in examine(suite, configs, runs):
        print(finding, flush=True)
        wrong |= bool(finding.cure) and finding.serious
    return int(wrong)


def examine(suite: Suite, configs: Sequence[RunConfig], runs: Path) -> Iterator[Finding]:
    """Look at this machine, and let each executor look at its own place."""
    yield of_torch()
    yield from of_folder(runs)
    for name in executors.names():
        yield from executors.find(name).examine(suite, configs, runs)


def of_torch() -> Finding:
    """What torch finds on this machine; on one that only submits no device is as it should be."""
    import torch

    from benchmark.models.devices import accelerators

    kind, number = accelerators()
    count = f"{number} {kind}" if number else "no accelerator, so the CPU computes"
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return Finding(f"Python {platform.python_version()}, torch {torch.__version__}, {count}, cores: {cores}")


def of_folder(runs: Path) -> Iterator[Finding]:
    """Can it be written and locked, and how much fits?"""
    try:
        runs.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".doctor-", dir=runs) as folder, Lease(Path(folder) / "lock"):
            free = shutil.disk_usage(runs).free
    except OSError as error:
        yield Finding(f"{runs}: {error}", "each run must write there: name another --runs, or have its owner allow it")
        return
    yield Finding(f"{runs}: files can be written and locked")
    cure = f"less than {LITTLE / 1e9:.0f} GB: `run --dry-run` says what a suite keeps; --runs takes another disk"
    yield Finding(f"{runs}: {free / 1e9:.1f} GB free", cure if free < LITTLE else "", serious=False)
