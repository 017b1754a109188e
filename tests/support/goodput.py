"""Goodput: what is charged of a run over what is spent on it, where processes are killed and start again.

A run of weeks takes seconds here: each step moves the clocks on by STEP seconds, each checkpoint and each start of a
process by what these take with a large model. All else is as it is: settings are the defaults, each process is really
killed, and the next one goes on from what it finds. How long a process lives is drawn: kills come with a constant rate.

    python -m tests.support.goodput HOURS DAYS

measures two stages of so many days, killed every so many hours; it fails below the target at that rate.
"""

from __future__ import annotations

import json
import mmap
import os
import random
import signal
import struct
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import run_all
from benchmark import records
from benchmark.training.checkpoint import Checkpoint
from benchmark.training.step import Stepper
from tests.support import tiny_suite

STEP = 60.0  # seconds
START = 15.0  # seconds from the start of a process to its first step
SAVE = 6.0  # seconds that a checkpoint takes
TARGET, TARGET_HOURS = 0.97, 5.0  # of goodput, where kills come so seldom on average


@dataclass(frozen=True)
class Goodput:
    """Seconds, but `kills`."""

    kills: int
    charged: float
    spent: float
    recorded: float  # as lost, in the records

    @property
    def share(self) -> float:
        return self.charged / self.spent


class Lives:
    """The clocks of a process, and its death; shared with the process that started it."""

    def __init__(self) -> None:
        self._ahead = mmap.mmap(-1, 8)  # seconds that this process has had beyond the real ones

    @property
    def ahead(self) -> float:
        return float(struct.unpack("d", self._ahead[:])[0])

    def begin(self) -> None:
        self._ahead[:] = struct.pack("d", 0.0)

    def move(self, seconds: float) -> None:
        self._ahead[:] = struct.pack("d", self.ahead + seconds)

    def install(self, life: float) -> None:
        """Let this process live so many seconds by its own clocks."""
        own: Any = time
        counter, monotonic = time.perf_counter, time.monotonic
        own.process_time = lambda: counter() + self.ahead  # else the jumps would be taken for stops
        own.perf_counter, own.monotonic = lambda: counter() + self.ahead, lambda: monotonic() + self.ahead
        began = time.perf_counter()
        steppers: Any = Stepper
        checkpoints: Any = Checkpoint
        step, warm_up, save = steppers.step, steppers.warm_up, checkpoints.save
        warming = [False]

        def spend(seconds: float) -> None:
            if time.perf_counter() - began + seconds > life:
                self.move(began + life - time.perf_counter())
                os.kill(os.getpid(), signal.SIGKILL)
            self.move(seconds)

        def warmed_up(stepper: Stepper) -> Any:
            warming[0] = True
            try:
                return warm_up(stepper)
            finally:
                warming[0] = False

        def stepped(stepper: Stepper, *arguments: Any) -> Any:
            if not warming[0]:
                spend(STEP)
            return step(stepper, *arguments)

        def saved(checkpoint: Checkpoint, path: Path) -> None:
            spend(SAVE)  # before it is there: a kill in between keeps the one before
            save(checkpoint, path)

        steppers.step, steppers.warm_up, checkpoints.save = stepped, warmed_up, saved
        spend(START)


def measure(folder: Path, hours: float, days: float, chosen: random.Random) -> Goodput:
    """A run of two stages of so many days each, killed every so many hours on average."""
    folder.mkdir(parents=True)
    suite = tiny_suite.write(folder)
    text = suite.read_text().replace('["naive", "er"]', '["naive"]').replace('unit = "steps"', 'unit = "seconds"')
    suite.write_text(text.replace('title = "Tiny"', 'title = "Tiny"\ntables = []'))
    command = ["run", str(suite), "--runs", str(folder / "runs"), "--out", str(folder / "report")]
    command += ["--set", f"budget.amount={days * 86400}", "--share-machine"]
    lives, spent, kills, status = Lives(), 0.0, 0, -signal.SIGKILL
    while status == -signal.SIGKILL:
        lives.begin()
        began = time.perf_counter()
        life = chosen.expovariate(1 / (3600 * hours))
        status = _in_a_child(lives, life, command, folder / "log")
        spent += time.perf_counter() - began + lives.ahead
        kills += status == -signal.SIGKILL
    assert status == 0, f"the run ended with {status}: see {folder / 'log'}"
    lines = [line for path in (folder / "runs/stages").glob("*/records.jsonl") for line in records.read(path)]
    charged = sum(line["charged"]["seconds"] for line in lines if line["kind"] == "done")
    return Goodput(kills, charged, spent, sum(line.get("lost", 0.0) for line in lines))


def _in_a_child(lives: Lives, life: float, command: list[str], log: Path) -> int:
    child = os.fork()
    if child == 0:
        status = 99
        try:
            told = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
            os.dup2(told, 1)
            os.dup2(told, 2)
            lives.install(life)
            status = run_all.main(command)
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def main(hours: float, days: float) -> int:
    """Measure, and print it. Returns 1 for less than TARGET where kills come as seldom as it is for, else 0."""
    with tempfile.TemporaryDirectory() as folder:
        found = measure(Path(folder) / "goodput", hours, days, random.Random(0))
    print(json.dumps({**vars(found), "share": found.share}))
    if hours < TARGET_HOURS or found.share >= TARGET:
        return 0
    print(f"below {TARGET:.0%}, the target for a kill every {TARGET_HOURS:g} hours or less often", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]), float(sys.argv[2])))
