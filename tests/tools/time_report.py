"""How long a report takes of 20 rows and 50 seeds, 1,000 runs, and whether a second one is the same bytes.

python -m tests.tools.time_report
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

import paper_tables
from benchmark.records import load_runs
from tests.support.synthetic import METHODS, report, write

PARTS = ("WE + FRW", "DE + FRW", "WE + DE + FRW", "WE + DE", "WE + DE + FRW + δN", "WE + DE + FRW + δN + PT")


def main() -> None:
    rows: list[tuple[str, str, dict[str, Any]]] = [
        *((title, method, {}) for title, (method, _, _) in METHODS.items()),
        *((row, "elle", {}) for row in PARTS),
        *((f"EWC, λ = {10**i}", "ewc", {"strength": 10**i}) for i in range(6)),
    ]
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder), "big", rows=rows, seeds=50, evaluations=10)
        contents = []
        for _ in range(2):
            started, used = time.perf_counter(), time.process_time()
            runs = load_runs(Path(folder), "big")
            paths = report("big", runs, paper_tables.names(), Path(folder) / "report")
            contents.append([path.read_bytes() for path in paths])
            seconds = f"{time.perf_counter() - started:.1f} s ({time.process_time() - used:.1f} s of one core)"
            print(f"{len(runs)} runs to {len(paths)} files in {seconds}")
        print("the second report is", "the same" if contents[0] == contents[1] else "DIFFERENT")


if __name__ == "__main__":
    main()
