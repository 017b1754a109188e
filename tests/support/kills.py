"""`run_all.py run`, killed before random operations of its disk, and the files that are left when
it has ended.

Each method has its own suite, with all that a run does: text is tokenised, stages are trained,
checkpointed and evaluated, models are fine-tuned and compared, and a report is rendered. Copies of
this process do this work, one after the other, until one comes to the end. Each of the others is
killed before an operation: creating, truncating, syncing, renaming or removing a file, or making or
removing a folder. A killed process leaves nothing but files, so all moments between two operations
are the same to the next copy. Half a write is not tried here, but in tests/test_faulty_disk.py.

A checkpoint is saved after each step, not by the clock, so the operations do not depend on a
machine's speed.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
import shutil
import signal
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import analysis.figures  # noqa: F401  # takes a second: import once, before this process is copied
import run_all
from benchmark.jobs.executors import local
from tests.support import processes, tiny_suite
from tests.support.faulty_disk import FaultyDisk
from tests.support.record_lines import read_lines, read_stage_lines

# a kill comes before one of so many operations of a process. A whole run has about 550 of them
SPAN = 200
# parts of a path: keys, what makes the name of an unfinished file unique, and numbers of leases
CHANGING = re.compile(r"[0-9a-f]{12,}|(?<=lock\.)\d+")
MEASURES_OF_TIME = {"time", "seconds", "tokens_per_second", "cores", "charged_seconds", "lost"}
TASK = """
[[tasks]]
name = "toy"
domain = "a"
train = "{0}/task.jsonl"
dev = "{0}/task.jsonl"
test = "{0}/task.jsonl"
metric = "accuracy"
max_epochs = 2
batch_size = 16
[finetuning]
seeds = 1
"""


def write_suite(folder: Path, method: str) -> Path:
    """Write a method's suite, with a task and a table that compares models."""
    path = tiny_suite.write(folder)
    tables = ["main_pretraining", "main_downstream", "representational_similarity"]
    text = path.read_text().replace('["naive", "er"]', json.dumps([method]))
    text = text.replace('title = "Tiny"', f'title = "Tiny"\ntables = {json.dumps(tables)}')
    text = text.replace(
        "batch_size = 10", "batch_size = 20\ncheckpoint_seconds = 1e-9"
    )  # due after each step
    for name in tiny_suite.WORDS:  # prepared text is identified by the times of its files
        os.utime(folder / f"{name}.jsonl", (1, 1))
    lines = [
        {"text": f"red {word} {i}", "label": word} for i in range(12) for word in ("green", "blue")
    ]
    (folder / "task.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    path.write_text(text + TASK.format(folder))
    return path


@dataclass
class NotedDisk(FaultyDisk):
    """Writes each operation to stdout before it fails, because a killed process tells nothing."""

    def operate(self, name: str, path: str) -> None:
        os.write(1, f"{name} {path}\n".encode())
        super().operate(name, path)


@dataclass
class Kills:
    """The kills of one method, below a folder of its own."""

    folder: Path
    method: str

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.suite = write_suite(self.folder, self.method)
        self._log = self.folder / "log"
        assert not self._kill(-1)
        self.expected = self._left()

    def disturb(self, chosen: random.Random) -> tuple[Counter[str], list[str]]:
        """Do the work from nothing, with kills.

        Returns the kills by operation and file, and the names of files that differ from the
        undisturbed run's.
        """
        shutil.rmtree(self.folder / "runs")
        shutil.rmtree(self.folder / "report")
        kills: Counter[str] = Counter()
        while operation := self._kill(chosen.randrange(SPAN)):
            kills[operation] += 1
        left = self._left()
        names = {*left, *self.expected}
        different = sorted(name for name in names if left.get(name) != self.expected.get(name))
        return kills, different

    def _kill(self, at: int) -> str:
        """Run in a copy of this process, which is killed before operation number `at`.

        Returns the operation and its file, "" if the run ended before.
        """

        def run() -> int:
            executor: Any = local
            # so models are scored in this process, which is killed
            executor.list_physical_cores = lambda: [(0,)]
            NotedDisk(self.folder, at, "ends").install()
            places = ["--runs", str(self.folder / "runs"), "--out", str(self.folder / "report")]
            return run_all.main(["run", str(self.suite), *places])

        ended = os.waitpid(processes.forked(run, self._log), 0)[1]
        status = os.waitstatus_to_exitcode(ended)
        assert status in (0, -signal.SIGKILL), (
            f"{self.method}: the run ended with {status}: see {self._log}"
        )
        if status == 0:
            return ""
        last = self._log.read_text().splitlines()[-1]
        return CHANGING.sub("*", last.replace(f"{self.folder}/", ""))

    def _left(self) -> dict[str, Any]:
        """What must be the same, by file: checksums of models, tokens and tables, and records
        without measures of time.

        Pictures, heartbeats of runs, and the page, which shows times, must only exist. Locks do not
        count, nor do unfinished files outside of stages.
        """
        left: dict[str, Any] = {}
        for path in sorted(self.folder.rglob("*")):
            name = path.relative_to(self.folder).as_posix()
            if (
                not path.is_file()
                or not name.startswith(("runs/", "report/"))
                or "lock" in path.name
            ):
                continue
            if path.name.startswith(".") and "stages" not in path.parts:
                continue  # what a killed writer leaves is removed a day later
            if path.suffix == ".jsonl":
                lines = read_stage_lines(path) if path.name == "records.jsonl" else read_lines(path)
                left[name] = [_without_time(line) for line in lines if line["kind"] != "resumed"]
            elif path.suffix in (".pdf", ".png", ".html") or path.parent.parent.name == "suites":
                left[name] = "there"
            else:
                left[name] = hashlib.sha256(path.read_bytes()).hexdigest()
        return left


def _without_time(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            key: _without_time(inner) for key, inner in value.items() if key not in MEASURES_OF_TIME
        }
    return [_without_time(inner) for inner in value] if isinstance(value, list) else value
