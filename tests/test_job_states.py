"""States of a cluster's jobs, from its queue, logs and records. Slurm is a table in memory."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmark.jobs.status import show
from tests.support.fake_slurm import DONE, FakeSlurm
from tests.support.suite_folder import ROWS, SuiteFolder, write_suite_of_two, write_task

TABLES = 'tables=["representational_similarity"]'


@pytest.fixture
def tiny(tmp_path: Path) -> SuiteFolder:
    return write_suite_of_two(tmp_path)


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSlurm:
    return FakeSlurm(tmp_path / "bin", monkeypatch)


CANCELLED = "slurmstepd-n1: error: *** JOB 12 ON n1 CANCELLED AT 2026-11-26T20:11:47"


@pytest.mark.parametrize(
    ("state", "expected", "detail"),
    [
        ("PENDING", "waiting", "Priority; 0 of 2 stages done"),
        ("RUNNING", "running", "0 of 2 stages done"),
        ("SUSPENDED", "running", "suspended; 0 of 2 stages done"),
    ],
)
def test_states_of_jobs_in_the_queue(
    tiny: SuiteFolder, slurm: FakeSlurm, state: str, expected: str, detail: str
) -> None:
    """By hand: a job in the queue is waiting or running. A suspended job counts as running."""
    assert tiny.submit() == 0
    slurm.states[tiny.job("ER")] = state
    run = tiny.states()["ER"]
    assert run.state == expected and detail in run.detail


@pytest.mark.parametrize(
    ("said", "account", "expected", "details"),
    [
        (
            "KeyError: 'x'\nsrun: error: n1: task 0: Exited with exit code 1",
            "",
            "failed",
            [": KeyError: 'x'; 0 of"],
        ),
        (
            f"KeyError: 'x'\n{CANCELLED.replace('JOB 12', 'STEP 12.0')} ***",
            "",
            "failed",
            [": KeyError: 'x'; 0 of"],
        ),
        (
            "slurmstepd: error: Detected 1 oom_kill event in StepId=12.0",
            "",
            "failed",
            [" slurm.train.mem, "],
        ),
        (
            "slurmstepd: error: Step 12.0 exceeded memory limit (2 > 1), being killed",
            "",
            "failed",
            [" slurm.train.mem, "],
        ),
        (
            f"saved\n{CANCELLED} ***\nsrun: error: n1: task 0: Exited with exit code 143",
            "",
            "interrupted",
            [" was ended: saved; 0 of"],
        ),
        ("", "", "interrupted", [" left no log; 0 of"]),
        (DONE, "", "todo", []),
        ("", "FAILED|0:53|n4", "failed", ["failed on n4 ", "(0:53)", 'slurm.exclude = "n4"']),
        ("", "NODE_FAIL|0:0|n4", "failed", ["failed on n4 "]),
        ("", "CANCELLED by 0|0:0|None assigned", "interrupted", [" was cancelled "]),
        ("", "RUNNING|0:0|n4", "interrupted", [" left no log"]),
        ("line 5", "OUT_OF_MEMORY|0:125|n4", "failed", [" slurm.train.mem, "]),
        ("line 5", "TIMEOUT|0:0|n4", "interrupted", [" slurm.train.time, "]),
        ("line 5", "CANCELLED by 0|0:15|n4", "interrupted", [" cancelled: line 5; 0 of"]),
        ("line 5", "FAILED|1:0|n4", "failed", [": line 5; 0 of"]),
        ("line 5", "NODE_FAIL|0:0|n4", "interrupted", [" was ended: line 5; 0 of"]),
    ],
)
def test_how_a_job_ended_is_in_its_files_and_in_slurms_accounts(
    tiny: SuiteFolder,
    slurm: FakeSlurm,
    capsys,
    said: str,
    account: str,
    expected: str,
    details: list[str],
) -> None:
    """Oracle: submitit's result (an exception or success), Slurm 22.05's words in the log of a job
    that ran out of memory, and the states of sacct's manual, also for a job that wrote no log. Its
    node then did not see its folder, was lost, or was never given. The accounts may lag behind.
    `status` names the node.
    """
    assert tiny.submit() == 0
    job = tiny.job("ER")
    if account:
        slurm.accounts[job] = account
    slurm.end([job], said)
    run = tiny.states()["ER"]
    assert run.state == expected
    assert all(detail in run.detail for detail in details)
    capsys.readouterr()
    assert (tiny.call("status") == 1) == (expected == "failed")
    if account:
        node = account.split("|")[2]
        assert run.job is not None
        assert run.job.node == node
        assert re.search(rf"{expected} .*{job} .*\b{node}\b", capsys.readouterr().out)


def test_a_job_that_slurm_holds_is_told_with_its_cure(
    tiny: SuiteFolder, slurm: FakeSlurm, capsys
) -> None:
    """Oracle: Slurm's command that releases a held array, printed once, also with `--watch`."""
    assert tiny.submit() == 0
    slurm.held |= {tiny.job("ER"), tiny.job("Naive")}
    array = tiny.job("ER").partition("_")[0]
    run = tiny.states()["ER"]
    assert run.state == "waiting"
    assert f"`scontrol release {array}`" in run.detail
    capsys.readouterr()

    def leave(seconds: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        show(tiny.plan().survey, True, sleep=leave)
    assert capsys.readouterr().out.count(f"`scontrol release {array}`") == 1


def test_how_a_job_ended_that_never_started(tiny: SuiteFolder, slurm: FakeSlurm) -> None:
    """Oracle: the shell's error, which is all that the log of such a job has."""
    assert tiny.submit() == 0
    slurm.accounts[tiny.job("ER")] = "FAILED|127:0|n1"
    slurm.end([tiny.job("ER")], "x")
    log = Path(next(listed.log for listed in tiny.jobs() if listed.id == tiny.job("ER")))
    log.write_text("/var/spool/job12: line 5: module: command not found\n")
    run = tiny.states()["ER"]
    assert run.state == "failed" and ": module: command not found" in run.detail


def test_only_the_last_start_of_a_job_counts(tiny: SuiteFolder, slurm: FakeSlurm) -> None:
    """By hand: a job that was preempted and then failed has failed. `run` submits its work again,
    with a report. Another call submits nothing.
    """
    assert tiny.submit() == 0
    job = tiny.job("ER")
    slurm.end([id for id in slurm.jobs if id != job], DONE)
    slurm.restarts[job] = 1
    slurm.end([job], "KeyError: 'x'")
    log = Path(next(listed.log for listed in tiny.jobs() if listed.id == job))
    log.write_text(log.read_text().replace("epoch", f"{CANCELLED} DUE TO PREEMPTION ***", 1))
    [failed] = tiny.jobs()
    assert (failed.state, failed.restarts) == ("failed", 1) and failed.detail.endswith(
        ": KeyError: 'x'"
    )
    before = len(tiny.waves())
    more = ("--methods", "er", "--retry-failed")
    assert tiny.submit(*more) == 0 and tiny.submit(*more) == 0
    assert [wave["kind"] for wave in tiny.waves()[before:]] == ["prepare", "train", "report"]


def test_what_is_next_does_jobs_again_that_are_no_runs(
    tiny: SuiteFolder, slurm: FakeSlurm, capsys
) -> None:
    """Oracle: the command that `status` names submits again what failed or was cancelled: a
    measure, with the report after it, or only the report.
    """
    tiny.write(ROWS[0])
    tiny.file.write_text(tiny.file.read_text().replace("[40, 200]", "[1, 1]"))
    assert tiny.call("run") == 0
    assert tiny.submit("--set", TABLES) == 0
    for kinds, ending, more in (
        (["score", "report"], "KeyError: 'x'", ["--retry-failed"]),
        (["score", "report"], CANCELLED, []),
        (["report"], "KeyError: 'x'", ["--retry-failed"]),
    ):
        if kinds == ["report"]:
            assert tiny.call("run", "--set", TABLES) == 0  # which measures here what is missing
        first = tiny.waves()[-len(kinds)]["id"]
        slurm.end([job for job in slurm.jobs if job != first], DONE)
        slurm.end([first], ending)
        capsys.readouterr()
        assert tiny.call("status", "--set", TABLES) == bool(more)
        told = capsys.readouterr().out.splitlines()[-1]
        assert told.startswith("next: `python run_all.py run ") and (
            "--retry-failed" in told
        ) == bool(more)
        before = len(tiny.waves())
        assert tiny.submit("--set", TABLES, *more) == 0
        assert [wave["kind"] for wave in tiny.waves()[before:]] == kinds


def test_a_failed_job_whose_work_was_done_elsewhere_is_no_failure(
    tiny: SuiteFolder, slurm: FakeSlurm
) -> None:
    """Oracle: `status` exits with 1 if something failed and is missing. The job of the stage that
    both rows share failed, and the stage was trained here afterwards.
    """
    assert tiny.submit() == 0
    shared = next(wave["id"] for wave in tiny.waves() if wave["kind"] == "stages")
    slurm.end([job for job in slurm.jobs if job != shared], DONE)
    slurm.end([shared], "KeyError: 'x'")
    assert tiny.call("status") == 1
    assert tiny.call("run", "--retry-failed") == 0
    assert tiny.call("status") == 0


def test_what_a_job_said_last_is_told(tiny: SuiteFolder, slurm: FakeSlurm, capsys) -> None:
    """Oracle: the last line of the log before srun's own. The folder of logs is named once, though
    two logs are missing. By hand: how often jobs were started, and one line for jobs that are
    alike.
    """
    tiny.write(*ROWS, tasks=write_task(tiny.folder))
    assert tiny.submit() == 0
    naive, er = tiny.job("Naive"), tiny.job("ER")
    slurm.restarts |= {"105": 2, er: 4}
    slurm.end(["100", "101", "102"], DONE)
    slurm.end([er, "104_0", "104_1"])
    slurm.accounts = {er: "CANCELLED by 0|0:15|n1", naive: "FAILED|1:0|n1"}
    slurm.end(
        [naive],
        "UserError: torch finds none on n1\nsrun: error: n1: exit code 1\nslurmstepd: error: x\n",
    )
    log = Path(next(listed.log for listed in tiny.jobs() if listed.id == naive))
    for score in ("104_0", "104_1"):
        Path(next(listed.log for listed in tiny.jobs() if listed.id == score)).unlink()
    capsys.readouterr()
    assert tiny.call("status") == 1
    told = capsys.readouterr().out
    assert ": UserError: torch finds none on n1; 0 of 2 " in told and "srun" not in told
    assert re.search(rf"interrupted  {er} +5 .* cancelled: epoch; 0 of 2", told)
    assert re.search(r"\n104_0 and 1 more +score +interrupted ", told)
    assert re.search(r"\n105 +report +waiting +2 +n1 ", told)
    assert told.count(f"logs are in {log.parent}, by job\n") == 1 and naive in log.name
