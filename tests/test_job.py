"""A Slurm job from the inside: its signals, and what it asks Slurm. tests/test_slurm.py runs jobs
on a cluster.
"""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest

from benchmark import cancel
from benchmark.errors import UserError
from benchmark.jobs import pool
from benchmark.jobs.executors.slurm import commands, job
from benchmark.jobs.executors.slurm.job import TIME_OVER, Task
from benchmark.jobs.pool import StopSignals
from benchmark.jobs.work import Worker
from benchmark.locks import JOB
from benchmark.training.processes import Sources

SOURCES = Sources.read()
SLURM = {
    "JOB_ID": "7",
    "NTASKS": "1",
    "PROCID": "0",
    "LOCALID": "0",
    "JOB_NODELIST": "n1",
    "NODEID": "0",
}


@pytest.fixture(autouse=True)
def place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Set the environment of a Slurm job's only process."""
    for name, value in SLURM.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    for name in (
        "MASTER_ADDR",
        "MASTER_PORT",
        "RANK",
        "WORLD_SIZE",
        "LOCAL_RANK",
        "LOCAL_WORLD_SIZE",
    ):
        monkeypatch.setenv(name, "1")  # the job sets them, and monkeypatch restores them
    monkeypatch.setenv("SUBMITIT_EXECUTOR", "slurm")
    monkeypatch.setenv("SUBMITIT_FOLDER", str(tmp_path))
    monkeypatch.setenv(JOB, "")


@dataclass
class Signalled:
    """Work that gets signals, and does not see them before it polls."""

    numbers: list[int]
    kept: bool = True
    owner: str = ""
    polls: ClassVar[bool] = True
    kind: ClassVar[str] = "stages"
    places: ClassVar[list[Path]] = []  # where it was called
    done: ClassVar[list[str]] = []  # what is kept of it

    def describe_progress(self) -> list[str]:
        return [*self.done]

    def find_owning_job(self) -> str:
        return self.owner

    def __call__(self, worker: Worker) -> None:
        self.places.append(Path.cwd())
        if self.kept:
            self.done.append("a step")
        assert not cancel.is_asked()
        if self.owner and not worker.waits:
            raise cancel.Taken
        for number in self.numbers:
            os.kill(os.getpid(), number)
        cancel.check()


def run(*numbers: int, **of_unit: Any) -> None:
    unit: Any = Signalled([*numbers], **of_unit)
    Task((unit,), gpus=False, exclusive=True, folder=Path.cwd(), sources=SOURCES)()


def test_stop_signals() -> None:
    """Oracle: the rule of `StopSignals`: signals are noted, not obeyed at once. A second Ctrl-C
    interrupts. Work that does not poll is stopped at once.
    """
    outside = signal.getsignal(signal.SIGINT)
    with StopSignals(signal.SIGINT, signal.SIGTERM) as signals:
        assert not cancel.is_asked()
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGINT)
        assert cancel.is_asked() and signals.came == [signal.SIGTERM, signal.SIGINT]
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) == outside and not cancel.is_asked()
    with pytest.raises(cancel.Stopped), StopSignals(signal.SIGTERM, at_once=True):
        os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.parametrize(
    ("numbers", "told", "code", "asked"),
    [
        ([TIME_OVER], "", 0, ["show", "requeue"]),
        ([TIME_OVER, signal.SIGTERM], "", 0, ["show", "requeue"]),
        ([signal.SIGTERM], "   PreemptTime=None\n", 143, ["show"]),
        # what scontrol of Slurm 22.05 said of a preempted job
        (
            [signal.SIGTERM],
            "   PreemptEligibleTime=2026 PreemptTime=2026-11-23T02:49:30\n",
            0,
            ["show", "requeue"],
        ),
    ],
)
def test_who_is_queued_again(
    monkeypatch, numbers: list[int], told: str, code: int, asked: list[str]
) -> None:
    """Oracle: the rule: a job whose time is over or that is preempted, but no cancelled job."""
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
def test_a_silent_controller_is_asked_again(
    monkeypatch, capsys, answers: list[str], asked: int, told: str
) -> None:
    """Oracle: the rule: a request every five seconds until the controller answers or refuses."""
    calls = iter(answers)

    def ask(*command: str) -> str:
        if command[1] != "show" and (said := next(calls)):
            raise commands.SlurmError(f"`{' '.join(command)}` failed: {said}")
        return ""

    monkeypatch.setattr(job, "PAUSE", 0.0)
    monkeypatch.setattr(commands, "ask", ask)
    with pytest.raises(commands.SlurmError, match=told) if told else pytest.raises(SystemExit):
        run(TIME_OVER)
    assert len([*calls]) == len(answers) - asked
    assert capsys.readouterr().err.count("`scontrol requeue 7` ") == asked - 1


def test_a_job_that_adds_nothing_ends_after_two_starts(monkeypatch) -> None:
    """Oracle: by hand: four starts reach the time limit, and only the second adds something. So the
    fourth is the second in vain in a row. Preempted starts in between do not count.
    """
    told = ["PreemptTime=None"]
    monkeypatch.setattr(commands, "ask", lambda *command: told[0] if command[1] == "show" else "")
    for kept in (False, True, False):
        with pytest.raises(SystemExit):
            run(TIME_OVER, kept=kept)
    told[0] = "PreemptTime=2026-11-23T02:49:30"
    for _ in range(3):
        with pytest.raises(SystemExit):
            run(TIME_OVER, kept=False)
    told[0] = "PreemptTime=None"
    with pytest.raises(UserError, match=r"2 starts .*slurm\.train\.time"):
        run(TIME_OVER, kept=False)


def test_a_job_goes_behind_the_one_that_has_what_it_needs(monkeypatch) -> None:
    """Oracle: the requests to Slurm: the job is queued again, behind the job that has the work. If
    an earlier start of the same job has the work, it waits. If Slurm refuses the dependency, the
    job is queued again without it, and looks again when it starts.
    """
    words: list[tuple[str, ...]] = []
    monkeypatch.setattr(commands, "ask", lambda *command: words.append(command[1:]) or "")
    with pytest.raises(SystemExit) as ended:
        run(owner="12_3")
    assert ended.value.code == 0
    assert words == [("requeue", "7"), ("update", "JobId=7", "Dependency=afterany:12_3")]
    run(owner="7")
    assert len(words) == 2

    def refuse(*command: str) -> str:
        if command[1] == "update":
            raise commands.SlurmError("Circular dependency")
        return ""

    monkeypatch.setattr(commands, "ask", refuse)
    with pytest.raises(SystemExit):
        run(owner="12")


def test_cores_of_a_job(monkeypatch) -> None:
    """Oracle: by hand: a job may run on eight cores, of which Slurm gave it two: it pins nothing,
    except if it has the node to itself.
    """
    monkeypatch.setattr(pool, "list_physical_cores", lambda: [(core,) for core in range(8)])
    slots = pool.share_job(2, 2, is_alone=False)
    assert [(slot.cores, slot.threads) for slot in slots] == [((), 1)] * 2
    whole = pool.share_job(2, 2, is_alone=True)
    assert [slot.cores for slot in whole] == [(0, 1, 2, 3), (4, 5, 6, 7)]


def test_a_job_inherits_nothing_of_an_outer_one(monkeypatch) -> None:
    """By hand: of an outer job's variables, a command gets only SLURM_CONF, by which Slurm is
    reached.
    """
    for key in ("SLURM_MEM_PER_CPU", "SQUEUE_STATES", "SLURM_CONF", "SLURM_JOB_ID"):
        monkeypatch.setenv(key, "x")
    kept = commands.ask("sh", "-c", "env")
    assert "SLURM_CONF=x" in kept and "SQUEUE_" not in kept and "MEM_PER_CPU" not in kept
    assert os.environ["SLURM_JOB_ID"] == "x"
    with pytest.raises(commands.SlurmError, match="no-such-program .*--executor local"):
        commands.ask("no-such-program")


def test_a_job_finds_what_a_suite_calls_from_where_it_was_submitted(tmp_path, monkeypatch) -> None:
    """Oracle: the folder from which the job was submitted. If the node does not have it, the job
    goes on where it is.
    """
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    for folder, seen in (
        (tmp_path / "mine", tmp_path / "mine"),
        (tmp_path / "gone", tmp_path / "mine"),
    ):
        unit: Any = Signalled([])
        Task((unit,), gpus=False, exclusive=True, folder=folder, sources=SOURCES)()
        assert Signalled.places[-1] == seen


@dataclass
class Noted(Signalled):
    """Work that notes its name, and then fails or gets a signal."""

    name: str = ""
    fails: bool = False

    def __call__(self, worker: Worker) -> None:
        self.done.append(self.name)
        if self.fails:
            raise KeyError(self.name)
        super().__call__(worker)


def test_of_several_units_of_a_job_one_that_fails_stops_no_other(monkeypatch, capsys) -> None:
    """Oracle: by hand: all units are done, and the job raises the first error. A signal that one
    unit did not see stops the job before the next unit.
    """
    monkeypatch.setattr(Signalled, "done", [])
    work: Any = (
        Noted([], name="a", fails=True),
        Noted([], name="b", fails=True),
        Noted([], name="c"),
    )
    with pytest.raises(KeyError, match="a"):
        Task(work, gpus=False, exclusive=True, folder=Path.cwd(), sources=SOURCES)()
    assert [word for word in Signalled.done if len(word) == 1] == ["a", "b", "c"]
    assert "b  failed: " in capsys.readouterr().err
    monkeypatch.setattr(Signalled, "done", [])
    monkeypatch.setattr(commands, "ask", lambda *command: "PreemptTime=None")
    work = (Noted([], name="d"), Noted([], name="e"))
    monkeypatch.setattr(
        Noted,
        "__call__",
        lambda unit, worker: (
            Signalled.done.append(unit.name),
            os.kill(os.getpid(), signal.SIGTERM),
        ),
    )
    with pytest.raises(SystemExit) as ended:
        Task(work, gpus=False, exclusive=True, folder=Path.cwd(), sources=SOURCES)()
    assert ended.value.code == 128 + signal.SIGTERM
    assert Signalled.done == ["d"]
