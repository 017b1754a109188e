"""What Slurm's programs answer of jobs, and what that says of them, without a cluster."""

from __future__ import annotations

import dataclasses
import os
import shutil
from typing import Any

import pytest

from benchmark.jobs.executors.slurm import SlurmExecutor
from benchmark.jobs.plan import LaunchOptions, to_train
from benchmark.jobs.slurm import commands
from benchmark.store import Store
from tests.support import processes
from tests.support.job_lines import STARTED, ask, write_job
from tests.support.record_lines import append_line
from tests.support.slurm_lab import Lab, write_task, write_texts


@pytest.fixture
def lab(tmp_path) -> Lab:
    write_texts(tmp_path)
    return Lab(tmp_path / "lab", tmp_path).write('{ method = "naive" }', '{ method = "er" }')


def test_a_job_that_is_let_go_is_not_held(lab: Lab, monkeypatch) -> None:
    """Oracle: squeue's reason: it is let go a moment before its file says so."""
    ask(monkeypatch, {"7": commands.Queued("PENDING", "Dependency", "")})
    write_job(lab, "Naive", released=False)
    assert lab.states()["Naive"].state == "waiting"


def test_a_command_with_broken_lines_is_one_job(monkeypatch) -> None:
    """Oracle: squeue prints the arguments of a job's command as they are, line breaks and all."""
    answer = "7|PENDING|Priority|n1|/x/job.sh a\nb|c\n\n8_1|RUNNING|None|n2|/y.sh\n"
    monkeypatch.setattr(commands, "_ask", lambda command: answer)
    found = commands.queue()
    assert [*found] == ["7", "8_1"] and (found["7"].node, found["8_1"].state) == ("n1", "RUNNING")


def test_a_job_that_ends_between_two_questions(lab: Lab, monkeypatch) -> None:
    """Oracle: what its file says once squeue has answered; it was read before that."""
    write_job(lab, "Naive", STARTED)

    def answer() -> dict[str, commands.Queued]:
        append_line(lab.jobs()[0].file, {"kind": "ended", "state": "failed", "error": "why"})
        return {}

    ask(monkeypatch, {})
    monkeypatch.setattr(commands, "queue", answer)
    assert lab.states()["Naive"].state == "failed"


@pytest.mark.parametrize(("again", "state"), [(0, "failed"), (1, "running")])
def test_a_process_fails_before_the_first_has_started(lab: Lab, monkeypatch, again: int, state: str) -> None:
    """Oracle: the order of lines of a job of several processes, that lack what all of them ask for: why one failed is
    why the job did, until it is queued again."""
    ask(monkeypatch, {"7": commands.Queued("RUNNING", "", "n1")} if again else {})
    why = {"kind": "ended", "state": "failed", "error": "why", "rank": 1, "restarts": 0}
    write_job(lab, "Naive", why, STARTED | {"restarts": again})
    found = lab.states()["Naive"]
    assert found.state == state and ("why" in found.detail) == (state == "failed")


@pytest.mark.parametrize(
    ("error", "state"),
    [("Connection refused", "unknown"), ("Slurm accounting storage is disabled", "interrupted")],
)
def test_a_silent_sacct_is_not_believed(lab: Lab, monkeypatch, error: str, state: str) -> None:
    """Oracle: the rule for squeue: no answer is not an end; but a cluster that keeps no accounts has none to wait for.

    What has said itself how it ended needs no sacct.
    """
    endings = commands.endings
    ask(monkeypatch, {})
    monkeypatch.setattr(commands, "endings", endings)
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}")

    def answer(command: list[str]) -> str:
        raise commands.SlurmError(f"`{' '.join(command)}` failed: {error}")

    monkeypatch.setattr(commands, "_ask", answer)
    write_job(lab, "Naive", STARTED)
    write_job(lab, "ER", STARTED, {"kind": "ended", "state": "failed", "error": "why"}, id="8")
    found = lab.states()
    assert (found["Naive"].state, found["ER"].state) == (state, "failed")
    assert ("sacct does not answer how; started on n1 20" in found["Naive"].detail) == (state == "unknown")


@pytest.mark.parametrize("ending", ["FAILED", "OUT_OF_MEMORY", "NODE_FAIL", "CANCELLED"])
def test_a_bundle_that_died_before_its_first_run_has_failed_for_all(lab: Lab, monkeypatch, ending: str) -> None:
    """Oracle: the rule for a job of one run: its own fault is one, and waits until it is asked for."""
    ask(monkeypatch, {})
    monkeypatch.setattr(commands, "endings", lambda ids: dict.fromkeys(ids, ending))
    for row in ("Naive", "ER"):
        write_job(lab, row, bundled=True)
    own = ending in ("FAILED", "OUT_OF_MEMORY")
    found = lab.states()
    assert {row: one.state for row, one in found.items()} == dict.fromkeys(found, "failed" if own else "interrupted")
    assert len(to_train(found.values(), retry_failed=False)) == (0 if own else 2)
    assert len(to_train(found.values(), retry_failed=True)) == 2


@pytest.mark.parametrize(("bundled", "state"), [(False, "interrupted"), (True, "waiting")])
def test_a_score_whose_training_has_failed_is_not_under_way(lab: Lab, monkeypatch, bundled: bool, state: str) -> None:
    """Oracle: Slurm cancels what needs a success that will not come (kill_on_invalid_dep), but seconds later: what is
    tried again has a score of its own. A bundle succeeds, and the scores of its runs begin."""
    lab.write('{ method = "naive" }', tasks=write_task(lab.folder))
    [score] = [job for job in lab.plan().jobs() if job.kind == "score"]
    ask(monkeypatch, {"8": commands.Queued("PENDING", "DependencyNeverSatisfied", "")})
    failed = {"kind": "ended", "state": "failed", "error": "why", "key": lab.config("Naive").id}
    write_job(lab, "Naive", STARTED, failed, bundled=bundled)
    write_job(lab, "Naive", id="8", key=score.key, run=None, needs=["7"])
    known = SlurmExecutor(lab.plan().suite, Store(lab.runs)).jobs()
    assert [job.state for job in known] == ["failed", state]
    plan = dataclasses.replace(lab.plan(), options=LaunchOptions(retry_failed=True))
    kinds = ["prepare", "train", "score", "report"]
    assert [job.kind for job in plan.jobs(known)] == [kind for kind in kinds if kind != "score" or not bundled]


def test_a_score_that_died_before_its_first_word_waits_until_it_is_asked_for(lab: Lab, monkeypatch) -> None:
    """Oracle: the order in time, by hand. Submitted with what trains its model, it cannot have begun before that had
    ended; the failure is no more about a model that was trained since."""
    lab.write('{ method = "naive" }', tasks=write_task(lab.folder))
    lab.file.write_text(lab.file.read_text().replace("[40, 200]", "[1, 1]"))
    train = "run", "--set", "tasks=[]", "--set", "tables=[]", "--parallel", "1", "--retry-failed"
    ask(monkeypatch, {})
    monkeypatch.setattr(commands, "endings", lambda ids: dict.fromkeys(ids, "FAILED"))
    [score] = [job for job in lab.plan().jobs() if job.kind == "score"]
    write_job(lab, "Naive", STARTED)
    write_job(lab, "Naive", id="8", key=score.key, run=None, needs=["7"])

    def planned(retry: bool = False) -> list[str]:
        known = SlurmExecutor(lab.plan().suite, Store(lab.runs)).jobs()
        assert {job.state for job in known if job.id == "8"} == {"failed"}
        plan = dataclasses.replace(lab.plan(), options=LaunchOptions(retry_failed=retry))
        return [job.kind for job in plan.jobs(known)]

    assert lab.call(*train) == 0
    append_line(lab.jobs()[0].file, {"kind": "ended", "state": "done"})
    assert (planned(), planned(retry=True)) == ([], ["score", "report"])
    shutil.rmtree(lab.runs / "stages")
    assert lab.call(*train) == 0
    assert planned() == ["score", "report"]


def test_a_full_cluster_is_not_waited_for(tmp_path, monkeypatch) -> None:
    """Oracle: the words of sbatch 22.05, by a site's wrapper, which submits later: what it has started is dead."""
    sbatch, later = tmp_path / "sbatch", tmp_path / "later"
    message = "sbatch: error: Slurm temporarily unable to accept job, sleeping and retrying."
    sbatch.write_text(f"#!/bin/sh\nsh -c 'echo $$ > {later}; echo {message} >&2; sleep 300; echo 7' &\nwait\n")
    sbatch.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    with pytest.raises(commands.SlurmError, match=r"unable to accept job, .* as many jobs as MaxJobCount lets it"):
        commands.submit(tmp_path / "job.sh")
    assert not processes.has_variable(int(later.read_text()), f"PATH={os.environ['PATH']}")


@pytest.mark.parametrize("begun", [True, False])
@pytest.mark.parametrize(("ending", "state"), [("FAILED", "failed"), ("CANCELLED", "interrupted")])
def test_a_report_that_was_rendered_by_hand_since_is_done(
    lab: Lab, monkeypatch, capsys, begun: bool, ending: str, state: str
) -> None:
    """Oracle: the order in time, by hand: a page of before the job began, as it said or sacct does, may lack runs."""
    starts: dict[str, float] = {}
    ask(monkeypatch, {})
    monkeypatch.setattr(commands, "endings", lambda ids: dict.fromkeys(ids, ending))
    monkeypatch.setattr(commands, "began", lambda ids: starts)
    page = lab.folder / "report" / "tiny" / "index.html"
    own: dict[str, Any] = {"key": "report", "run": None, "serves": [], "page": str(page)}
    write_job(lab, "Naive", *[STARTED] * begun, **own)

    def told() -> bool:
        capsys.readouterr()
        lab.call("status")
        return f"other jobs: 1 {state}" in capsys.readouterr().out

    assert told() and lab.call("report") == 0
    assert told() == (not begun), "nobody says when it began"
    start = starts["7"] = lab.jobs()[0].submitted["time"] + 100
    assert told() == (not begun)
    os.utime(page, (0, start + 1))
    assert not told()
    os.utime(page, (0, start - 200))
    assert told()


def test_accounts_say_when_a_job_began(monkeypatch) -> None:
    """Oracle: sacct's own words, of a job, of tasks that never began, and of a cluster that keeps no accounts."""
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(commands, "_ask", lambda command: "7|1700000000\n8_[0-1]|Unknown\n9|None\n")
    assert commands.began(["7", "8_0", "9"]) == {"7": 1.7e9}
    monkeypatch.setattr(commands, "_ask", lambda command: (_ for _ in ()).throw(commands.SlurmError("silent")))
    assert commands.began(["7"]) == {}
