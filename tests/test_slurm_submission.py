"""What a real Slurm is asked for, also by submissions that a kill or its limits cut short; see tests/test_slurm.py."""

from __future__ import annotations

import itertools
import os
import pwd
import shlex
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

from benchmark.downstream.scoring import end_with
from benchmark.jobs.slurm import commands
from benchmark.jobs.slurm.requests import of_limits, of_requests, requests_of
from benchmark.settings.load import load_suite
from tests.support import processes
from tests.support.slurm_cluster import SlurmCluster
from tests.support.slurm_lab import (
    Lab,
    needs_slurm,
    new_lab,
    processes_of,
    scontrol,
    wait_until,
    waits_in_queue,
    write_task,
)
from tests.support.thorough import only_thorough

pytestmark = needs_slurm


def submit_and_die(lab: Lab, call: int, answered: bool) -> bool:
    """Submit in a copy of this process that kills itself at a call to Slurm: before it, or when it is `answered`.

    Returns whether there were so many.
    """
    ask, parent, child = commands._ask, os.getpid(), os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    calls = itertools.count(1)

    def die_at(command: list[str]) -> str:
        dies = next(calls) == call
        answer = ask(command) if answered or not dies else ""
        if dies:
            os.kill(os.getpid(), signal.SIGKILL)
        return answer

    try:
        end_with(parent)
        commands._ask = die_at
        lab.submit()
    finally:
        os._exit(0)


def waits(lab: Lab) -> dict[str, set[str]]:
    """What each job in Slurm's queue waits for, by the names that they were noted with."""
    names = {job.id: job.name for job in lab.jobs()}
    return {names[job]: {names[id] for id in ids} for job, ids in waits_in_queue(lab).items()}


def test_a_submitter_killed_at_every_step(lab: Lab, texts: Path, capfd) -> None:
    """It dies at each of its calls to Slurm, before it or with the answer. Oracle: what Slurm has, and what that waits
    for, after an undisturbed submission: the next `run` comes to the same, each job once, and leaves nothing held."""
    scontrol("update", "PartitionName=main", "State=DOWN")  # jobs wait

    def new(name: str) -> Lab:
        one = Lab(lab.folder / name, texts, data=lab.runs / "data")
        rows = '{ method = "naive" }', '{ method = "er" }', '{ method = "naive", name = "same" }'
        return one.write(*rows, tasks=write_task(one.folder))

    try:
        whole = new("whole")
        assert whole.submit() == 0
        expected = waits(whole)
        commands.cancel(list(commands.queue()))
        assert set(expected) == {
            *("tiny:wood-of-3-s0", "tiny:sea-of-2-s0", "tiny:naive-s0", "tiny:same-s0", "tiny:er-s0"),
            *("tiny:score-naive-s0-sea", "tiny:score-er-s0-sea", "tiny:report"),
        }
        for step in itertools.count():
            call, answered = 1 + step // 2, step % 2 == 1
            one = new(f"step-{step}")
            if not submit_and_die(one, call, answered):
                break
            left = set(commands.queue()) - {job.id for job in one.jobs()}
            capfd.readouterr()
            assert one.call("status") == 0
            assert ("before it noted it" in capfd.readouterr().out) == bool(left), (call, answered)
            assert one.submit() == 0
            queue = commands.queue()
            assert Counter(job.name for job in one.jobs()) == Counter([*expected]), (call, answered)
            assert set(queue) == {job.id for job in one.jobs()}, (call, answered)
            assert not [job for job, known in queue.items() if known.reason.startswith("JobHeld")], (call, answered)
            assert waits(one) == expected, (call, answered)
            commands.cancel(list(queue))
        assert call == 9, "two questions, three submissions, two dependencies, and letting go"
    finally:
        scontrol("update", "PartitionName=main", "State=UP")


def test_limits_of_a_cluster(texts: Path, tmp_path: Path, capsys) -> None:
    """Arrays of at most three tasks (MaxArraySize), four jobs of a user (MaxSubmitJobs), five in all (MaxJobCount), and
    a site without arrays.

    Oracle: by hand, from Slurm's queue: of a shared stage, four runs, their scores and a report four jobs go, in two
    calls; the next `run` sends the others, and none twice; each waits for what it needs. Without arrays it is the same.
    What doctor foresees of limits is what sacctmgr was told; a time limit beyond its partition's keeps a job waiting.
    Of ten jobs five go where MaxJobCount is 6, as Slurm 22.05 counts an array too; the next `run` finds no room.
    """

    def accounts(*words: str) -> None:
        subprocess.run(["sacctmgr", "-i", *words], check=True, stdout=subprocess.DEVNULL)

    shared, runs = "tiny:wood-of-4-s0", [f"tiny:{row}-s0" for row in "abcd"]
    expected = {shared: set(), **{run: {shared} for run in runs}}
    expected |= {f"tiny:score-{row}-s0-sea": {run} for row, run in zip("abcd", runs, strict=True)}
    expected["tiny:report"] = {*expected}
    limits, user = "MaxArraySize=3\nAccountingStorageEnforce=limits\n", pwd.getpwuid(os.getuid()).pw_name
    limits += "EnforcePartLimits=NO\nPartitionName=short Nodes=ALL MaxTime=60"
    with SlurmCluster(tmp_path / "limited", nodes=1, more=limits), new_lab(tmp_path / "lab", texts) as lab:
        accounts("add", "account", "lab")
        accounts("add", "user", user, "account=lab", "MaxSubmitJobs=4")
        accounts("add", "qos", "few", "MaxSubmitJobsPerUser=50")
        accounts("modify", "user", user, "account=lab", "set", "qos=normal,few")
        lab.write("a", slurm='account = "lab"\npartition = "short"\ntime = 61\n[slurm.report]\ntime = 60\nqos = "few"')
        asked = requests_of(load_suite(str(lab.file)), lab.configs(), measures=False)
        account, quality = of_limits(commands.configuration(), "lab", asked, commands.partitions())
        assert account.what.startswith("account lab: at most 4 jobs of yours in the queue")
        assert quality.what.startswith("QOS few: at most 50 jobs of yours in the queue")
        wrong, right = of_requests(asked, commands.partitions())
        assert "their partition allows 60 minutes: they would wait for ever" in str(wrong) and not right.cure
        subprocess.run(["sbatch", "--partition=short", "--time=61", "--wrap=true"], check=True)
        wait_until(lambda: [job.reason for job in commands.queue().values()] == ["PartitionTimeLimit"])
        commands.cancel([*commands.queue()])
        scontrol("update", "PartitionName=main", "State=DOWN")  # jobs wait
        lab.write("a", "b", "c", "d", slurm='account = "lab"', tasks=write_task(lab.folder))
        assert lab.submit() == 3
        told = capsys.readouterr().out
        assert "4 jobs submitted in 2 calls" in told and "! Slurm took no more: 6 jobs are left" in told
        assert set(commands.queue()) == {job.id for job in lab.jobs()} and len(lab.jobs()) == 4
        accounts("modify", "user", user, "set", "MaxSubmitJobs=100")
        assert lab.submit() == 0
        assert waits(lab) == expected and len(lab.jobs()) == len(expected)
    with SlurmCluster(tmp_path / "single", nodes=1, more="MaxArraySize=0"), new_lab(tmp_path / "other", texts) as lab:
        scontrol("update", "PartitionName=main", "State=DOWN")
        assert lab.write("a", "b", "c", "d", tasks=write_task(lab.folder)).submit() == 0
        assert "10 jobs submitted in 10 calls" in capsys.readouterr().out
        assert waits(lab) == expected and not [job for job in commands.queue() if "_" in job]
    with SlurmCluster(tmp_path / "full", nodes=1, more="MaxJobCount=6"), new_lab(tmp_path / "third", texts) as lab:
        scontrol("update", "PartitionName=main", "State=DOWN")
        lab.write(*"abcdefgh")
        assert lab.submit() == 3
        told = capsys.readouterr().out
        assert "5 jobs submitted in 1 calls" in told and "! Slurm took no more: 5 jobs are left" in told
        assert set(commands.queue()) == {job.id for job in lab.jobs()} and len(lab.jobs()) == 5
        assert lab.submit() == 2 and "MaxJobCount" in capsys.readouterr().err
        assert set(commands.queue()) == {job.id for job in lab.jobs()} and len(lab.jobs()) == 5


def test_what_jobs_ask_for(lab: Lab, texts: Path, capsys) -> None:
    """A row with resources of its own, its own command for Python, the node's disk, a work key and none; and a `setup`
    that fails. Oracle: what Slurm says of the jobs, the environment of their processes, the files."""
    own = 'set = { "slurm.partition" = "preemptible", "slurm.mem" = "300MB", "slurm.train.cpus_per_task" = 2 }'
    row = f'{{ name = "x", method = "paced", options = {{ gate = "{lab.gate("x")}" }}, {own} }}'
    python, scratch = f"env COMES=through {sys.executable}", lab.folder / "scratch"
    lab.write(row, slurm=f'python = "{python}"\nscratch = "{scratch}"')
    broken = Lab(lab.folder / "broken", texts, data=lab.runs / "data")
    broken.write("x", slurm='setup = ["false"]\nwckey = "mine"')
    for one in (lab, broken):
        one.file.write_text(one.file.read_text().replace("[40, 200]", "[2, 2]"))
        assert one.submit() == 0
    command = ["squeue", "--noheader", "--states=all", "--format=%i|%P|%m|%C|%w"]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    train, report = lab.jobs()
    wrong, also = broken.jobs()
    assert {f"{train.id}|preemptible|300M|2|(null)", f"{report.id}|main|100M|1|(null)"} <= {*told}
    assert {f"{wrong.id}|main|100M|1|mine", f"{also.id}|main|100M|1|mine"} <= {*told}
    wait_until(lambda: any(processes.has_variable(pid, "COMES=through") for pid in processes_of(train.id)))
    assert broken.wait_for("x", "failed").detail == "ended without a word (FAILED); 0 of 2 stages done"
    broken.wait_for_endings()
    capsys.readouterr()
    assert broken.call("status") == 1 and "other jobs: 1 failed" in capsys.readouterr().out
    assert not broken.jobs()[0].starts
    lab.wait_for("x", "done")
    copies = {file.name: file.read_bytes() for file in scratch.rglob("*.bin")}
    assert copies == {file.name: file.read_bytes() for file in (lab.runs / "data").rglob("*.bin")} != {}


@only_thorough
def test_who_submits_may_be_a_job(lab: Lab) -> None:
    """One with memory, cores and a comment of its own, that has exported options for sbatch. Oracle: what Slurm says of
    jobs that were asked for nothing, and the settings that such a job alone finds in its environment."""
    lab.write("x", slurm=f'setup = ["env > {lab.folder}/said-by-$SLURM_JOB_ID"]')
    lab.file.write_text(lab.file.read_text().replace("[40, 200]", "[2, 2]"))
    outer = ["--wait", "--mem=300", "--cpus-per-task=2", "--comment=outer", f"--output={lab.folder}/outer"]
    run = shlex.join([sys.executable, "run_all.py", *lab.arguments("run", "--executor", "slurm")])
    script = f"cd {lab.folder}/code && export SBATCH_PARTITION=preemptible SBATCH_TIMELIMIT=9 && {run}"
    subprocess.run(["sbatch", *outer, f"--wrap={script}"], check=True, capture_output=True)
    command = ["squeue", "--noheader", "--states=all", "--format=%i|%P|%m|%C|%k"]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    train, report = lab.jobs()
    assert {f"{job.id}|main|100M|1|(null)" for job in (train, report)} <= {*told}
    lab.wait_for("x", "done")
    own = (lab.folder / f"said-by-{train.id}").read_text().splitlines()
    assert "SLURM_MEM_PER_CPU=100" in own
    assert not [line for line in own if line.startswith(("SLURM_MEM_PER_NODE=", "SBATCH_PARTITION=", "SBATCH_TIME"))]
