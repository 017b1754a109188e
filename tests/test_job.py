"""A job of Slurm from the inside, without a cluster: the pinned code, signals, how it ends."""

from __future__ import annotations

import gc
import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from submitit.slurm.slurm import SlurmJobEnvironment

from benchmark.data import tokens
from benchmark.data.tokens import corpus_if_prepared
from benchmark.errors import UserError
from benchmark.jobs import side_by_side, stop_signals
from benchmark.jobs.payloads import PrepareData, TrainRun
from benchmark.jobs.plan import PlannedJob
from benchmark.jobs.slots import physical_cores
from benchmark.jobs.slurm import bundle, commands, job, job_files, snapshot
from benchmark.jobs.slurm.bundle import TrainBundle, own_slots
from benchmark.jobs.slurm.job import SlurmJob
from benchmark.jobs.slurm.process import PREEMPTION
from benchmark.jobs.slurm.submission import DEAF
from benchmark.jobs.stop_signals import StopSignals
from benchmark.store import Store
from benchmark.training.processes import Stopped, World
from tests.support.record_lines import append_line, read_lines
from tests.support.slurm_lab import Lab, write_texts

ROOT = Path(__file__).parent.parent


def test_a_snapshot_is_the_code(tmp_path, monkeypatch) -> None:
    """Oracle: the files themselves; another byte is another snapshot, and a changed snapshot is noticed."""
    kept = snapshot.take(tmp_path)
    assert snapshot.take(tmp_path) == kept and snapshot.digest(kept) == kept.name
    for name in ("benchmark/jobs/slurm/job.py", "methods/elle.py", "run_all.py", "benchmark/suites/demo.toml"):
        assert (kept / name).read_bytes() == (ROOT / name).read_bytes()
    assert [path.name for path in tmp_path.iterdir()] == [kept.name]
    with (kept / "methods" / "er.py").open("a") as file:
        file.write("\n")
    assert snapshot.digest(kept) != kept.name


HELD = """
import gc, json, signal, sys
from benchmark.jobs.slurm.process import PREEMPTION
came = []
signal.signal(PREEMPTION, lambda *_: came.append(1))
before = list(came)
signal.pthread_sigmask(signal.SIG_UNBLOCK, [PREEMPTION])
import benchmark
heard = signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
print(json.dumps([before, came, sys.argv[1:], benchmark.__file__, gc.isenabled(), heard]))
"""


@pytest.mark.parametrize("begin_with", ["", DEAF])
def test_start_loses_no_signal_and_takes_its_own_code(begin_with: str, tmp_path) -> None:
    """A signal before there is a handler ends a process (POSIX); here it waits, and SIGTERM is heard, whatever a
    container's runtime ignores. The current folder is not searched. Imports are not searched for garbage, and the work
    of a job is."""
    code = snapshot.take(tmp_path / "code")
    (tmp_path / "held.py").write_text(HELD)
    (tmp_path / "FOLDER").mkdir()
    (tmp_path / "benchmark").mkdir()  # would be imported, if the current folder were searched
    (tmp_path / "benchmark" / "__init__.py").write_text("raise ImportError")
    begin = f"import os, signal, sys; os.kill(os.getpid(), {int(signal.SIGUSR2)}); import runpy; "
    patched = tmp_path / "code" / "process.py"
    text = (code / "benchmark" / "jobs" / "slurm" / "process.py").read_text()
    patched.write_text(
        text.replace("    runpy.run_module", f"    {begin}runpy.run_module").replace(
            "str(Path(__file__).parents[3])", repr(str(code))
        )
    )
    done = subprocess.run(
        [*shlex.split(begin_with), sys.executable, "-u", str(patched), "-u", "-m", "held", "FOLDER"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    before, came, arguments, where, collects, heard = json.loads(done.stdout)
    assert (before, came, arguments, heard) == ([], [1], ["FOLDER"], True)
    assert where.startswith(str(code)) and not collects


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


class Place:
    """One process of a job of Slurm, as its environment says; `handler` is in the place of submitit's."""

    def __init__(self, folder: Path, monkeypatch) -> None:
        self.folder, self.calls = folder, list[Any]()
        self.fails: Exception | None = None
        self.requeues = False  # whether the handler does
        code = snapshot.take(folder / "code")
        monkeypatch.setattr(job, "ROOT", code)
        slurm = {"JOB_ID": "7", "NTASKS": "1", "PROCID": "0", "LOCALID": "0", "JOB_NODELIST": "n1", "NODEID": "0"}
        for name, value in {
            **{f"SLURM_{name}": value for name, value in slurm.items()},
            "SLURMD_NODENAME": "n1",
        }.items():
            monkeypatch.setenv(name, value)
        for name in ("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
            monkeypatch.setenv(name, "1")  # the job sets them; this puts them back
        monkeypatch.setenv("SUBMITIT_EXECUTOR", "slurm")

    def run(self, work: Any) -> None:
        before = signal.signal(PREEMPTION, self.handler)
        gc.disable()  # as `process.py` does
        try:
            SlurmJob(work, self.folder, gpus=False, exclusive=True, grace=20)()
        finally:
            gc.unfreeze()
            signal.signal(PREEMPTION, before)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [PREEMPTION])

    def handler(self, number: int, frame: object) -> None:
        self.calls.append(number)
        if self.requeues:
            SlurmJobEnvironment()._requeue(999)
        if self.fails:
            raise self.fails

    def said(self) -> list[dict[str, Any]]:
        return read_lines(self.folder / "7.jsonl")


class Signalled:
    """Work that gets signals, and does not see them before it polls."""

    polls = True

    def __init__(self, place: Place, *numbers: int) -> None:
        self.place, self.numbers = place, numbers

    def __call__(self, world: World, asked_to_stop: StopSignals) -> None:
        assert world.exclusive is True and not asked_to_stop() and gc.isenabled() and gc.get_freeze_count()
        for number in self.numbers:
            os.kill(os.getpid(), number)
        assert self.place.calls == [], "in the middle of a step"
        if asked_to_stop():
            raise Stopped


@pytest.fixture
def place(tmp_path, monkeypatch) -> Place:
    return Place(tmp_path, monkeypatch)


@pytest.mark.parametrize("numbers", [[PREEMPTION], [PREEMPTION, signal.SIGTERM]])
def test_a_job_is_queued_again_once_it_has_stopped(place: Place, numbers: list[int]) -> None:
    """Submitit's handler does it, which would else have been called at once. Oracle: the order of events."""
    with pytest.raises(SystemExit):
        place.run(Signalled(place, *numbers))
    assert place.calls == [PREEMPTION]
    assert [line["kind"] for line in place.said()] == ["started"]


def test_a_cancelled_job_is_not_queued_again(place: Place, monkeypatch) -> None:
    monkeypatch.setattr(commands, "_ask", lambda command: "   PreemptTime=None\n")
    with pytest.raises(SystemExit, match="143"):
        place.run(Signalled(place, signal.SIGTERM))
    assert place.calls == [] and place.said()[-1]["state"] == "stopped"


def test_a_job_that_preemption_cancels_is_queued_again(place: Place, monkeypatch) -> None:
    """Such a job gets SIGTERM alone. Oracle: what scontrol of Slurm 22.05 said of one that gave way to another."""
    told = "   PreemptEligibleTime=2026-11-23T02:49:04 PreemptTime=2026-11-23T02:49:30\n"
    monkeypatch.setattr(commands, "_ask", lambda command: told if command[1:] == ["show", "job", "7"] else "")
    with pytest.raises(SystemExit):
        place.run(Signalled(place, signal.SIGTERM))
    assert place.calls == [PREEMPTION] and [line["kind"] for line in place.said()] == ["started"]


def test_a_job_that_cannot_be_queued_again_says_so(place: Place) -> None:
    """E.g. where compute nodes have no scontrol."""
    place.fails = FileNotFoundError("scontrol")
    with pytest.raises(FileNotFoundError):
        place.run(Signalled(place, PREEMPTION))
    assert place.said()[-1]["error"] == "saved, but cannot be queued again from n1 (scontrol): `run` goes on"


@pytest.mark.parametrize(
    ("answers", "asked", "told"),
    [
        (["Unable to contact slurm controller", "Socket timed out", ""], 3, ""),
        (
            ["Unable to contact slurm controller"] * 9,
            4,
            "saved, but cannot be queued again from n1 (`scontrol requeue 7`",
        ),
        (["Access/permission denied"], 1, "failed: Access/permission denied; repair what Slurm names"),
    ],
)
def test_a_silent_controller_is_asked_again(
    place: Place, monkeypatch, capsys, answers: list[str], asked: int, told: str
) -> None:
    """Oracle: by hand: in the 20 seconds before a limit there is time for four questions, one each five seconds."""
    now, calls = [0.0], iter(answers)

    def scontrol(command: list[str]) -> str:
        if said := next(calls):
            raise commands.SlurmError(f"`{' '.join(command)}` failed: {said}; repair what Slurm names, and try again")
        return ""

    clock = SimpleNamespace(monotonic=lambda: now[0], sleep=lambda seconds: now.append(now.pop() + seconds))
    for module in (job, stop_signals):
        monkeypatch.setattr(module, "time", clock)
    monkeypatch.setattr(commands, "_ask", scontrol)
    monkeypatch.setattr(SlurmJobEnvironment, "_requeue", None)  # set by the job, and put back
    place.requeues = True
    with pytest.raises(commands.SlurmError) if told else pytest.raises(SystemExit):
        place.run(Signalled(place, PREEMPTION))
    error = place.said()[-1].get("error", "")
    assert len([*calls]) == len(answers) - asked and told in error and bool(told) == bool(error)
    assert capsys.readouterr().err.count("; asking again in 5 s") == asked - 1


def test_a_job_that_ends_says_how(place: Place) -> None:
    def fails(world: World, asked_to_stop: StopSignals) -> None:
        raise ArithmeticError("too large")

    place.run(Signalled(place))
    with pytest.raises(ArithmeticError):
        fails.polls = False  # type: ignore[attr-defined]
        place.run(fails)
    done, failed = [line for line in place.said() if line["kind"] == "ended"]
    assert done["state"] == "done"
    assert failed["error"] == "ArithmeticError: too large" and "in fails" in failed["traceback"]


def test_a_bundle_stops_and_goes_on_with_what_had_not_ended(place: Place, monkeypatch) -> None:
    """Oracle: its file: what failed or is done is not done again; the signal before a limit stops it, once all have."""
    slots, given = own_slots(2, False, False), list[list[str]]()
    assert {slot.threads for slot in slots} == {max(1, len(physical_cores()) // 2)}

    def train(segments, shares, asked_to_stop, tell) -> bool:
        given.append([segment.key for segment in segments])
        assert [share.slot for share in shares] == slots and shares[0].exclusive is True
        for segment, event in zip(segments, ("done", "failed"), strict=False):
            tell(segment, "begun", "")
            tell(segment, event, "why" if event == "failed" else "")
        if len(given) == 1:
            os.kill(os.getpid(), PREEMPTION)
        return asked_to_stop()

    monkeypatch.setattr(side_by_side, "train_side_by_side", train)
    [config] = Lab(place.folder / "lab", place.folder).write('{ method = "naive" }').configs()
    jobs = [PlannedJob(key, "train", key, TrainRun(config, None, place.folder), ("data",)) for key in "abcd"]  # type: ignore[arg-type]
    line: dict[str, Any] = {
        "id": "7",
        "name": "x",
        "run": None,
        "after": [],
        "needs": [],
        "log": "",
        "exclusive": False,
        "serves": [],
    }
    for one in jobs:
        append_line(place.folder / "7.jsonl", {"kind": "job", "key": one.key, **line, "bundled": True})
    with pytest.raises(SystemExit):
        place.run(TrainBundle(tuple(jobs), 2))
    place.run(TrainBundle(tuple(jobs), 2))
    assert given == [["a", "b", "c", "d"], ["c", "d"]] and place.calls == [PREEMPTION]
    ends = [one.end and one.end["state"] for one in job_files.read_one(place.folder / "7.jsonl")]
    assert ends == ["done", "failed", "done", "failed"]


def test_preparation_goes_on_where_its_limit_stopped_it(place: Place, monkeypatch) -> None:
    """Oracle: which domains are tokenised: the job is stopped in the second, queued again, and does that one alone."""
    write_texts(place.folder)
    lab = Lab(place.folder / "lab", place.folder).write('{ method = "naive" }')
    tokenise, begun = tokens._tokenise, list[str]()

    def stopped_in_the_second(*given: Any, **named: Any) -> Any:
        begun.append(given[0].name)
        if len(begun) == 2:
            os.kill(os.getpid(), PREEMPTION)
        return tokenise(*given, **named)

    monkeypatch.setattr(tokens, "_tokenise", stopped_in_the_second)
    [config] = lab.configs()
    with pytest.raises(SystemExit):
        place.run(PrepareData(config, lab.runs))
    assert place.calls == [PREEMPTION] and not corpus_if_prepared(config, Store(lab.runs))
    place.run(PrepareData(config, lab.runs))
    assert corpus_if_prepared(config, Store(lab.runs)) and begun == ["wood", "sea", "sea"]


def test_cores_of_a_job(monkeypatch) -> None:
    """Oracle: by hand: eight cores to divide; where a job has four of eight, others may be on each of them."""
    monkeypatch.setattr(bundle, "physical_cores", lambda: [(core,) for core in range(8)])
    monkeypatch.setattr(bundle, "accelerators", lambda: ("cpu", 0))
    monkeypatch.setenv("SLURM_CPUS_ON_NODE", "8")
    assert [slot.cores for slot in own_slots(2, True, False)] == [(0, 1, 2, 3), (4, 5, 6, 7)]
    with pytest.raises(UserError, match="slurm.ntasks_per_node 9: under a budget in seconds each run needs its own"):
        own_slots(9, True, True)
    monkeypatch.setenv("SLURM_CPUS_ON_NODE", "4")
    with pytest.raises(UserError, match="ntasks_per_node 2: under .* has 4 of 8 that it may run on"):
        own_slots(2, True, False)
    assert [slot.cores for slot in own_slots(2, True, True)] == [(0, 1, 2, 3), (4, 5, 6, 7)], "nobody else is there"
    assert [(slot.cores, slot.threads) for slot in own_slots(2, False, False)] == [((), 2)] * 2


def test_changed_code_is_refused(place: Place) -> None:
    (job.ROOT / "run_all.py").write_text("")  # type: ignore[attr-defined]
    with pytest.raises(UserError, match="is not what was submitted"):
        place.run(Signalled(place))
    assert place.said()[-1]["state"] == "failed"


def test_nothing_ends_a_job_that_is_queued_again(place: Place) -> None:
    """Slurm sends SIGTERM while scontrol still runs, which would die of it and look like a failure of the job."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        job = SlurmJob(Signalled(place), place.folder, gpus=False, exclusive=False, grace=20)  # type: ignore[arg-type]
        assert job.checkpoint().function is job
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGTERM, before)
