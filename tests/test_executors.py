"""Executors from outside: a folder of one's own adds one; and what Slurm's is to unpickle."""

from __future__ import annotations

import os
import pickletools
import subprocess
import sys
from pathlib import Path

import pytest

from benchmark.jobs import executors
from tests.support.slurm_lab import Lab, write_texts

ROOT = Path(__file__).parent.parent
TOY = '''
"""An executor in a file from outside: it does every job here and now, and notes it."""

import torch

from benchmark.jobs.states import History, JobState
from benchmark.training.processes import World


class Toy:
    done: list = []
    asks = False

    def __init__(self, suite, store):
        self.suite, self.store = suite, store

    def gpus(self, runs):
        return 3

    def describe(self, plan):
        return [f"  toy: {job.kind} {job.name}" for job in plan.jobs()]

    def execute(self, plan):
        for number, job in enumerate(plan.jobs(self.jobs())):
            keys = [other.key for other in self.done]
            assert all(key in keys for key in job.needs), "a job comes after those that it needs"
            job.payload(World(0, 1, torch.device("cpu")), lambda: False)
            history = History("no log", 1e9, ("toy node",), ended=1e10)
            self.done.append(JobState(str(number), job.key, job.name, "done", "", history, job.serves))
        return 0

    def jobs(self):
        return self.done

    def cancel(self, jobs):
        self.done.append(jobs)


EXECUTOR = Toy
'''


@pytest.fixture
def lab(tmp_path) -> Lab:
    write_texts(tmp_path)
    return Lab(tmp_path / "lab", tmp_path).write('{ method = "naive" }', '{ method = "er" }')


def test_a_file_adds_an_executor(lab: Lab, monkeypatch, capsys) -> None:
    """Oracle: the plan: data, the shared stage, two runs, the report; no other file of the project is touched."""
    (lab.folder / "toy.py").write_text(TOY)
    inside = executors.names()
    monkeypatch.setattr(executors, "__path__", [*executors.__path__, str(lab.folder)])
    assert executors.names() == sorted([*inside, "toy"]) and {"local", "slurm"} <= set(inside)
    assert lab.call("run", "--dry-run", "--executor", "toy", "--set", "budget.unit=seconds") == 0
    told = capsys.readouterr().out
    assert "  toy: prepare tiny:prepare\n  toy: train tiny:wood-of-2-s0\n  toy: train tiny:naive-s0\n" in told
    assert f"{480 * 3 / 3600:,.1f} GPU-hours" in told
    assert lab.call("run", "--executor", "toy") == 0
    table = (lab.folder / "report" / "tiny" / "main_pretraining.md").read_text()
    assert "Naive" in table and "ER" in table and "--" not in table.split("Naive")[1].split("\n")[0]
    assert {state.state for state in lab.states().values()} == {"done"}
    assert lab.states()["ER"].job.history.node == "toy node"
    assert executors.find("toy").done[-1].key.startswith("report-")  # type: ignore[attr-defined]
    capsys.readouterr()
    assert lab.call("cancel") == 0
    assert "no jobs to end" in capsys.readouterr().out and executors.find("toy").done.pop() == []  # type: ignore[attr-defined]
    del sys.modules[f"{executors.__name__}.toy"]


def write_programs(folder: Path) -> None:
    """Stand-ins for Slurm's: they accept everything, and no job ever starts."""
    folder.mkdir()
    for name in ("srun", "squeue", "scontrol", "sacct"):
        (folder / name).write_text("#!/bin/sh\n")
    (folder / "sbatch").write_text("#!/bin/sh\necho $$\n")
    for program in folder.iterdir():
        program.chmod(0o755)


def test_nothing_that_is_pickled_lives_in_main(lab: Lab) -> None:
    """Oracle: the pickles that submitit leaves: a job's process has another `__main__`, and unpickles no code, or what
    is in a snapshot would not be what runs."""
    write_programs(lab.folder / "bin")
    subprocess.run(
        [sys.executable, "run_all.py", *lab.arguments("run", "--executor", "slurm")],
        cwd=ROOT,
        env={**os.environ, "PATH": f"{lab.folder / 'bin'}:{os.environ['PATH']}"},
        check=True,
        capture_output=True,
        timeout=120,
    )
    pickles = list(lab.runs.rglob("*.pkl"))
    assert len(pickles) == 5, "data, a shared stage, two runs, the report"
    for path in pickles:
        words = {argument for _, argument, _ in pickletools.genops(path.read_bytes()) if isinstance(argument, str)}
        assert "SlurmJob" in words and "benchmark.jobs.payloads" in words
        assert "__main__" not in words and not {word for word in words if "_make_function" in word}
