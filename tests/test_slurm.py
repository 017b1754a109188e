"""Suites on a real Slurm: two nodes on this machine, started for these tests. Asserted on states and records.

Every wait is for a state and ends with an error if that does not come. Runs are disturbed in mid-stage: they are slow
(tests/support/paced.py) until that has happened.
"""

from __future__ import annotations

import itertools
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import run_all
from benchmark.jobs.slurm import commands
from benchmark.jobs.slurm.process import PREEMPTION
from benchmark.jobs.slurm.submission import Submission
from tests.support.record_lines import read_lines
from tests.support.slurm_cluster import SlurmCluster
from tests.support.slurm_lab import (
    Lab,
    assert_as_if_undisturbed,
    needs_slurm,
    new_lab,
    scontrol,
    silent,
    tasks_of,
    wait_until,
    write_task,
)
from tests.support.thorough import only_thorough

pytestmark = needs_slurm


def preempt(lab: Lab) -> None:
    """A job of a partition that goes before takes both nodes."""
    urgent = ["sbatch", "--parsable", "-N2", "--exclusive", "--wrap=true", f"--output={lab.folder}/urgent"]
    subprocess.run(urgent, check=True, capture_output=True)


# `run_all.py`, which looks again after a second where it would after 30
EACH_SECOND = """
import sys, run_all
from benchmark.jobs import status
status.PAUSE = status.LONGEST = 1.0
sys.exit(run_all.main(sys.argv[1:]))
"""


def states_said(said: Path) -> list[str]:
    """The states of a suite's only run, one for each time that a waiting process has said it."""
    return re.findall(r"^tiny: Tiny: 1 runs, 1 (\w+)", said.read_text(), re.MULTILINE)


def longest_off_the_clock(lab: Lab, row: str) -> float:
    """The most seconds that passed and were not charged between two evaluations, before the run was queued again."""
    lines = itertools.takewhile(lambda line: line["kind"] != "resumed", lab.stage(row))
    told = [(line["time"], line["charged"]["seconds"]) for line in lines if line["kind"] == "evaluation"]
    return max((now - then) - (after - before) for (then, before), (now, after) in itertools.pairwise(told))


@pytest.fixture(scope="module")
def sweep(cluster, texts, tmp_path_factory) -> Iterator[Lab]:
    """A whole suite, from text to tables, Python in something like a container. One run reaches its time limit, one
    fails, one dies without a word."""
    with new_lab(tmp_path_factory.mktemp("sweep"), texts, prepared=False) as lab:
        lab.write(
            '{ method = "naive" }',
            '{ method = "er" }',
            "limited",
            "trips",
            "dies",
            slurm=f"{lab.runtime()}signal_delay_s = 50",
        )
        for row, what in {"limited": "slow", "trips": "trip 0", "dies": "die"}.items():
            lab.tell(row, what)
        lab.submit()
        lab.wait_for_mid_stage("limited")
        job = lab.job("limited").id
        scontrol("update", f"JobId={job}", "EndTime=now+60")  # Slurm looks every 30 s, and signals 50 s before
        wait_until(lambda: commands.queue()[job].waits)
        scontrol("update", f"JobId={job}", "TimeLimit=60")
        lab.let_go("limited")
        lab.wait_for_endings()
        yield lab


def test_one_failure_stops_no_other(sweep: Lab) -> None:
    assert {row: state.state for row, state in sweep.states().items()} == {
        "Naive": "done",
        "ER": "done",
        "limited": "done",
        "trips": "failed",
        "dies": "failed",
    }
    table = (sweep.folder / "report" / "tiny" / "main_pretraining.md").read_text()
    assert all(row in table for row in ("Naive", "ER", "limited"))


def test_a_failure_is_told(sweep: Lab, capsys) -> None:
    """Oracle: the traceback in the record; where the run said no word, how Slurm saw it end."""
    [failed] = [line for line in sweep.run_lines("trips") if line["kind"] == "failed"]
    assert "paced.py" in failed["traceback"] and failed["stage"] == 1
    capsys.readouterr()
    assert sweep.call("status") == 1
    told = capsys.readouterr().out
    assert failed["error"] in told and sweep.job("trips").submitted["log"] in told
    assert "ended without a word (FAILED); 1 of 2 stages done" in told


def test_shared_stages_come_first_and_once(sweep: Lab) -> None:
    """Data, then the first stage of all five, then each of them, then the tables; as jobs of one array."""
    prepare, stage, *runs, report = sweep.jobs()
    assert stage.submitted["after"] == [prepare.id]
    assert all(run.submitted["after"] == [prepare.id, stage.id] for run in runs) and len(runs) == 5
    assert report.submitted["after"] == [stage.id, *(run.id for run in runs)]
    for job in (stage, *runs):
        assert all(
            before.end["time"] <= job.starts[0]["time"]
            for before in (prepare, stage)
            if before.id in job.submitted["after"]
        )
    assert {job.array for job in runs} == {stage.array} != {report.array}
    assert sweep.count("Naive", "stage", index=0) == 1
    assert {sweep.keys(row)[0] for row in sweep.states()} == {sweep.keys("Naive")[0]}


def test_squeue_says_what_runs(sweep: Lab, capsys) -> None:
    """Oracle: Slurm's accounts: a job has its own name, an array that of its kind; `status` says which task it is."""
    told = subprocess.run(["sacct", "-nPX", "-o", "JobID,JobName"], capture_output=True, text=True, check=True).stdout
    jobs = sweep.jobs()
    names = {job.id: "tiny:train" if job.id != job.array else job.name for job in jobs}
    assert {f"{id}|{name}" for id, name in names.items()} <= set(told.splitlines())
    assert {"tiny:train", "tiny:report"} < set(names.values()) and sweep.call("status") == 1
    row = next(line.split() for line in capsys.readouterr().out.splitlines() if line.startswith("limited"))
    assert sweep.job("limited").id in row and sweep.job("limited").name == "tiny:limited-s0"


def test_a_time_limit_costs_nothing(sweep: Lab) -> None:
    """Oracle: an undisturbed run, bit for bit."""
    assert sweep.states()["limited"].restarts == 1
    assert_as_if_undisturbed(sweep, "limited", resumed=1)


def test_what_is_done_is_not_submitted(sweep: Lab, capsys) -> None:
    """Failed runs only when asked; then they take no stage twice."""
    before = len(sweep.jobs())
    sweep.submit()
    assert "nothing to submit" in capsys.readouterr().out and len(sweep.jobs()) == before
    for row in ("trips", "dies"):
        sweep.gate(row).unlink(missing_ok=True)
    sweep.submit("--retry-failed")
    sweep.submit("--retry-failed")  # they are under way
    again = sweep.jobs()[before:]
    assert [job.name for job in again] == ["tiny:trips-s0", "tiny:dies-s0", "tiny:report"]
    assert all(sweep.wait_for(row, "done") for row in ("trips", "dies"))
    assert sweep.count("trips", "stage", index=0) == 1


def test_preemption_of_a_bundle_and_changed_code(lab: Lab) -> None:
    """A job of a higher partition takes the nodes; the code is broken meanwhile. Oracle: undisturbed runs.

    The job trains three runs, two at a time; one that fails ends no other, and is not tried again. Before, Slurm
    suspends it for four seconds, which its records tell, less what may be the system's own. Oracle of what is charged:
    the wall clock between the two evaluations around them.
    """
    bundle = "runs_per_job = 3\nntasks_per_node = 2\ncpus_per_task = 2"
    lab.write("x", "y", "trips", slurm=f'partition = "preemptible"\n{bundle}').tell("trips", "trip 0")
    for row in ("x", "y"):
        lab.tell(row, "slow")
    lab.submit()
    lab.wait_for_mid_stage("x", "y")
    job = lab.job("x").id
    assert {found.id for found in lab.jobs() if found.submitted["bundled"]} == {job}, "the shared stage is in it too"
    waits = lab.states()["trips"]
    assert (waits.state, waits.job.id) == ("waiting", job) and "its job trains others first" in waits.detail
    scontrol("suspend", job)
    time.sleep(4)
    still = lab.states()
    assert still["x"].state == "running" and still["x"].detail.startswith("suspended; ")
    assert still["trips"].state == "waiting" and still["trips"].detail.startswith("its job is suspended")
    scontrol("resume", job)
    counts = {row: lab.count(row, "evaluation") for row in ("x", "y")}
    wait_until(lambda: all(lab.count(row, "evaluation") > count for row, count in counts.items()))
    preempt(lab)
    wait_until(lambda: job in commands.queue() and commands.queue()[job].waits)
    lab.let_go("x")
    lab.let_go("y")
    (lab.folder / "code" / "benchmark" / "training" / "stage.py").write_text("this is no Python")
    for row in ("x", "y"):
        state = lab.wait_for(row, "done")
        assert (state.job.id, state.restarts) == (job, 1)
        assert_as_if_undisturbed(lab, row, resumed=1)
        assert longest_off_the_clock(lab, row) > 3
        hardware = lab.stage(row)[0]["provenance"]["hardware"]
        assert (hardware["side_by_side"], hardware["threads"]) == (2, 1)
    # of a run that was evaluating meanwhile no clock ran
    assert max(lab.stage(row)[-1]["cores"]["stood_still"] for row in ("x", "y")) > 3
    assert "tripped" in lab.wait_for("trips", "failed").detail
    assert len([line for line in lab.run_lines("trips") if line["kind"] == "failed"]) == 1
    lab.wait_for_endings(job)
    assert commands.endings([job]) == {job: "COMPLETED"}


@only_thorough
def test_preemption_that_cancels_at_once(lab: Lab) -> None:
    """A job without a grace time (PreemptMode=CANCEL, GraceTime=0) has Slurm's KillWait, here five seconds, to save and
    to queue itself again; Python runs in something like a container. Oracle: an undisturbed run, bit for bit."""
    lab.write("x", slurm=f'{lab.runtime()}partition = "preemptible"').tell("x", "slow")
    scontrol("update", "PartitionName=preemptible", "PreemptMode=CANCEL", "GraceTime=0")
    try:
        lab.submit()
        lab.wait_for_mid_stage("x")
        job = lab.job("x").id
        preempt(lab)
        wait_until(lambda: commands.queue()[job].waits)
    finally:
        scontrol("update", "PartitionName=preemptible", "PreemptMode=REQUEUE", "GraceTime=10")
    lab.let_go("x")
    state = lab.wait_for("x", "done")
    assert (state.job.id, state.restarts) == (job, 1) and "DUE TO PREEMPTION" in Path(state.job.history.log).read_text()
    assert_as_if_undisturbed(lab, "x", resumed=1)


@only_thorough
def test_a_lost_node(lab: Lab, cluster: SlurmCluster) -> None:
    """It dies with all that runs on it; Slurm starts the run elsewhere. Oracle: an undisturbed run."""
    lab.write("x").tell("x", "slow")
    lab.submit()
    lab.wait_for_mid_stage("x")
    node = lab.states()["x"].job.history.node
    cluster.kill_node(node)
    try:
        scontrol("update", f"NodeName={node}", "State=DOWN", "Reason=test")
        lab.let_go("x")
        state = lab.wait_for("x", "done")
    finally:
        cluster.start_node(node)
        scontrol("update", f"NodeName={node}", "State=RESUME")
    assert state.restarts == 1 and state.job.history.node != node
    assert_as_if_undisturbed(lab, "x", resumed=1)


def test_two_nodes_of_two_processes(lab: Lab) -> None:
    """Equal to one process, up to rounding. One process that fails ends the job, and says why in the records.

    A model is scored by a job of its own, if it was trained.
    """
    rows = ('{ method = "naive", set = { "budget.amount" = [5, 20], "model.dropout" = 0.0 } }', "trips")
    slurm_settings = "nodes = 2\nntasks_per_node = 2\narray_parallelism = 1"
    lab.write(*rows, slurm=slurm_settings, tasks=write_task(lab.folder)).tell("trips", "trip 3")
    lab.submit()
    lab.wait_for("Naive", "done")
    lab.wait_for("trips", "failed")
    scores = {job.name: job for job in lab.jobs() if "score" in job.name}
    assert scores["tiny:score-naive-s0-sea"].submitted["needs"] == [lab.job("Naive").id]
    wait_until(lambda: not any(job.id in commands.queue() for job in scores.values()))
    [score] = read_lines(lab.runs / "scores" / f"{lab.keys('Naive')[-1]}.jsonl")
    assert score["task"] == "fish"
    assert not Path(scores["tiny:score-trips-s0-sea"].submitted["log"]).exists()  # it never began
    [failed] = [line for line in lab.run_lines("trips") if line["kind"] == "failed"]
    assert failed["rank"] == 3 and "tripped" in failed["traceback"]
    assert lab.stage("Naive")[0]["provenance"]["world_size"] == 4
    expected = lab.undisturbed("Naive")
    for name, tensor in expected.weights("Naive").items():
        torch.testing.assert_close(lab.weights("Naive")[name], tensor, rtol=1e-3, atol=1e-5)
    assert lab.stage("Naive")[-2]["perplexity"] == pytest.approx(expected.stage("Naive")[-2]["perplexity"], rel=1e-4)


def test_who_submits_may_die_and_cancel(lab: Lab, cluster: SlurmCluster, capsys) -> None:
    """Nothing depends on the process that submitted; `cancel` ends the jobs, and the next `run` goes on.

    A submitter that dies before it has noted what it submitted leaves that held: `status` says so, and `run` ends it. A
    controller that does not answer ends nothing: `run` and `cancel` are errors, and who waits goes on.
    """
    lab.write("x").tell("x", "slow")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Submission, "note", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        assert lab.submit() == 130
    assert lab.jobs() == [] and lab.call("status") == 0
    assert "other jobs: 1 held" in capsys.readouterr().out
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(commands, "release", lambda job: (_ for _ in ()).throw(KeyboardInterrupt))
        assert lab.submit() == 130
    held, report = lab.jobs()
    assert set(commands.queue()) == {held.id, report.id}
    assert report.run is None and held.id == lab.job("x").id
    assert commands.queue()[held.id].reason == commands.queue()[report.id].reason == "JobHeldUser"
    conf, said = lab.folder / "slurm.conf", lab.folder / "said"
    shutil.copy(os.environ["SLURM_CONF"], conf)
    with said.open("w") as file:
        process = subprocess.Popen(
            [sys.executable, "-c", EACH_SECOND, *lab.arguments("run", "--executor", "slurm", "--wait")],
            cwd=lab.folder / "code",
            start_new_session=True,
            stdout=file,
            env={**os.environ, "SLURM_CONF": str(conf)},
        )
    try:
        lab.wait_for_mid_stage("x")
        with silent(cluster):
            shutil.copy(os.environ["SLURM_CONF"], conf.with_suffix(".part"))
            conf.with_suffix(".part").rename(conf)
            assert lab.call("status") == 3
            assert lab.states()["x"].state == "unknown" and lab.call("cancel") == 2
            assert lab.submit() == 2 and "`squeue " in capsys.readouterr().err
            wait_until(lambda: states_said(said)[-1:] == ["unknown"])
        wait_until(lambda: states_said(said)[-1] == "running")
        assert process.poll() is None
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert lab.states()["x"].state == "running" and lab.job("x").id == held.id and len(lab.jobs()) == 2
    lab.call("cancel")
    assert lab.wait_for("x", "interrupted").detail == "saved and ended by SIGTERM; 1 of 2 stages done"
    lab.let_go("x")
    lab.submit()
    assert lab.wait_for("x", "done").job.id != held.id
    assert_as_if_undisturbed(lab, "x", resumed=1)


@only_thorough
def test_a_controller_that_is_silent_when_a_job_is_to_be_queued_again(lab: Lab, cluster: SlurmCluster) -> None:
    """The job gets the signal of its time limit by `kill`, asks twice in vain, and then is heard. Oracle: its log, and
    an undisturbed run, bit for bit; it is queued again once."""
    lab.write("x").tell("x", "slow")
    lab.submit()
    lab.wait_for_mid_stage("x")
    job = lab.job("x")
    log = Path(job.submitted["log"])
    with silent(cluster):
        for pid in tasks_of(job.id):
            os.kill(pid, PREEMPTION)
        wait_until(lambda: log.read_text().count("asking again in 5 s") == 2)
    wait_until(lambda: job.id in commands.queue() and commands.queue()[job.id].waits)
    lab.let_go("x")
    state = lab.wait_for("x", "done")
    assert (state.job.id, state.restarts) == (job.id, 1)
    assert_as_if_undisturbed(lab, "x", resumed=1)


def test_gpus_are_asked_for_and_seen(lab: Lab) -> None:
    """The cluster's GPUs are made up: Slurm gives one, and the job says that torch finds none rather than go on."""
    lab.write("x", slurm="gpus_per_node = 1\nnodes = 1")
    lab.submit()
    state = lab.wait_for("x", "failed")
    assert lab.job("x").starts[0]["gpus"] == "0" and "torch finds none" in state.detail


def test_a_doctor_asks_a_node(cluster: SlurmCluster, tmp_path, capsys) -> None:
    """Oracle: the cluster as it was set up: nodes share this file system, and let jobs be queued again.

    Then a partition, a time and memory that it has not, each of another kind of job."""
    assert run_all.main(["doctor", "demo", "--runs", str(tmp_path / "runs")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert sum("locks hold between machines" in line or "queue themselves again" in line for line in lines) == 2
    assert not [line for line in lines if line.startswith("wrong")] and not list((tmp_path / "runs").iterdir())
    assert any(line.startswith("ok     jobs to prepare, ") and "Slurm would take them" in line for line in lines)
    wait_until(lambda: not commands.queue())
    wrong = ["slurm.prepare.partition=nowhere", "slurm.train.time=20000", "slurm.measure.mem=900GB"]
    more = [word for one in wrong for word in ("--set", one)]
    assert run_all.main(["doctor", "demo", "--runs", str(tmp_path / "runs"), *more]) == 1
    told = [line for line in capsys.readouterr().out.splitlines() if line.startswith("wrong  jobs to ")]
    assert [re.sub(r" \(.*\): Slurm refuses them", "", line.partition("; ")[0]) for line in told] == [
        "wrong  jobs to prepare, invalid partition specified: nowhere",
        "wrong  jobs to train, Requested time limit is invalid (missing or exceeds some limit): "
        "correct it in [slurm.train], [slurm]",
        "wrong  jobs to measure, Requested node configuration is not available: correct it in [slurm.measure], [slurm]",
    ]
    wait_until(lambda: not commands.queue())
