"""Kill processes of many short, parallel runs at random: all runs must finish, each exactly once.

`run_all.py run --parallel` has worker processes that train run after run. Each time that a randomly
drawn number of stages has begun, SIGKILL ends a worker a moment later. The command is called again
with --retry-failed until all runs are done. Some runs are then compared with undisturbed ones.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

import run_all
from tests.support import processes, tiny_suite
from tests.support.record_lines import read_lines

METHODS = ("naive", "er")  # which share the first of their two stages
COMPARED = 5  # seeds
AT_ONCE = 8
MOMENT = 0.3  # seconds, at most, from a stage's beginning to a kill: about a stage's duration


class ManyRuns:
    """A number of runs in a folder, and `share` kills per run."""

    def __init__(self, folder: Path, runs: int, share: float, seed: int) -> None:
        self.folder, self.runs = folder, folder / "runs"
        self.seeds, self.kills = runs // len(METHODS), 0
        folder.mkdir(parents=True, exist_ok=True)
        self.suite = tiny_suite.write(folder)
        text = self.suite.read_text().replace('title = "Tiny"', 'title = "Tiny"\ntables = []')
        self.suite.write_text(
            text.replace("batch_size = 10", "batch_size = 10\ncheckpoint_seconds = 0.05")
        )
        self._chosen = random.Random(seed)
        stages = self.seeds * (1 + len(METHODS))
        # how many stages have begun when each kill is due
        self._at = sorted(self._chosen.sample(range(1, stages), round(share * runs)))

    def disturb(self, seconds: float) -> bool:
        """Train and kill, for so many seconds. Returns whether all runs are done."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            child = self._call(self.runs, range(self.seeds))
            ended = (0, 0)
            try:
                while not (ended := os.waitpid(child, os.WNOHANG))[0]:
                    if time.monotonic() > until:
                        return False
                    self._kill_if_due(child)
                    time.sleep(0.02)
            finally:  # also after Ctrl-C or SIGTERM
                if not ended[0]:
                    os.kill(child, signal.SIGINT)
                    os.waitpid(child, 0)
            if os.waitstatus_to_exitcode(ended[1]) == 0:
                return True
        return False

    def outcome(self) -> dict[str, Any]:
        """Train some of the runs undisturbed, then count and compare what all runs left."""
        alone = self.folder / "undisturbed"
        _, status = os.waitpid(self._call(alone, range(min(COMPARED, self.seeds))), 0)
        assert os.waitstatus_to_exitcode(status) == 0, f"see {self.folder / 'log'}"
        stages = {
            path.parent.name: read_lines(path) for path in self.runs.glob("stages/*/records.jsonl")
        }
        runs = {path.stem: read_lines(path) for path in self.runs.glob("suites/tiny/*.jsonl")}
        wrong = [name for name, lines in {**runs, **stages}.items() if _count(lines)["done"] != 1]
        for path in alone.glob("stages/*/records.jsonl"):
            if _weights(stages[path.parent.name]) != _weights(read_lines(path)):
                wrong.append(f"{path.parent.name}: other weights than undisturbed")
        return {
            "runs": len(runs),
            "kills": self.kills,
            "done": sum(_count(lines)["done"] == 1 for lines in runs.values()),  # once
            "stages": sum(_count(lines)["done"] == 1 for lines in stages.values()),
            "wrong": wrong,  # not done exactly once, or with other weights than undisturbed
        }

    def _kill_if_due(self, child: int) -> None:
        """Kill one of the processes that train, if enough stages have begun for the next kill."""
        place = self.runs / "stages"
        begun = len(os.listdir(place)) if place.exists() else 0
        if self.kills == len(self._at) or begun < self._at[self.kills]:
            return
        time.sleep(self._chosen.uniform(0, MOMENT))
        if workers := _workers(child):
            with contextlib.suppress(ProcessLookupError):  # it has ended meanwhile
                os.kill(self._chosen.choice(workers), signal.SIGKILL)
                self.kills += 1

    def _call(self, runs: Path, seeds: range) -> int:
        """A copy of this process that calls the command. Returns its pid."""

        def call() -> int:
            places = ["--runs", str(runs), "--out", str(self.folder / "report")]
            more = [
                "--seeds",
                ",".join(map(str, seeds)),
                "--parallel",
                str(AT_ONCE),
                "--retry-failed",
            ]
            return run_all.main(["run", str(self.suite), *places, *more])

        return processes.forked(call, self.folder / "log")


def _workers(process: int) -> list[int]:
    """The pids of the processes that train, which a fork server below `process` has started."""
    below = processes.descendants(process)
    servers = [
        pid
        for pid in below
        if any("multiprocessing.forkserver" in word for word in processes.words(pid))
    ]
    return [pid for server in servers for pid in processes.descendants(server)]


def _count(lines: list[dict[str, Any]]) -> Counter[str]:
    return Counter(line["kind"] for line in lines)


def _weights(lines: list[dict[str, Any]]) -> list[str]:
    return [line["weights"] for line in lines if line["kind"] == "done"]
