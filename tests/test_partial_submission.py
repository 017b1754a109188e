"""Submissions that a limit cuts off or a signal ends, and the next `run`; Slurm is a table in memory."""

from __future__ import annotations

import errno
import random
import re
from pathlib import Path
from typing import Any

import pytest

from benchmark.jobs.slurm import commands, job_files
from tests.support.fake_slurm import FakeSlurm, after
from tests.support.slurm_lab import Lab, write_task, write_texts
from tests.support.thorough import THOROUGH, one_in

SEEDS = ",".join(map(str, range(30)))
ROWS = '{ method = "naive" }', '{ method = "er" }'


@pytest.fixture
def lab(tmp_path) -> Lab:
    write_texts(tmp_path)
    return Lab(tmp_path / "lab", tmp_path).write(*ROWS)


@pytest.mark.parametrize(
    ("most", "rest"), [(50, "the runs and scores that are left"), (91, "the scores that are left"), (151, "the rest")]
)
def test_more_than_may_be_submitted_is_gone_on_with(
    lab: Lab, tmp_path, monkeypatch, capsys, most: int, rest: str
) -> None:
    """Oracle: MaxSubmitJobs: as many as it allows, the rest by the next `run`, which `status` says; no job twice, none
    forgotten. The text, 90 stages and runs, 60 scores and a report are 152 jobs."""
    lab.write(*ROWS, tasks=write_task(lab.folder))
    slurm = FakeSlurm(tmp_path / "bin", monkeypatch, most=most)
    assert lab.submit("--seeds", SEEDS) == 3
    told = capsys.readouterr().out
    assert f"{most} jobs submitted" in told and f"! Slurm took no more: {152 - most} jobs are left" in told
    assert len(lab.jobs()) == most == len(slurm.released)
    lab.call("status", "--seeds", SEEDS)
    next_step = capsys.readouterr().out.splitlines()[-1]
    assert "next: `python run_all.py run " in next_step and f" submits {rest}; `" in next_step
    assert lab.submit("--seeds", SEEDS) == 2, "nothing fits any more, which is an error"
    assert "AssocMaxSubmitJobLimit" in capsys.readouterr().err
    slurm.most = 1000
    assert lab.submit("--seeds", SEEDS) == 0
    keys = [job.key for job in lab.jobs()]
    assert len(keys) == 152 == len(set(keys))
    capsys.readouterr()
    lab.call("status", "--seeds", SEEDS)
    assert capsys.readouterr().out.splitlines()[-1].startswith("next: `python run_all.py status ")


@pytest.mark.parametrize("left", [1, 2])
def test_a_run_that_is_left_waits_for_its_shared_stage(lab: Lab, tmp_path, monkeypatch, left: int) -> None:
    """Oracle: the graph: it needs that, under way as one task of an array, and no other task."""
    slurm = FakeSlurm(tmp_path / "bin", monkeypatch, most=3)
    lab.write(*(ROWS + ('{ method = "ewc" }',) * (left - 1)))
    assert lab.submit() == 3
    slurm.most = 100
    assert lab.submit() == 0
    ids = {job.name: job.id for job in lab.jobs()}
    [shared] = [id for name, id in ids.items() if "wood-of" in name]
    for row in ("er", "ewc")[:left]:
        assert after(lab, slurm, ids[f"tiny:{row}-s0"]) == {ids["tiny:prepare"], shared}


def test_who_waits_is_told_too_that_something_is_left(lab: Lab, tmp_path, monkeypatch) -> None:
    """Oracle: the exit status without --wait; all that was submitted is over when it is first looked at."""
    slurm = FakeSlurm(tmp_path / "bin", monkeypatch, most=3)
    monkeypatch.setattr(
        commands, "_ask", lambda words: "" if words[0] == "squeue" and slurm.arrays else slurm.answer(words)
    )
    assert lab.submit("--wait") == 3


def test_what_is_refused_in_the_middle_is_gone_on_with(lab: Lab, tmp_path, monkeypatch, capsys) -> None:
    """Oracle: what is submitted undisturbed: the ids are said, what was submitted runs, and `run` submits the rest."""
    slurm = FakeSlurm(tmp_path / "bin", monkeypatch)

    def refuse(command: list[str]) -> str:
        if (command[0] == "sbatch" and slurm.calls["sbatch"] == 2) or (command[1] == "release" and released):
            raise commands.SlurmError("sbatch: error: Invalid account or partition")
        return slurm.answer(command)

    released: list[str] = []
    monkeypatch.setattr(commands, "_ask", refuse)
    assert lab.submit() == 3
    told = capsys.readouterr().out
    assert "in 2 calls: 100, 101" in told and "Invalid account" in told and "`run` again submits them" in told
    assert {job.id for job in lab.jobs()} == slurm.released == set(slurm.jobs)
    released += ["from here on nothing is"]
    slurm.calls["sbatch"] = 3
    assert lab.submit() == 2
    assert "submitted, but still held: 102; the same command lets them go" in capsys.readouterr().err
    released.clear()
    assert lab.submit() == 0
    assert {job.id for job in lab.jobs()} == slurm.released and len(lab.jobs()) == 5


@pytest.mark.parametrize("step", range(4))
def test_a_full_disk_leaves_no_job_untold(lab: Lab, tmp_path, monkeypatch, capsys, step: int) -> None:
    """The disk is full at one of the notes of submissions and of what was let go. Oracle: each id that Slurm has given
    by then is said; with room the next `run` comes to what is submitted undisturbed."""
    slurm, notes, append = FakeSlurm(tmp_path / "bin", monkeypatch), list[object](), job_files.append_each

    def full(lines: dict[Path, Any]) -> None:
        notes.append(lines)
        if len(notes) == step + 1:
            raise OSError(errno.ENOSPC, "No space left on device", "x.jsonl")
        append(lines)

    monkeypatch.setattr(job_files, "append_each", full)
    assert lab.submit() == 2
    sent = ", ".join(slurm.arrays)
    told = f"error: submitted, but still held: {sent}; the same command lets them go, or submits them again. [Errno 28]"
    assert told in capsys.readouterr().err
    assert lab.submit() == 0
    assert len(lab.jobs()) == 5 and {job.id for job in lab.jobs()} == slurm.released == set(slurm.jobs)


class Killed:
    """Slurm's answers to a process that dies at a call that changes something: before it, or when it is `answered`."""

    def __init__(self, slurm: FakeSlurm, step: int, answered: bool) -> None:
        self.slurm, self.step, self.answered = slurm, step, answered
        self.changes: list[str] = []

    def __call__(self, command: list[str]) -> str:
        if command[0] == "squeue" or command[1] == "show":
            return self.slurm.answer(command)
        self.changes.append(command[0])
        dies = len(self.changes) > self.step
        answer = "" if dies and not self.answered else self.slurm.answer(command)
        if dies:
            raise KeyboardInterrupt
        return answer


@pytest.mark.parametrize("odd", one_in(2, [True, False]))
def test_a_submitter_killed_at_every_step(tmp_path, monkeypatch, capsys, odd: bool) -> None:
    """Oracle: what is submitted undisturbed: after the next `run` each job is noted once, wired and let go; what nobody
    noted is held, `status` says that `run` ends it, `--dry-run` that this will end it, and it does."""
    write_texts(tmp_path)
    whole = ["er-s0", "naive-s0", "prepare", "report", "score-er-s0-sea", "score-naive-s0-sea", "wood-of-2-s0"]
    for step in range(7):
        lab = Lab(tmp_path / f"lab-{step}", tmp_path)
        lab.write(*ROWS, tasks=write_task(lab.folder))
        slurm = FakeSlurm(tmp_path / f"bin-{step}", monkeypatch)
        answered = (step % 2 == 1) == odd
        monkeypatch.setattr(commands, "_ask", Killed(slurm, step, answered))
        assert lab.submit() == (130 if step < 6 else 0), "four submissions, a dependency, and letting go"
        monkeypatch.setattr(commands, "_ask", slurm.answer)
        capsys.readouterr()
        lab.call("status")
        lost = set(slurm.jobs) - {job.id for job in lab.jobs()}
        assert bool(lost) == (answered and step < 4) == ("`run` ends it" in capsys.readouterr().out)
        assert lab.submit("--dry-run") == 0
        ended = re.findall(r"^  (\d+) held jobs that nobody noted, to be ended: (.*)$", capsys.readouterr().out, re.M)
        assert ended == ([(str(len(lost)), ", ".join(commands.shortened(sorted(lost))))] if lost else [])
        assert lab.submit() == 0
        jobs = lab.jobs()
        assert sorted(job.name for job in jobs) == [f"tiny:{name}" for name in whole], step
        assert {job.id for job in jobs} == slurm.released == set(slurm.jobs) and slurm.cancelled == lost, step
        waits = {job.name: after(lab, slurm, job.id) for job in jobs}
        assert all(waits[job.name] >= {*job.submitted["after"], *job.submitted["needs"]} for job in jobs)
        for row in ("naive", "er"):
            assert waits[f"tiny:score-{row}-s0-sea"] == {job.id for job in jobs if job.name == f"tiny:{row}-s0"}


@pytest.mark.parametrize("seed", range(20 if THOROUGH else 4))
def test_submissions_disturbed_at_random(lab: Lab, tmp_path, monkeypatch, seed: int) -> None:
    """Some calls of `run` are killed, some meet a limit, of seeds that grow in number. Oracle: what one call submits
    undisturbed: each job is noted once, with what it needs, and let go; the last report waits for all others."""
    chosen = random.Random(seed)
    largest = chosen.choice([0, 3, 1001])
    lab.write(*ROWS, tasks=write_task(lab.folder), slurm=f"runs_per_job = {chosen.choice([1, 1, 3])}")
    lab.file.write_text(lab.file.read_text().replace("main_pretraining", "representational_similarity"))
    keys = []
    for name in ("undisturbed", "disturbed"):
        here = Lab(tmp_path / name, tmp_path)
        here.file.write_text(lab.file.read_text())
        slurm = FakeSlurm(tmp_path / f"bin-{name}", monkeypatch, largest=largest)
        for _ in range(6 if name == "disturbed" else 0):
            slurm.most = len(slurm.jobs) + chosen.randrange(12)
            killed = Killed(slurm, chosen.randrange(9), chosen.random() < 0.5)
            monkeypatch.setattr(commands, "_ask", chosen.choice([killed, slurm.answer]))
            here.submit("--seeds", chosen.choice(["0", "0,1", "0,1,2"]))
        monkeypatch.setattr(commands, "_ask", slurm.answer)
        slurm.most = 10**9
        assert here.submit("--seeds", "0,1,2") == 0
        jobs = here.jobs()
        assert {job.id for job in jobs} == slurm.released == set(slurm.jobs)
        waits = {job.id: after(here, slurm, job.id) for job in jobs}
        does: dict[str, set[str]] = {}
        for job in jobs:
            does.setdefault(job.id, set()).add(job.key)
            assert waits[job.id] >= {*job.submitted["after"], *job.submitted["needs"]}
        for job in jobs:
            for id in job.submitted["needs"]:
                assert {*job.submitted["serves"]} <= does[id], "it needs who trains its run"
        last = max((job for job in jobs if job.name.endswith(":report")), key=lambda job: int(job.id))
        others = [job for job in jobs if not job.name.endswith(":report")]
        assert waits[last.id] >= {job.id for job in others if job.name != "tiny:prepare"}
        keys.append(sorted(job.key for job in others))
    assert keys[0] == keys[1] and len(keys[0]) == len(set(keys[0])) == 1 + 9 + 6 + 6
