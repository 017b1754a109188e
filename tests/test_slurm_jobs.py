"""Jobs that train nothing, and a part of an array, on a real Slurm; see tests/test_slurm.py."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

from benchmark.jobs.slurm import commands
from tests.support import processes
from tests.support.slurm_cluster import SlurmCluster
from tests.support.slurm_lab import Lab, needs_slurm, processes_of, scontrol, silent, tasks_of, wait_until, write_task
from tests.support.thorough import THOROUGH, only_thorough

pytestmark = needs_slurm


def test_cancel_ends_tasks_of_an_array(lab: Lab) -> None:
    """Oracle: by hand, in Slurm's queue: of arrays in which all wait, the tasks of a seed, then of a run."""
    lab.write('{ method = "naive" }', '{ method = "er" }', tasks=write_task(lab.folder))
    with lab.file.open("a") as file:
        file.write('additional_parameters = { begin = "now+1hour" }')
    lab.submit("--seeds", "0,1,2")
    ids = {job.name: job.id for job in lab.jobs()}
    ends = {id for name, id in ids.items() if "s1" in name}
    assert len(ids) == 16 and len(ends) == 5, "a shared stage and two runs with their scores a seed, and the report"
    assert lab.call("cancel", "--seeds", "1") == 0
    assert set(commands.queue()) == {*ids.values()} - ends
    ends |= {ids["tiny:er-s2"], ids["tiny:score-er-s2-sea"]}
    assert lab.call("cancel", "--methods", "er", "--seeds", "2") == 0
    assert set(commands.queue()) == {*ids.values()} - ends


def kill(job: str) -> None:
    """Its processes die as soon as one does its work, as where memory is short; Slurm is not asked to end it."""
    wait_until(lambda: tasks_of(job))
    processes.kill(processes_of(job))


def test_killed_jobs_that_train_nothing(lab: Lab, capsys) -> None:
    """A score, a measure and a report are killed, before a teardown that succeeds. Oracle: the rule for runs: each is
    told with its log and counted, and is tried again when that is asked for, and only then; but `report` does what the
    last was to do."""
    lab.write('{ method = "naive" }', tasks=write_task(lab.folder), slurm='teardown = ["true"]')
    text = lab.file.read_text().replace("main_pretraining", "representational_similarity")
    lab.file.write_text(text.replace("[40, 200]", "[1, 1]"))
    assert lab.call("run", "--set", "tasks=[]", "--set", "tables=[]", "--parallel", "1") == 0
    lab.submit()
    killed = lab.jobs()
    for job in killed:
        kill(job.id)
    lab.wait_for_endings()
    capsys.readouterr()
    assert lab.call("status") == 1
    told = capsys.readouterr().out
    assert "other jobs: 3 failed" in told and len(killed) == 3
    for job in killed:
        said = f"{job.name}  failed  {job.id}  ended without a word (FAILED); log {job.submitted['log']}"
        assert said in told.splitlines()
    lab.submit()
    assert "nothing to submit" in capsys.readouterr().out and lab.jobs() == killed
    assert lab.call("report") == 0
    capsys.readouterr()
    assert lab.call("status") == 1 and "other jobs: 2 failed" in capsys.readouterr().out
    lab.submit("--retry-failed")
    assert [job.key for job in lab.jobs()[3:]] == [job.key for job in killed]
    assert lab.call("status") == 0, "they are under way"
    if THOROUGH:
        lab.wait_for_endings()
        assert lab.call("status") == 0 and (lab.folder / "report" / "tiny" / "index.html").exists()


def test_a_bundle_that_is_queued_again_and_dies_before_its_first_word(lab: Lab) -> None:
    """Its `setup` fails the second time. Oracle: the rule for a job of one run, which has failed then: so have both
    runs, of which one had begun before, and nothing is submitted unasked."""
    broken = lab.folder / "broken"
    lab.write("x", "y", slurm=f'runs_per_job = 2\nsetup = ["test ! -e {broken}"]').tell("x", "slow")
    lab.submit()
    lab.wait_for_mid_stage("x")
    job = lab.job("x").id
    assert lab.job("y").id == job and lab.states()["y"].state == "waiting"
    broken.touch()
    subprocess.run(["scancel", "--signal=USR2", job], check=True)  # as a time limit does
    lab.wait_for_endings(job)
    assert {row: state.state for row, state in lab.states().items()} == {"x": "failed", "y": "failed"}
    assert lab.states()["y"].restarts == 0 and lab.submit() == 0 and {lab.job(row).id for row in "xy"} == {job}


@only_thorough
def test_a_killed_run_is_unknown_while_accounts_are_silent(lab: Lab, cluster: SlurmCluster, capsys) -> None:
    """A run is killed while slurmdbd stands still. Oracle: the rule that no answer is no end: it is unknown, and `run`
    submits nothing for it; then its accounts say that it failed."""
    lab.write("x").tell("x", "slow")
    lab.submit()
    ids = [job.id for job in lab.jobs()]
    lab.wait_for_mid_stage("x")
    with silent(cluster, "slurmdbd"):
        kill(lab.job("x").id)
        wait_until(lambda: not commands.queue())
        capsys.readouterr()
        assert lab.call("status") == 3  # it waits more than half a minute for an answer
        told = capsys.readouterr().out
        assert "1 unknown" in told and "sacct does not answer how" in told
        assert lab.submit() == 0 and "nothing to submit" in capsys.readouterr().out
    assert lab.wait_for("x", "failed").detail == "ended without a word (FAILED); 1 of 2 stages done"
    assert lab.submit() == 0 and [job.id for job in lab.jobs()] == ids


@only_thorough
def test_preparation_goes_on_where_its_limit_stopped_it(lab: Lab, capsys) -> None:
    """It is told that its time is over in its second text, and killed when it is there again. Oracle: Slurm queues it
    again, a killed one is tried again when asked, and none of them makes the first text anew. A run that makes the
    text in its place stops there, too."""
    texts = [json.dumps({"text": f"sand {number} " * 500}) for number in range(4000)]
    (lab.folder / "sea.jsonl").write_text("\n".join(texts))
    lab.write('{ method = "naive" }', slurm='partition = "preemptible"\n[slurm.prepare]\npartition = "main"')
    lab.file.write_text(lab.file.read_text().replace(f"{lab.texts}/sea", f"{lab.folder}/sea"))
    domains = lab.runs / "data" / "domains"
    before = {*domains.iterdir()}

    def first_text(starts: int) -> os.stat_result:
        """Wait until a job that has started so often is in its second text; of the first it has made this."""
        wait_until(lambda: len(lab.jobs()[0].starts) == starts and made() and [*domains.glob("*.unfinished/*.bin")])
        [file] = made()
        return file.stat()

    def made() -> list[Path]:
        found = [file for file in domains.glob("*/info.json") if file.parent not in before]
        return [file for file in found if file.parent.suffix != ".unfinished"]

    scontrol("update", "PartitionName=preemptible", "State=DOWN")  # nothing else begins
    try:
        lab.submit()
        job = lab.jobs()[0].id
        first = first_text(starts=1)
        subprocess.run(["scancel", "--signal=USR2", job], check=True)  # as a time limit does
        wait_until(lambda: commands.queue()[job].waits)
        assert first_text(starts=2) == first
        kill(job)
        lab.wait_for_endings(job)
        capsys.readouterr()
        assert lab.call("status") == 1
        assert f"tiny:prepare  failed  {job}  ended without a word (FAILED); log" in capsys.readouterr().out
        lab.submit()
        assert "nothing to submit" in capsys.readouterr().out
        train = lab.job("Naive").id
        scontrol("update", "PartitionName=preemptible", "State=UP")  # the run makes its text itself
        wait_until(lambda: lab.job("Naive").starts)
        subprocess.run(["scancel", "--signal=USR2", train], check=True)
        wait_until(lambda: commands.queue()[train].waits)
        assert len(made()) == 1, "it was left in mid-text"
        scontrol("update", "PartitionName=preemptible", "State=DOWN")
        lab.call("cancel", "--seeds", "0")
        lab.wait_for_endings(train)
        lab.submit("--retry-failed")
        assert [one.name for one in lab.jobs()[-3:]] == ["tiny:prepare", "tiny:naive-s0", "tiny:report"]
        wait_until(lambda: lab.jobs()[-3].end)
    finally:
        scontrol("update", "PartitionName=preemptible", "State=UP")
    assert lab.jobs()[-3].end["state"] == "done" and len(made()) == 2
    assert first in [file.stat() for file in made()]
