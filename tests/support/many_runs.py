"""Many short runs side by side, whose processes are killed (SIGKILL) at random: all must finish, each once.

`run_all.py run --parallel` has a process a slot, which trains run after run. Whenever another so many stages have begun
one of these processes is killed a moment later, mostly one that has a stage in hand, and more until one had. The run of
that has failed then, and the command is called again with --retry-failed until all are done. What they came to is held
against runs that nobody disturbed.
"""

from __future__ import annotations

import contextlib
import functools
import os
import random
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any, TypedDict

import run_all
from benchmark import records
from benchmark.jobs.local import work
from benchmark.jobs.side_by_side import WorkerShare
from benchmark.locks import Lease
from tests.support import tiny_suite

METHODS = ("naive", "er")  # which share the first of their two stages
COMPARED = 5  # seeds
TRAINING = 0.8  # of kills are drawn from the processes that have a stage in hand, the others from all
MOMENT = 0.3  # seconds from the beginning of a stage in which it is killed, about what one takes


class Found(TypedDict):
    """What has become of all runs."""

    runs: int
    kills: int  # of processes that had a stage in hand
    idle: int  # kills of those that had none
    at_once: int  # processes that had a stage in hand when one was killed, at most
    calls: int  # of the command
    done: int  # runs that say so, once
    stages: int  # that were trained to their end, once
    again: int  # stages that were begun again, or went on from a checkpoint
    wrong: list[str]  # what is done twice, or came to other weights than undisturbed


class ManyRuns:
    """So many runs, of which a share is killed. What is in the folder already is gone on with."""

    def __init__(self, folder: Path, runs: int, share: float, seed: int, at_once: int = 8) -> None:
        self.folder, self.runs, self.at_once = folder, folder / "runs", at_once
        self.seeds = runs // len(METHODS)
        folder.mkdir(parents=True, exist_ok=True)
        suite = tiny_suite.write(folder)
        text = suite.read_text().replace('title = "Tiny"', 'title = "Tiny"\ntables = []')
        suite.write_text(text.replace("batch_size = 10", "batch_size = 10\ncheckpoint_seconds = 0.05"))
        for name in tiny_suite.WORDS:  # prepared text is known by the time of its files
            os.utime(folder / f"{name}.jsonl", (1, 1))
        self.suite, self._chosen = suite, random.Random(seed)
        stages = self.seeds * (1 + len(METHODS))
        self._at = sorted(self._chosen.sample(range(1, stages), round(share * runs)))  # stages that have begun
        self._log = folder / "log"

    def disturb(self, seconds: float) -> bool:
        """Train and kill, for so many seconds. Returns whether all is done."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            child = self._call(self.runs, range(self.seeds))
            self._note("call")
            ended = (0, 0)
            try:
                while not (ended := os.waitpid(child, os.WNOHANG))[0]:
                    if time.monotonic() > until:
                        return False
                    self._kill_one(child)
                    time.sleep(0.02)
            finally:  # Ctrl-C or SIGTERM, too
                if not ended[0]:
                    os.kill(child, signal.SIGINT)
                    os.waitpid(child, 0)
            if os.waitstatus_to_exitcode(ended[1]) == 0:
                return True
        return False

    def found(self) -> Found:
        """Say what has become of all, after some were trained undisturbed."""
        alone = self.folder / "undisturbed"
        child = self._call(alone, range(min(COMPARED, self.seeds)))
        try:
            _, status = os.waitpid(child, 0)
        except KeyboardInterrupt:
            os.kill(child, signal.SIGINT)
            raise
        assert os.waitstatus_to_exitcode(status) == 0, f"see {self._log}"
        stages = {path.parent.name: records.read(path) for path in self.runs.glob("stages/*/records.jsonl")}
        runs = {path.stem: records.read(path) for path in self.runs.glob("suites/tiny/*.jsonl")}
        wrong = [name for name, lines in {**runs, **stages}.items() if _count(lines)["done"] != 1]
        for path in alone.glob("stages/*/records.jsonl"):
            if _weights(stages[path.parent.name]) != _weights(records.read(path)):
                wrong.append(f"{path.parent.name}: other weights than undisturbed")
        begun = [_count(lines)["stage"] + _count(lines)["resumed"] for lines in stages.values()]
        return {
            "runs": len(runs),
            "kills": self._noted("kill"),
            "idle": self._noted("idle"),
            "at_once": max([0, *map(int, self._notes("at once").split())]),
            "calls": self._noted("call"),
            "done": sum(_count(lines)["done"] == 1 for lines in runs.values()),
            "stages": sum(_count(lines)["done"] == 1 for lines in stages.values()),
            "again": sum(times - 1 for times in begun),
            "wrong": wrong,
        }

    def _kill_one(self, child: int) -> None:
        """Kill one of the processes that train, if that is due."""
        place, kills = self.runs / "stages", self._noted("kill")
        begun = len(os.listdir(place)) if place.exists() else 0
        if kills == len(self._at) or begun < self._at[kills]:
            return
        time.sleep(self._chosen.uniform(0, MOMENT))
        if workers := _copies(child):
            owners = {owner.pid for path in place.iterdir() if (owner := Lease(path / "lock").owner())}
            train = [worker for worker in workers if worker in owners]
            worker = self._chosen.choice(train if train and self._chosen.random() < TRAINING else workers)
            os.kill(worker, signal.SIGKILL)
            self._note("kill" if worker in train else "idle")
            self._note("at once", f"{len(train)}\n")

    def _call(self, runs: Path, seeds: range) -> int:
        """A copy of this process that calls the command; its own copies train, so that none has to import torch."""
        child = os.fork()
        if child:
            return child
        status = 99
        try:
            log = os.open(self._log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
            os.dup2(log, 1)
            os.dup2(log, 2)
            shares: Any = work
            shares.WorkerShare = functools.partial(WorkerShare, start="fork")
            places = ["--runs", str(runs), "--out", str(self.folder / "report")]
            more = ["--seeds", ",".join(map(str, seeds)), "--parallel", str(self.at_once), "--retry-failed"]
            status = run_all.main(["run", str(self.suite), *places, *more])
        finally:
            os._exit(status)

    def _note(self, what: str, said: str = "x") -> None:
        with (self.folder / what).open("a") as file:
            file.write(said)

    def _noted(self, what: str) -> int:
        return len(self._notes(what))

    def _notes(self, what: str) -> str:
        return (self.folder / what).read_text() if (self.folder / what).exists() else ""


def _copies(process: int) -> list[int]:
    """The copies of a process that live: what multiprocessing starts beside them is none, and has another command."""

    def command(number: int | str) -> str:
        with contextlib.suppress(OSError):  # it has ended
            return Path(f"/proc/{number}/cmdline").read_text()
        return ""  # as of one that nobody has waited for

    try:
        children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    except OSError:
        return []
    return [int(child) for child in children if command(child) == command(process) != ""]


def _count(lines: list[records.Record]) -> Counter[str]:
    return Counter(line["kind"] for line in lines)


def _weights(lines: list[records.Record]) -> list[str]:
    return [line["weights"] for line in lines if line["kind"] == "done"]
