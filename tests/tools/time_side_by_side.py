"""How many more runs a machine of two cores trains when they go side by side, a core each, instead of one by one.

    python -m tests.tools.time_side_by_side

Eight runs of the demo's ladder, Naive, with a budget in steps; each way is one call of `run_all.py run`, in turns, from
prepared text to the table.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TURNS = 3
STEPS = 300  # of a stage
SETTINGS = {
    "methods": ["naive"],
    "seeds": list(range(8)),
    "tasks": [],
    "tables": ["main_pretraining"],
    "data.max_valid_tokens": 2048,
    "budget.unit": "steps",
    "budget.amount": STEPS,
}


def call(*arguments: str) -> float:
    began = time.perf_counter()
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    subprocess.run([sys.executable, "run_all.py", *arguments], check=True, stdout=subprocess.DEVNULL, env=environment)
    return time.perf_counter() - began


def main() -> None:
    settings = [f"--set={name}={json.dumps(value)}" for name, value in SETTINGS.items()]
    ways = {
        "one by one, all cores": ["--parallel", "1"],
        "side by side, a core each": ["--parallel", str(len(os.sched_getaffinity(0)))],
    }
    with tempfile.TemporaryDirectory() as folder:
        first = Path(folder) / "first"
        call("prepare", "demo", *settings, "--runs", str(first))
        ratios = []
        for turn in range(TURNS):
            found = {}
            for name, way in ways.items():
                runs = Path(folder) / f"{turn}-{way[1]}"
                runs.mkdir()
                (runs / "data").symlink_to(first / "data")
                found[name] = call("run", "demo", *settings, *way, "--runs", str(runs), "--out", str(runs / "report"))
                print(f"{name:26} {found[name]:6.1f} s", flush=True)
            ratios.append(found["one by one, all cores"] / found["side by side, a core each"])
        print(f"{statistics.median(ratios):.2f} times as many runs an hour side by side, median of {TURNS} turns")


if __name__ == "__main__":
    main()
