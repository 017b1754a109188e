"""Submissions to a real Slurm that are cut short, by a kill or by the cluster's limits; see tests/test_slurm.py."""

from __future__ import annotations

import itertools
import os
import re
import signal
import subprocess
from collections import Counter
from pathlib import Path

from benchmark.jobs.slurm import commands
from benchmark.orphans import end_with
from tests.support.slurm_lab import Lab, needs_slurm, scontrol, write_task

pytestmark = needs_slurm


def submit_and_die(lab: Lab, call: int, answered: bool) -> bool:
    """Submit in a copy of this process that kills itself at a call to Slurm: before it, or when it is `answered`.

    Returns whether there were so many.
    """
    ask, parent, child = commands._ask, os.getpid(), os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    calls = itertools.count(1)

    def die_at(command: list[str]) -> str:
        dies = next(calls) == call
        answer = ask(command) if answered or not dies else ""
        if dies:
            os.kill(os.getpid(), signal.SIGKILL)
        return answer

    try:
        end_with(parent)
        commands._ask = die_at
        lab.submit()
    finally:
        os._exit(0)


def waits(lab: Lab) -> dict[str, set[str]]:
    """What each job in Slurm's queue waits for, by the names that they were noted with."""
    known = lab.jobs()
    names, found = {job.id: job.name for job in known}, {}
    told = subprocess.run(
        ["squeue", "--noheader", "--array", "--format=%i|%E"], capture_output=True, text=True, check=True
    )
    for job, text in (line.split("|") for line in told.stdout.splitlines()):
        ids = set()
        for kind, array, task in re.findall(r"(\w+):(\d+)(_\*|_\d+)?", text):
            if kind == "aftercorr":
                task = job[job.index("_") :]
            ids |= {f"{array}{task}"} if task != "_*" else {one.id for one in known if one.array == array}
        found[names[job]] = {names[id] for id in ids}
    return found


def test_a_submitter_killed_at_every_step(lab: Lab, texts: Path, capfd) -> None:
    """It dies at each of its calls to Slurm, before it or with the answer. Oracle: what Slurm has, and what that waits
    for, after an undisturbed submission: the next `run` comes to the same, each job once, and leaves nothing held."""
    scontrol("update", "PartitionName=main", "State=DOWN")  # jobs wait

    def new(name: str) -> Lab:
        one = Lab(lab.folder / name, texts, data=lab.runs / "data")
        return one.write('{ method = "naive" }', '{ method = "er" }', tasks=write_task(one.folder))

    try:
        whole = new("whole")
        assert whole.submit() == 0
        expected = waits(whole)
        commands.cancel(list(commands.queue()))
        assert set(expected) == {
            *("tiny:wood-of-2-s0", "tiny:naive-s0", "tiny:er-s0"),
            *("tiny:score-naive-s0-sea", "tiny:score-er-s0-sea", "tiny:report"),
        }
        for step in itertools.count():
            call, answered = 1 + step // 2, step % 2 == 1
            one = new(f"step-{step}")
            if not submit_and_die(one, call, answered):
                break
            left = set(commands.queue()) - {job.id for job in one.jobs()}
            capfd.readouterr()
            assert one.call("status") == 0
            assert ("before it noted it" in capfd.readouterr().out) == bool(left), (call, answered)
            assert one.submit() == 0
            queue = commands.queue()
            assert Counter(job.name for job in one.jobs()) == Counter([*expected]), (call, answered)
            assert set(queue) == {job.id for job in one.jobs()}, (call, answered)
            assert not [job for job, known in queue.items() if known.reason.startswith("JobHeld")], (call, answered)
            assert waits(one) == expected, (call, answered)
            commands.cancel(list(queue))
        assert call == 8, "two questions, three submissions, a dependency, and letting go"
    finally:
        scontrol("update", "PartitionName=main", "State=UP")
