"""Random kills of `run_all.py run`, and faults of its disk (`make chaos`).

    python -m tests.tools.chaos kills [--runs 3] [--seed 0] [--methods A,B]
    python -m tests.tools.chaos disk

`kills` takes one method after another. It kills a run some six times before operations of its
disk, lets it finish, and compares it with an undisturbed one (tests/support/kills.py). It does so
with several runs of each method. `disk` lets each operation of each scenario fail
(tests/support/faulty_disk.py). All kills and faults are counted.
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
import tempfile
from collections import Counter
from pathlib import Path

import methods
from tests.support import faulty_disk
from tests.support.kills import Kills


def kills(runs: int, seed: int, names: list[str]) -> int:
    """Return 1 if a killed run leaves something else than an undisturbed one, else 0."""
    total: Counter[str] = Counter()
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            work = Kills(Path(folder) / name, name)
            for run in range(runs):
                killed, different = work.disturb(random.Random(f"{seed} {name} {run}"))
                total.update(killed)
                wrong += bool(different)
                print(f"{name}: {killed.total()} kills; differs: {different[:8]}", flush=True)
    for operation, number in sorted(total.items()):
        print(f"{number} {operation}")
    print(
        f"{total.total()} kills of {runs * len(names)} runs of {len(names)} methods, {wrong} differ"
    )
    return int(bool(wrong))


def disk() -> int:
    wrong = faults = 0
    with tempfile.TemporaryDirectory() as folder:
        for line in faulty_disk.find_failures(Path(folder)):
            print(f"{line['scenario']}: {line['faults']} faults", flush=True)
            print("".join(f"  {problem}\n" for problem in line["wrong"]), end="")
            wrong, faults = wrong + len(line["wrong"]), faults + line["faults"]
    print(f"{faults} faults, {wrong} wrong")
    return int(bool(wrong))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("kills", "disk"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--methods", default=",".join(methods.list_names()))
    parser.add_argument("--runs", type=int, default=3, help="of each method")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # SIGTERM ends work as Ctrl-C does
    if given.what == "disk":
        return disk()
    return kills(given.runs, given.seed, given.methods.split(","))


if __name__ == "__main__":
    sys.exit(main())
