"""A fake Slurm, a table in memory that answers instead of Slurm's commands."""

from __future__ import annotations

import getpass
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import pytest
from submitit.core.utils import CommandFunction, FailedJobError, cloudpickle_dump

from benchmark.jobs.executors.slurm import commands


@dataclass
class Submitted:
    """A submitted array, or a single job, whose `tasks` is empty."""

    tasks: tuple[int, ...]
    parallelism: int
    after: tuple[str, ...]
    text: str
    folder: Path


DONE = "done"
LATE = "RUNNING|0:0|n1"  # the answer of accounts that lag behind the queue


class FakeSlurm:
    """Replaces Slurm's commands in this process.

    `largest` is MaxArraySize, `most` is MaxSubmitJobs.
    """

    def __init__(
        self, folder: Path, patch: pytest.MonkeyPatch, largest: int = 1001, most: int = 10**9
    ) -> None:
        self.largest, self.most = largest, most
        self.refusal, self.refused = "", ""  # sbatch's error, for scripts with this text
        self.calls: Counter[str] = Counter()
        self.arrays: dict[str, Submitted] = {}
        self.states: dict[str, str] = {}  # of jobs in the queue that are not PENDING
        self.restarts: dict[str, int] = {}
        self.accounts: dict[str, str] = {}  # of ended jobs: "FAILED|0:53|n4"
        self.held: set[str] = set()
        self.ended: set[str] = set()
        folder.mkdir()
        (folder / "srun").write_text("#!/bin/sh\n")
        (folder / "srun").chmod(0o755)
        patch.setenv("PATH", str(folder), prepend=":")
        patch.setattr(commands, "ask", self.answer)
        patch.setattr(
            CommandFunction, "__call__", lambda function: self.submit(function.command[-1])
        )

    @property
    def jobs(self) -> list[str]:
        """The ids of the jobs in the queue."""
        each = (
            job
            for id, array in self.arrays.items()
            for job in ([f"{id}_{task}" for task in array.tasks] or [id])
        )
        return [job for job in each if job not in self.ended]

    def answer(self, *command: str) -> str:
        self.calls[command[0]] += 1
        if command[0] == "squeue":
            assert f"--user={getpass.getuser()}" in command
            each = (
                (job, self.states.get(job, "PENDING"), self.restarts.get(job, 0))
                for job in self.jobs
            )
            reasons = ("Priority", "BeginTime")  # the second for jobs that were requeued
            lines = []
            for job, state, many in each:
                reason = "JobHeldUser" if job in self.held else reasons[many > 0]
                [name] = re.findall("--job-name=(.*)", self.arrays[job.partition("_")[0]].text)
                lines.append(f"{job}|{state}|{reason}|n1|{many}|{name}|\n")
            return "".join(lines)
        if command == ("scontrol", "show", "config"):
            return f"MaxArraySize            = {self.largest}\n"
        if command[0] == "sacct":
            asked = command[-1].partition("=")[2].split(",")
            return "".join(
                f"{job}|REQUEUED|0:0|n1\n" * self.restarts.get(job, 0)
                + f"{job}|{self.accounts.get(job, LATE)}\n"
                for job in asked
            )
        if command[0] == "scancel":
            of = {job: {job, job.partition("_")[0]} for job in self.jobs}
            self.end([job for job, ids in of.items() if ids & {*command[1:]}])
        return ""

    def end(
        self,
        jobs: Iterable[str],
        said: str = "slurmstepd: error: *** JOB 1 ON n1 CANCELLED AT 9 ***",
    ) -> None:
        """End jobs whose logs end with `said`.

        DONE and an empty `said` leave no log. DONE and a KeyError leave a result file, as from
        submitit.
        """
        for job in jobs:
            self.ended.add(job)
            log = commands.find_log(self.arrays[job.partition("_")[0]].folder, job)
            result = log.with_name(log.name.replace("log.out", "result.pkl"))
            if "KeyError" in said:
                cloudpickle_dump(("error", said), result)
            if said == DONE:
                cloudpickle_dump(("success", None), result)
            elif said:
                log.write_text(
                    (1 + self.restarts.get(job, 0))
                    * "INFO - Starting with JobEnvironment()\nepoch\n"
                    + said
                )

    def submit(self, script: str) -> str:
        self.calls["sbatch"] += 1
        text = Path(script).read_text()
        flags = dict(re.findall(r"^#SBATCH --([\w-]+)=(.*)$", text, re.MULTILINE))
        tasks, _, cap = flags.get("array", "").strip("'").partition("%")
        numbers = range(int(tasks.partition("-")[2]) + 1) if tasks else range(0)
        if self.refusal and self.refused in text:
            raise FailedJobError(self.refusal)
        if len(numbers) > self.largest:
            raise FailedJobError("sbatch: error: Invalid job array specification")
        if len(self.jobs) + max(1, len(numbers)) > self.most:
            raise FailedJobError("sbatch: error: AssocMaxSubmitJobLimit")
        id = str(100 + len(self.arrays))
        after = dict.fromkeys(re.findall(r"\d+", flags.get("dependency", "")))
        self.arrays[id] = Submitted(
            tuple(numbers), int(cap or 1), tuple(after), text, Path(script).parent
        )
        return f"Submitted batch job {id}"
