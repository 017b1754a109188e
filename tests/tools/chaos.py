"""Random kills of `run_all.py run` and its processes, and faults of its disk (`make chaos`).

    python -m tests.tools.chaos kills [--kills N] [--seed 0] [--methods A,B]
    python -m tests.tools.chaos many [--runs 200] [--seed 0]
    python -m tests.tools.chaos disk

`kills` takes the methods in turn. It kills a run seven times, lets it finish, and compares it with
an undisturbed one (tests/support/kills.py). It ends after N kills, or without N after a kill in
each kind of work of each method. `many` trains short runs side by side and kills 30 processes per
100 runs (tests/support/many_runs.py). `disk` lets each operation of each scenario fail
(tests/support/faulty_disk.py). All kills and faults are counted.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import sys
import tempfile
from collections import Counter
from pathlib import Path

import methods
from tests.support import faulty_disk
from tests.support.kills import Kills
from tests.support.many_runs import ManyRuns

KILLED = 0.3  # kills per run of `many`
TOGETHER = 7  # kills of a run before it may finish
PATIENCE = 3600.0  # seconds for `many`


def kills(count: int | None, seed: int, names: list[str]) -> int:
    """Return 1 if a killed run leaves something else than an undisturbed one, else 0."""
    hit: dict[str, Counter[str]] = {name: Counter() for name in names}
    wrong, turn = 0, 0
    left = list(names)  # methods of which some kind of work was not hit
    with tempfile.TemporaryDirectory() as folder:
        while left and (count is None or sum(kinds.total() for kinds in hit.values()) < count):
            name = left.pop(0)
            run = Kills(Path(folder) / f"{name}-{turn}", name)
            outcome = run.disturb(TOGETHER, random.Random(f"{seed} {name} {turn}"), hit[name])
            hit[name].update(outcome["kills"])
            missing = set(outcome["kinds"]) - set(hit[name])
            if missing or count is not None:
                left.append(name)
            wrong += bool(outcome["different"])
            turn += 1
            print(
                f"{name}: {hit[name].total()} kills; not hit: {sorted(missing)}; differs: "
                f"{outcome['different'][:8]}"
            )
    total: Counter[str] = sum(hit.values(), Counter())
    print(f"{total.total()} kills of {turn} runs of {len(names)} methods, {wrong} differ")
    print("; ".join(f"{kind} {number}" for kind, number in total.most_common()))
    return int(bool(wrong))


def many(runs: int, seed: int) -> int:
    with tempfile.TemporaryDirectory() as folder:
        together = ManyRuns(Path(folder) / "many", runs, KILLED, seed)
        if not together.disturb(PATIENCE):
            print(f"not finished in {PATIENCE:.0f} s")
            return 1
        outcome = together.outcome()
    print(f"seed {seed}: {json.dumps(outcome)}")
    return int(bool(outcome["wrong"] or outcome["done"] != runs))


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
    parser.add_argument("what", choices=("kills", "many", "disk"))
    parser.add_argument("--kills", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--methods", default=",".join(methods.list_names()))
    parser.add_argument("--runs", type=int, default=200)
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # SIGTERM ends work as Ctrl-C does
    if given.what == "disk":
        return disk()
    if given.what == "many":
        return many(given.runs, given.seed)
    return kills(given.kills, given.seed, given.methods.split(","))


if __name__ == "__main__":
    sys.exit(main())
