"""Kills of `run_all.py run` and of its processes at random, and faults of its disk, each counted: `make chaos`.

    python -m tests.tools.chaos kills [--kills N] [--kills-per-run 7] [--seed 0] [--methods A,B] [--seconds S]
        [--tally FILE] [--list-missing]
    python -m tests.tools.chaos many [--runs 200] [--at-once 8] [--seed 0] [--seconds S] [--folder F]
    python -m tests.tools.chaos disk [--scenarios A,B]

`kills` kills runs of the methods in turn, seven times each before a comparison (tests/support/kills.py), until there
were as many kills, or, if no number is given, until each pair of a method and a kind of its work was hit: of a method
what was not hit yet is drawn first. With a tally it writes down each run there, a line of JSON, and goes on where it
ended; `--list-missing` says what that tally comes to, and kills nothing. `many` trains short runs side by side and
kills their processes (tests/support/many_runs.py), 30 for 100 runs; in a folder that it is given it goes on where it
ended. `disk` lets each operation of each scenario go wrong (tests/support/faulty_disk.py).
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import methods
from tests.support import faulty_disk

KILLED = 0.3  # of `many` runs
Tally = list[dict[str, Any]]  # of each run: method, kills by kind of work, all kinds, steps, and which files differ


def kills(count: int | None, together: int, seed: int, names: list[str], seconds: float, file: Path | None) -> int:
    from tests.support.kills import Kills

    began = time.monotonic()
    tally = _read(file)
    with tempfile.TemporaryDirectory() as folder:
        while (turn := _turn(tally, names, count)) and time.monotonic() - began < seconds:
            method = Kills(Path(folder) / f"{turn}-{len(tally)}", turn)
            known = _by_kind([run for run in tally if run["method"] == turn])
            chosen = random.Random(f"{seed} {turn} {len(tally)}")
            at_most = together if count is None else min(together, count - _kills(tally))
            found = method.disturb(at_most, chosen, known, _by_kind(tally))
            tally.append({"commit": _commit(), "seed": seed, "method": turn, **found})
            if file:
                with file.open("a") as lines:
                    lines.write(json.dumps(tally[-1]) + "\n")
    _say(tally)
    if turn:
        print(f"not finished, {turn} was next: " + ("the same command goes on" if file else "more --seconds"))
    return int(bool(turn) or any(run["different"] for run in tally))


def _read(file: Path | None) -> Tally:
    return [json.loads(line) for line in file.read_text().splitlines()] if file and file.exists() else []


def _turn(tally: Tally, names: list[str], count: int | None) -> str | None:
    """Whose turn it is: the method with the fewest runs, of those not hit in all kinds if no `count` is given."""
    of_method = {name: [run for run in tally if run["method"] == name] for name in names}
    if count is None:
        of_method = {name: runs for name, runs in of_method.items() if not runs or _never(runs)}
    elif _kills(tally) >= count:
        return None
    return min(of_method, key=lambda name: len(of_method[name]), default=None)


def _say(tally: Tally) -> None:
    for run in tally:
        if run["different"]:
            print(f"{run['method']}: {len(run['different'])} files differ: {run['different'][:8]}")
    taken, charged = (sum(run[what] for run in tally) for what in ("taken", "charged"))
    differ = sum(bool(run["different"]) for run in tally)
    print(f"commits {sorted({run['commit'] for run in tally})}, seeds {sorted({run['seed'] for run in tally})}")
    names = sorted({run["method"] for run in tally})
    print(f"{_kills(tally)} kills of {len(tally)} runs of {len(names)} methods, {differ} differ")
    print(f"{taken} steps for {charged}: {(taken - charged) / max(1, _kills(tally)):.2f} lost by a kill")
    print("; ".join(f"{kind} {number}" for kind, number in _by_kind(tally).most_common()))
    of_method = {name: [run for run in tally if run["method"] == name] for name in names}
    pairs, hit = (sum(len(kinds(runs)) for runs in of_method.values()) for kinds in (_kinds, _by_kind))
    print(f"{hit} of {pairs} pairs of a method and a kind were hit; never hit: {sorted(_never(tally)) or 'no kind'}")
    known, hit = (sum(len(_steps(kinds(runs))) for runs in of_method.values()) for kinds in (_kinds, _by_kind))
    print(f"steps of each phase of each method: {hit} of {known} hit")
    for name, runs in of_method.items():
        if _never(runs):
            print(f"  {name}, missing: {sorted(_never(runs))}")


def _kills(tally: Tally) -> int:
    return _by_kind(tally).total()


def _by_kind(tally: Tally) -> Counter[str]:
    return sum((Counter(run["kills"]) for run in tally), Counter[str]())


def _kinds(tally: Tally) -> set[str]:
    return {kind for run in tally for kind in run["kinds"]}


def _steps(kinds: Iterable[str]) -> set[str]:
    return {kind for kind in kinds if kind.startswith("step of")}


def _never(tally: Tally) -> set[str]:
    return _kinds(tally) - {*_by_kind(tally)}


def _commit() -> str:
    command = ["git", "describe", "--always", "--dirty"]
    return subprocess.run(command, cwd=faulty_disk.ROOT, capture_output=True, text=True, check=False).stdout.strip()


def many(runs: int, at_once: int, seed: int, seconds: float, folder: Path | None) -> int:
    from tests.support.many_runs import ManyRuns

    with tempfile.TemporaryDirectory() as scratch:
        all_of_them = ManyRuns(folder or Path(scratch) / "many", runs, KILLED, seed, at_once)
        finished = all_of_them.disturb(seconds)
        if not finished:
            print("not finished: the same command with --folder goes on" if folder else "not finished: more --seconds")
            return 1
        found = all_of_them.found()
    print(f"commit {_commit()}, seed {seed}: {json.dumps(found)}")
    return int(bool(found["wrong"] or found["done"] != runs))


def disk(scenarios: str) -> int:
    wrong = faults = 0
    with tempfile.TemporaryDirectory() as folder:
        for line in faulty_disk.failures(Path(folder), scenarios=scenarios):
            print(f"{line['scenario']}: {line['faults']} faults", flush=True)
            print("".join(f"  {one}\n" for one in line["wrong"]), end="")
            wrong, faults = wrong + len(line["wrong"]), faults + line["faults"]
    print(f"{faults} faults, {wrong} wrong")
    return int(bool(wrong))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("kills", "many", "disk"))
    parser.add_argument("--kills", type=int)
    parser.add_argument("--kills-per-run", type=int, default=7)
    parser.add_argument("--list-missing", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--methods", default=",".join(methods.names()))
    parser.add_argument("--seconds", type=float, default=3600.0)
    parser.add_argument("--tally", type=Path)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--at-once", type=int, default=8)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--scenarios", default="")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # what was begun ends as after Ctrl-C
    if given.what == "disk":
        return disk(given.scenarios)
    if given.what == "many":
        return many(given.runs, given.at_once, given.seed, given.seconds, given.folder)
    if given.list_missing:
        _say(_read(given.tally))
        return 0
    names = given.methods.split(",")
    return kills(given.kills, given.kills_per_run, given.seed, names, given.seconds, given.tally)


if __name__ == "__main__":
    sys.exit(main())
