"""Slurm's commands as a table in memory: what was submitted, with which limits, and how often it was asked."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from benchmark.jobs.slurm import commands

if TYPE_CHECKING:  # it imports torch
    from tests.support.slurm_lab import Lab


@dataclass
class Submitted:
    """An array, or a job without one (then `tasks` is empty)."""

    script: str
    tasks: tuple[int, ...]
    parallelism: int
    dependency: str
    text: str


class FakeSlurm:
    """Takes the place of the programs for this process. `largest`: MaxArraySize; `most`: MaxSubmitJobs.

    `settings` are others of the controller's, `users` those whose jobs were asked for.
    """

    def __init__(
        self, folder: Path, patch: pytest.MonkeyPatch, largest: int = 1001, most: int = 10**9, **settings: str
    ) -> None:
        self.largest, self.most, self.settings = largest, most, settings
        self.users = ""
        self.calls: Counter[str] = Counter()
        self.arrays: dict[str, Submitted] = {}
        self.released: set[str] = set()
        self.cancelled: set[str] = set()
        self.wired: dict[str, str] = {}  # a task's own dependency
        folder.mkdir()
        (folder / "srun").write_text("#!/bin/sh\n")
        (folder / "srun").chmod(0o755)
        patch.setenv("PATH", str(folder), prepend=":")
        patch.setattr(commands, "_ask", self.answer)

    def answer(self, command: list[str]) -> str:
        program, *words = command
        self.calls[" ".join(command[:2]) if program == "scontrol" else program] += 1
        if program == "sbatch":
            return self._submit(words[-1])
        if program == "squeue":
            self.users = words[2].partition("=")[2]
            return "".join(
                f"{job}|PENDING|{self._reason(job)}||{self.arrays[_array(job)].script}\n" for job in self.jobs
            )
        if words[:2] == ["show", "config"]:
            told = {"Foo": 1, "MaxArraySize": self.largest, **self.settings}
            return "".join(f"{name:<23} = {value}\n" for name, value in told.items())
        if program == "sacct":
            raise commands.SlurmError(f"Slurm {commands.NO_ACCOUNTS}")
        if program == "scancel":
            self.cancelled |= set(_each(",".join(words)))
        if words[0] == "release":
            self.released |= set(_each(words[1]))
        if words[0] == "update":
            self.wired |= dict.fromkeys(_each(words[1].partition("=")[2]), words[2].partition("=")[2])
        return ""

    @property
    def jobs(self) -> list[str]:
        each = (job for id, one in self.arrays.items() for job in ([f"{id}_{task}" for task in one.tasks] or [id]))
        return [job for job in each if job not in self.cancelled]

    def _reason(self, job: str) -> str:
        return "Priority" if job in self.released else "JobHeldUser"

    def _submit(self, script: str) -> str:
        text = Path(script).read_text()
        flags = dict(re.findall(r"^#SBATCH --([\w-]+)=(.*)$", text, re.MULTILINE))
        tasks, _, cap = flags.get("array", "").strip("'").partition("%")
        numbers = tuple(_numbers(tasks))
        if numbers and max(numbers) >= self.largest:
            raise commands.SlurmError("sbatch: error: Invalid job array specification")
        if len(self.jobs) + max(1, len(numbers)) > self.most:
            raise commands.SlurmError("sbatch: error: AssocMaxSubmitJobLimit")
        id = str(100 + len(self.arrays))
        self.arrays[id] = Submitted(script, numbers, int(cap or 1), flags.get("dependency", ""), text)
        return f"{id};cluster\n"


def after(lab: Lab, slurm: FakeSlurm, job: str) -> set[str]:
    """The noted jobs that Slurm lets a job wait for: its own dependency, or its array's."""
    array, _, task = job.partition("_")
    found: set[str] = set()
    for one in (slurm.wired.get(job) or slurm.arrays[array].dependency).split(","):
        kind, *ids = one.split(":")
        if kind == "aftercorr":
            found.add(f"{ids[0]}_{task}")
        else:
            found |= {noted.id for noted in lab.jobs() if noted.id in ids or noted.array in ids}
    return found


def _numbers(text: str) -> list[int]:
    bounds = [part.split("-") for part in text.split(",") if part]
    return [number for first, *last in bounds for number in range(int(first), int((last or [first])[0]) + 1)]


def _each(ids: str) -> list[str]:
    """The ids in one word of a command, 12_[0-2],13."""
    found = []
    for array, tasks, single in re.findall(r"(\d+)(?:_\[([^\]]*)\]|(_\d+)?)", ids):
        found += [f"{array}_{number}" for number in _numbers(tasks)] if tasks else [array + single]
    return found


def _array(job: str) -> str:
    return job.partition("_")[0]
