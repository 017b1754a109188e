"""A job of Slurm from the inside: signals, and what it asks Slurm; tests/test_slurm.py has it on a cluster."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from benchmark.jobs.executors.slurm import commands, job
from benchmark.jobs.executors.slurm.job import TIME_OVER, Task
from benchmark.jobs.pool import StopSignals
from benchmark.jobs.work import Worker
from benchmark.training.processes import Stopped

SLURM = {"JOB_ID": "7", "NTASKS": "1", "PROCID": "0", "LOCALID": "0", "JOB_NODELIST": "n1", "NODEID": "0"}


@pytest.fixture(autouse=True)
def place(monkeypatch: pytest.MonkeyPatch) -> None:
    """One process of a job of Slurm, as its environment says."""
    for name, value in SLURM.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    for name in ("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        monkeypatch.setenv(name, "1")  # the job sets them; this puts them back
    monkeypatch.setenv("SUBMITIT_EXECUTOR", "slurm")


@dataclass
class Signalled:
    """Work that gets signals, and does not see them before it polls."""

    numbers: list[int]
    polls: ClassVar[bool] = True

    def __call__(self, worker: Worker) -> None:
        assert worker.world.exclusive is True and not worker.asked_to_stop()
        for number in self.numbers:
            os.kill(os.getpid(), number)
        if worker.asked_to_stop():
            raise Stopped


def run(*numbers: int, restarts: int = 9) -> None:
    unit: Any = Signalled([*numbers])
    Task((unit,), gpus=False, exclusive=True, restarts=restarts)()


def test_stop_signals() -> None:
    """They are noted, not obeyed at once; a second Ctrl-C insists; work that does not poll is stopped at once."""
    outside = signal.getsignal(signal.SIGINT)
    with StopSignals(signal.SIGINT, signal.SIGTERM) as asked:
        assert not asked()
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGINT)
        assert asked() and asked.came == [signal.SIGTERM, signal.SIGINT]
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) == outside
    with pytest.raises(Stopped), StopSignals(signal.SIGTERM, at_once=True):
        os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.parametrize(
    ("numbers", "told", "code", "asked"),
    [
        ([TIME_OVER], "", 0, ["requeue"]),
        ([TIME_OVER, signal.SIGTERM], "", 0, ["requeue"]),
        ([signal.SIGTERM], "   PreemptTime=None\n", 143, ["show"]),
        # what scontrol of Slurm 22.05 said of one that gave way to another
        ([signal.SIGTERM], "   PreemptEligibleTime=2026 PreemptTime=2026-11-23T02:49:30\n", 0, ["show", "requeue"]),
    ],
)
def test_who_is_queued_again(monkeypatch, numbers: list[int], told: str, code: int, asked: list[str]) -> None:
    """Oracle: the rule: whose time is over, or who gives way; not who is cancelled."""
    words: list[str] = []
    monkeypatch.setattr(commands, "ask", lambda *command: words.append(command[1]) or told)
    with pytest.raises(SystemExit) as ended:
        run(*numbers)
    assert (ended.value.code, words) == (code, asked)


@pytest.mark.parametrize(
    ("answers", "asked", "told"),
    [
        (["Unable to contact slurm controller", "Socket timed out", ""], 3, ""),
        (["Access/permission denied"], 1, "Access/permission denied"),
    ],
)
def test_a_silent_controller_is_asked_again(monkeypatch, capsys, answers: list[str], asked: int, told: str) -> None:
    """Oracle: the rule: one question each five seconds, until it answers or refuses."""
    calls = iter(answers)

    def ask(*command: str) -> str:
        if said := next(calls):
            raise commands.SlurmError(f"`{' '.join(command)}` failed: {said}")
        return ""

    monkeypatch.setattr(job, "PAUSE", 0.0)
    monkeypatch.setattr(commands, "ask", ask)
    with pytest.raises(commands.SlurmError, match=told) if told else pytest.raises(SystemExit):
        run(TIME_OVER)
    assert len([*calls]) == len(answers) - asked
    assert capsys.readouterr().err.count("; asking again in ") == asked - 1


def test_no_job_is_queued_again_for_ever(monkeypatch) -> None:
    monkeypatch.setenv("SLURM_RESTART_COUNT", "3")
    with pytest.raises(ValueError, match=r"queued again 3 times: raise slurm\.max_num_timeout"):
        run(TIME_OVER, restarts=3)


def test_cores_of_a_job(monkeypatch) -> None:
    """Oracle: by hand: of eight cores that it may run on two are the job's: nothing is pinned but on
    a whole node."""
    monkeypatch.setattr(job, "physical_cores", lambda: [(core,) for core in range(8)])
    monkeypatch.setenv("SLURM_CPUS_ON_NODE", "2")
    steps: Any = SimpleNamespace(config=SimpleNamespace(budget=SimpleNamespace(unit="steps")))
    seconds: Any = SimpleNamespace(config=SimpleNamespace(budget=SimpleNamespace(unit="seconds")))
    slots = Task((steps,), False, False, 9, side_by_side=2)._slots()
    assert [(slot.cores, slot.threads) for slot in slots] == [((), 1)] * 2
    assert [slot.cores for slot in Task((seconds,), False, True, 9, side_by_side=2)._slots()] == [
        (0, 1, 2, 3),
        (4, 5, 6, 7),
    ]
