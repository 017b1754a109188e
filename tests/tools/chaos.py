"""Kills of `run_all.py run` at random, and faults of its disk, each counted: `make chaos`.

    python -m tests.tools.chaos kills [--kills 200] [--seed 0] [--methods A,B] [--seconds S]
    python -m tests.tools.chaos disk

`kills` goes through all methods in turn, four kills and a comparison each (tests/support/kills.py), until there were as
many or the seconds are over. `disk` lets each operation of each scenario go wrong (tests/support/faulty_disk.py).
"""

from __future__ import annotations

import argparse
import itertools
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import methods
from tests.support import faulty_disk

TOGETHER = 4  # kills of a run before it may come to an end


def kills(count: int, seed: int, names: list[str], seconds: float) -> int:
    from tests.support.kills import Kills

    began, chosen, wrong = time.monotonic(), random.Random(seed), 0
    happened: Counter[str] = Counter()
    charged = taken = runs = 0
    with tempfile.TemporaryDirectory() as folder:
        known: dict[str, Kills] = {}
        for name in itertools.cycle(names):
            if sum(happened.values()) >= count or time.monotonic() - began > seconds:
                break
            if name not in known:
                known[name] = Kills(Path(folder) / name, name)
            before = known[name].happened.copy()
            different = known[name].disturb(TOGETHER, chosen)
            happened += known[name].happened - before
            runs += 1
            wrong += bool(different)
            if different:
                print(f"{name}: {len(different)} files differ: {different[:8]}", flush=True)
        charged, taken = (sum(getattr(one, what) for one in known.values()) for what in ("charged", "taken"))
    print(f"seed {seed}: {sum(happened.values())} kills of {runs} runs of {len(known)} methods, {wrong} runs differ")
    print(f"{taken} steps for {charged}: {(taken - charged) / max(1, sum(happened.values())):.1f} lost by a kill")
    print("; ".join(f"{kind} {number}" for kind, number in happened.most_common()))
    return int(bool(wrong))


def disk() -> int:
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        for line in faulty_disk.failures(Path(folder)):
            print(f"{line['scenario']}: {line['faults']} faults", flush=True)
            print("".join(f"  {one}\n" for one in line["wrong"]), end="")
            wrong += len(line["wrong"])
    print(f"{wrong} wrong")
    return int(bool(wrong))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("kills", "disk"))
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--methods", default=",".join(methods.names()))
    parser.add_argument("--seconds", type=float, default=3600.0)
    given = parser.parse_args()
    if given.what == "disk":
        return disk()
    return kills(given.kills, given.seed, given.methods.split(","), given.seconds)


if __name__ == "__main__":
    sys.exit(main())
