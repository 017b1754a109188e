"""Suites on a real Slurm: two nodes on this machine, started for these tests. Tests read states and
records.

Every wait is for a state, and ends with an error if that state does not come. Runs are disturbed in
mid-stage: until then a file slows them (tests/examples/paced.py).
"""

from __future__ import annotations

import copy
import itertools
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import run_all
from benchmark.jobs.executors.slurm.job import TIME_OVER
from benchmark.ledger.store import Store
from tests.support.record_lines import read_lines
from tests.support.slurm_cluster import SlurmCluster
from tests.support.suite_folder import (
    SuiteFolder,
    assert_as_if_undisturbed,
    needs_slurm,
    new_suite_folder,
    queue,
    scontrol,
    silent,
    wait_for_account,
    wait_until,
    write_task,
)

pytestmark = needs_slurm


def preempt(tiny: SuiteFolder) -> None:
    """Submit a job for both nodes in a partition of higher priority."""
    urgent = [
        "sbatch",
        "--parsable",
        "-N2",
        "--exclusive",
        "--wrap=true",
        f"--output={tiny.folder}/urgent",
    ]
    subprocess.run(urgent, check=True, capture_output=True)


def write_python(tiny: SuiteFolder) -> Path:
    """Write a job's `python`. Slurm can suspend jobs that train, because they run Python itself."""
    script = tiny.folder / "python"
    script.write_text(
        f'#!/bin/sh\ncase "$SLURM_JOB_NAME" in *:train:*) exec {sys.executable} "$@";; esac\n'
        f'exec {tiny.python} "$@"\n'
    )
    script.chmod(0o755)
    return script


def longest_off_the_clock(tiny: SuiteFolder, row: str) -> float:
    """The most seconds between two evaluations that were not charged, before the run was queued
    again.
    """
    lines = itertools.takewhile(lambda line: line["kind"] != "resumed", tiny.stage(row))
    told = [
        (line["time"], line["charged"]["seconds"]) for line in lines if line["kind"] == "evaluation"
    ]
    return max(
        (now - then) - (after - before) for (then, before), (now, after) in itertools.pairwise(told)
    )


@pytest.fixture(scope="module")
def sweep(cluster, texts, job_python, tmp_path_factory) -> Iterator[SuiteFolder]:
    """A whole suite, from text to tables, with forked Python (`job_python`) and a teardown command.
    One run reaches its time limit, one fails, and one is killed without a record.
    """
    folder = tmp_path_factory.mktemp("sweep")
    with new_suite_folder(folder, texts, prepared=False, python=job_python) as tiny:
        rows = ('{ method = "naive" }', '{ method = "er" }', "limited", "trips", "dies")
        tiny.write(*rows, slurm=f'{tiny.runtime()}signal_delay_s = 50\nteardown = ["true"]')
        for row, what in {"limited": "slow", "trips": "trip 0", "dies": "die"}.items():
            tiny.tell(row, what)
        tiny.submit()
        tiny.wait_for_mid_stage("limited")
        job = tiny.job("limited")
        scontrol(
            "update", f"JobId={job}", "EndTime=now+60"
        )  # Slurm looks every 30 s, and signals 50 s before
        wait_until(lambda: queue()[job].state == "waiting")
        scontrol("update", f"JobId={job}", "TimeLimit=60")
        tiny.let_go("limited")
        tiny.wait_for_endings()
        yield tiny


def test_one_failure_stops_no_other(sweep: SuiteFolder) -> None:
    """By hand, from what was done to each row in `sweep`. The table has the trained rows."""
    assert {row: state.state for row, state in sweep.states().items()} == {
        "Naive": "done",
        "ER": "done",
        "limited": "done",
        "trips": "failed",
        "dies": "failed",
    }
    table = (sweep.folder / "report" / "tiny" / "main_pretraining.md").read_text()
    assert all(row in table for row in ("Naive", "ER", "limited"))


def test_a_failure_is_told(sweep: SuiteFolder, capsys) -> None:
    """Oracle: the record's traceback. For a run that was killed, how Slurm saw it end."""
    [failed] = [line for line in sweep.run_lines("trips") if line["kind"] == "failed"]
    assert "paced.py" in failed["traceback"] and failed["stage"] == 1
    capsys.readouterr()
    assert sweep.call("status") == 1
    told = capsys.readouterr().out
    assert failed["error"] in told and str(sweep.log(sweep.job("trips")).parent) in told
    assert re.search(r"\bdies-s0\b.*\bfailed\b.*\b1 of 2 ", told)


def test_a_time_limit_costs_nothing(sweep: SuiteFolder) -> None:
    """Oracle: an undisturbed run, bit for bit."""
    assert_as_if_undisturbed(sweep, "limited", resumed=1)


def test_what_is_done_is_not_submitted(sweep: SuiteFolder) -> None:
    """Oracle: the notes of what was submitted: nothing new, then, when asked, the failed runs and a
    report, once. Among runs of equal size, the last row's begins first. No stage is trained twice.
    """
    before = len(sweep.waves())
    sweep.submit()
    assert len(sweep.waves()) == before
    for row in ("trips", "dies"):
        sweep.gate(row).unlink(missing_ok=True)
    sweep.submit("--retry-failed")
    sweep.submit("--retry-failed")  # they are under way
    again = sweep.waves()[before:]
    assert [wave["kind"] for wave in again] == ["train", "report"]
    assert [units for wave in again[:1] for units in wave["units"]] == [
        [f"train-{sweep.config(row).id}"] for row in ("dies", "trips")
    ]
    assert all(sweep.wait_for(row, "done") for row in ("trips", "dies"))
    assert sweep.count("trips", "stage", index=0) == 1


def test_preemption_of_several_runs_in_a_job_and_changed_code(tiny: SuiteFolder) -> None:
    """A job of a partition with higher priority takes the nodes, and meanwhile the code is broken.
    Oracle: undisturbed runs.

    The job trains three runs, two at a time and the last row first. A run that fails ends no other,
    and is not tried again. Before the preemption, Slurm suspends the job for four seconds. Oracle
    of what is charged: the wall clock between the evaluations before and after.
    """
    bundle = (
        f'runs_per_job = 3\nntasks_per_node = 2\ncpus_per_task = 2\npython = "{write_python(tiny)}"'
    )
    tiny.write("trips", "x", "y", slurm=f'partition = "preemptible"\n{bundle}').tell(
        "trips", "trip 0"
    )
    for row in ("x", "y"):
        tiny.tell(row, "slow")
    tiny.submit()
    tiny.wait_for_mid_stage("x", "y")
    job = tiny.job("x")
    assert {tiny.job(row) for row in ("x", "y", "trips")} == {job}
    assert tiny.states()["trips"].state == "waiting"
    scontrol("suspend", job)
    wait_until(lambda: tiny.states()["x"].detail.startswith("suspended; "))
    time.sleep(4)
    scontrol("resume", job)
    counts = {row: tiny.count(row, "evaluation") for row in ("x", "y")}
    wait_until(lambda: all(tiny.count(row, "evaluation") > count for row, count in counts.items()))
    preempt(tiny)
    wait_until(lambda: job in (jobs := queue()) and jobs[job].state == "waiting")
    tiny.let_go("x")
    tiny.let_go("y")
    (tiny.folder / "code" / "benchmark" / "training" / "stage.py").write_text("this is no Python")
    for row in ("x", "y"):
        tiny.wait_for(row, "done")
        assert tiny.job(row) == job
        assert_as_if_undisturbed(tiny, row, resumed=1)
        assert longest_off_the_clock(tiny, row) > 3
        hardware = tiny.stage(row)[0]["provenance"]["hardware"]
        assert hardware.get("threads", 1) == 1
    assert "tripped" in tiny.wait_for("trips", "failed").detail
    wait_for_account(job, "COMPLETED", 1)


def test_two_nodes_of_two_processes(tiny: SuiteFolder) -> None:
    """Oracle: a run in a single process, up to rounding. A process that fails ends the job, and the
    records have its traceback.
    """
    rows = (
        '{ method = "naive", set = { "budget.amount" = [5, 20], "model.dropout" = 0.0 } }',
        "trips",
    )
    slurm_settings = "nodes = 2\nntasks_per_node = 2\narray_parallelism = 1"
    tiny.write(*rows, slurm=slurm_settings).tell("trips", "trip 3")
    tiny.submit()
    tiny.wait_for("Naive", "done")
    tiny.wait_for("trips", "failed")
    [failed] = [line for line in tiny.run_lines("trips") if line["kind"] == "failed"]
    assert "tripped" in failed["traceback"]
    assert tiny.stage("Naive")[0]["provenance"]["hardware"]["count"] == 4
    expected = tiny.undisturbed("Naive")
    for name, tensor in expected.weights("Naive").items():
        torch.testing.assert_close(tiny.weights("Naive")[name], tensor, rtol=1e-3, atol=1e-5)
    assert tiny.stage("Naive")[-2]["perplexity"] == pytest.approx(
        expected.stage("Naive")[-2]["perplexity"], rel=1e-4
    )


def test_who_submits_may_die_and_cancel(tiny: SuiteFolder, cluster: SlurmCluster, capsys) -> None:
    """Oracle: an undisturbed run: nothing depends on the process that submitted it, and after
    `cancel` a `run` goes on.

    If the controller does not answer, nothing ends: `run` and `cancel` are errors, and `status`
    shows what is recorded.
    """
    tiny.write("x").tell("x", "slow")
    words = [sys.executable, "run_all.py", *tiny.arguments("run", "--executor", "slurm")]
    process = subprocess.Popen(words, cwd=tiny.folder / "code", start_new_session=True)
    wait_until(lambda: tiny.waves())
    os.killpg(process.pid, signal.SIGKILL)  # before it has submitted the report
    process.wait()
    tiny.wait_for_mid_stage("x")
    assert tiny.states()["x"].state == "running"
    with silent(cluster):
        assert tiny.call("status") == 3
        assert tiny.states()["x"].state == "unknown" and tiny.call("cancel") == 2
        assert tiny.submit() == 2 and "`squeue " in capsys.readouterr().err
    job, waves = tiny.job("x"), tiny.waves()
    assert tiny.states()["x"].state == "running"
    assert tiny.submit() == 0 and tiny.waves()[: len(waves)] == waves and tiny.job("x") == job
    assert tiny.call("cancel") == 0
    assert "1 of 2 " in tiny.wait_for("x", "interrupted").detail
    assert " by SIGTERM" in tiny.log(job).read_text()
    tiny.let_go("x")
    tiny.submit()
    tiny.wait_for("x", "done")
    assert tiny.job("x") != job
    assert_as_if_undisturbed(tiny, "x", resumed=1)


def test_a_run_is_scored_while_another_trains(tiny: SuiteFolder) -> None:
    """Oracle: by hand: one job makes the scores and measures of a run. It begins when that run has
    ended, while another run of the array is in mid-stage. The job of a run that fails begins later.
    """
    table = 'tables = ["representational_similarity"]'
    tiny.write('{ method = "naive" }', "trips", "x", tasks=write_task(tiny.folder))
    tiny.file.write_text(tiny.file.read_text().replace('tables = ["main_pretraining"]', table))
    tiny.tell("x", "slow")
    tiny.tell("trips", "trip 0")
    tiny.submit()
    kinds = [(wave["kind"], len(wave["units"])) for wave in tiny.waves()]
    assert kinds[-3:] == [("train", 3), ("score", 3), ("report", 1)]
    tiny.wait_for("Naive", "done")
    store = Store(tiny.runs)
    for place in (store.scores_file, store.similarity_file):
        wait_until(place(tiny.keys("Naive")[1]).exists)
    tiny.wait_for_mid_stage("x")
    assert tiny.states()["x"].state == "running"
    score = tiny.waves()[-2]["id"]
    assert {f"{score}_0", f"{score}_1"} <= {*queue()}
    tiny.let_go("x")
    tiny.wait_for_endings()
    assert [line["task"] for line in read_lines(store.scores_file(tiny.keys("x")[1]))] == ["fish"]
    assert not store.scores_file(tiny.keys("trips")[1]).exists()
    assert tiny.states()["trips"].state == "failed"


def test_gpus_are_asked_for_and_seen(tiny: SuiteFolder) -> None:
    """By hand: Slurm gives a made-up GPU. The job fails with a message that torch finds none, and
    does not train without one.
    """
    tiny.write("x", slurm="gpus_per_node = 1\nnodes = 1")
    tiny.submit()
    job = tiny.wait_for("x", "failed").job
    assert job and re.search(r"\bGPUs\b.*\btorch\b.*\bnone\b", Path(job.log).read_text())


def test_a_job_that_its_limit_stops_in_vain_ends(
    cluster, texts: Path, job_python: str, tmp_path: Path, capsys
) -> None:
    """The job that prepares is told twice that its time is over before it has kept anything.
    Oracle: by hand: it is queued again once, then fails, and `status` names the key to raise.
    """
    with new_suite_folder(tmp_path, texts, prepared=False, python=job_python) as tiny:
        begun = tmp_path / "begun"
        prepared = tmp_path / "code" / "benchmark" / "data" / "prepared.py"
        begins = f"    open({str(begun)!r}, 'w').close()\n    __import__('time').sleep(900)\n"
        sleeps = f"\n\ndef prepare_corpus(*_, **__):\n{begins}"
        prepared.write_text(prepared.read_text() + sleeps)
        tiny.write("x").submit()
        [job] = tiny.ids("prepare").values()
        for restarts in (0, 1):
            wait_until(begun.exists)
            assert queue()[job].restarts == restarts
            begun.unlink()
            subprocess.run(["scancel", f"--signal={TIME_OVER.name[3:]}", job], check=True)
            wait_until(lambda: job not in (jobs := queue()) or jobs[job].state == "waiting")
        wait_for_account(job, "FAILED", 1)
        assert tiny.call("cancel") == 0
        capsys.readouterr()
        assert tiny.call("status") == 1
        told = capsys.readouterr().out
        assert re.search(rf"{job} +prepare +failed +2 .*\bslurm\.prepare\.time", told)


def test_a_run_goes_behind_the_job_that_trains_its_stage(tiny: SuiteFolder) -> None:
    """Another suite has the same run. Oracle: Slurm's reason why the other job waits, an
    undisturbed run, and one training of each stage.
    """
    tiny.write("x").tell("x", "slow")
    tiny.submit()
    tiny.wait_for_mid_stage("x")
    other = copy.copy(tiny)
    other.file, other._configs = tiny.file.with_stem("other"), []
    other.file.write_text(tiny.file.read_text())
    other.submit()
    job = other.job("x")
    wait_until(
        lambda: queue()[job].detail == "Dependency" and other.states()["x"].state == "waiting"
    )
    assert f" behind job {tiny.job('x')}\n" in other.log(job).read_text()
    tiny.let_go("x")
    for each in (tiny, other):
        each.wait_for("x", "done")
    assert other.job("x") == job and tiny.keys("x") == other.keys("x")
    assert [tiny.count("x", "stage", index) for index in (0, 1)] == [1, 1]
    assert_as_if_undisturbed(tiny, "x", resumed=0)


def test_a_doctor_asks_a_node(cluster: SlurmCluster, tmp_path, capsys) -> None:
    """Oracle: the cluster as it was set up: it takes each kind of job, and nodes share this file
    system.
    """
    assert run_all.main(["doctor", "demo", "--runs", str(tmp_path / "runs")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert (
        sum(bool(re.search(r"^ok .*( a job to \w+| \d+ accelerators)$", line)) for line in lines)
        == 5
    )
    assert not [line for line in lines if line.startswith("wrong")] and not list(
        (tmp_path / "runs").iterdir()
    )
    wait_until(lambda: not queue())
