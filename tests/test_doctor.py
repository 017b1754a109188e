"""`run_all.py doctor`. Oracles: what is put in its way, and the batch script that a site would write by hand."""

from __future__ import annotations

import errno
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from submitit.slurm.slurm import _make_sbatch_string

import run_all
from benchmark.jobs import doctor
from benchmark.jobs.findings import Finding
from benchmark.jobs.slurm import commands
from benchmark.jobs.slurm.requests import of_requests
from benchmark.settings.load import load_suite
from benchmark.settings.slurm import JobKind, Slurm
from tests.support.slurm_requests import requests

FINE: dict[str, Any] = {
    "node": "n1",
    "time": 15.0,
    "locks": True,
    "unseen": [],
    "temporary": 5e9,
    "torch": "2.13.0",
    "device": "cuda",
    "devices": 4,
}


@pytest.mark.parametrize(
    ("wrong", "line"),
    [
        ({}, ""),
        ({"locks": False}, "look   n1: a lock held here was given to it too: leases stand in"),
        ({"locks": "No locks available"}, r"look   n1: no flock \(No locks available\)"),
        (
            {"error": "ImportError: x"},
            r"wrong  n1: torch cannot be imported \(ImportError: x\): see slurm.",
        ),
        ({"device": "cpu", "devices": 0}, "wrong  n1: torch 2.13.0 finds no GPU: look at the driver"),
        ({"time": 300.0}, "wrong  n1: its clock is 280 s off: let both follow one time server"),
        ({"time": 1.0}, "wrong  n1: its clock is 9 s off"),
    ],
)
def test_what_a_node_says(wrong: dict[str, Any], line: str) -> None:
    """Oracle: the answer put in; it was asked at 10 and read at 20 seconds, by jobs that want GPUs."""
    found = [str(finding) for finding in doctor.of_answer({**FINE, **wrong}, 10.0, 20.0, gpus=True)]
    bad = [text for text in found if not text.startswith("ok ")]
    assert len(bad) == (1 if wrong else 0)
    assert not wrong or re.match(line, bad[0])


@pytest.mark.parametrize(("cores", "kind"), [(4, "ok "), (3, "look ")])
def test_cores_for_the_runs_of_a_job(cores: int, kind: str) -> None:
    """Oracle: counted by hand: four runs at a time need a core each; a job of one run asks for nothing."""
    bundle = Slurm(runs_per_job=8, ntasks_per_node=4)
    [found] = doctor.of_bundles(bundle, {"node": "n1", "cores": cores})
    assert str(found).startswith(kind) and f"n1: {cores} cores for 4 runs at a time" in str(found)
    assert not list(doctor.of_bundles(Slurm(ntasks_per_node=4), {"node": "n1", "cores": cores}))
    assert "#SBATCH --cpus-per-task=4\n" in doctor.script(bundle, Path("/x"))


def test_the_node_is_asked_for_what_training_asks_for() -> None:
    """Oracle: the site's own keys, as sbatch writes them: whatever they count by, GPUs, cores or memory."""
    by_gpu = Slurm(gpus_per_task=2, cpus_per_gpu=3, mem_per_gpu="4GB")
    flags = {line for line in doctor.script(by_gpu, Path("/x")).splitlines() if line.startswith("#SBATCH")}
    assert {"#SBATCH --gpus-per-task=2", "#SBATCH --cpus-per-gpu=3", "#SBATCH --mem-per-gpu=4GB"} <= flags
    assert "#SBATCH --mem-per-cpu=1GB\n" in doctor.script(Slurm(mem_per_cpu="1GB"), Path("/x"))


def test_options_without_a_value(tmp_path: Path) -> None:
    """Oracle: sbatch takes `--exclusive` and no `--exclusive=True`; false leaves an option out, of real jobs too."""
    more = Slurm(additional_parameters={"exclusive": True, "requeue": False, "core_spec": 1, "licenses": "a b"})
    flags = [line for line in doctor.script(more, Path("/x")).splitlines() if line.startswith("#SBATCH")]
    assert {"#SBATCH --exclusive", "#SBATCH --core-spec=1", "#SBATCH --licenses='a b'"} <= set(flags)
    assert not [line for line in flags if "requeue" in line or "True" in line]
    real = _make_sbatch_string("true", tmp_path, **more.parameters("train", ["steps"])).splitlines()
    assert {"#SBATCH --exclusive", "#SBATCH --core-spec=1", "#SBATCH --licenses='a b'"} <= set(real)
    assert not [line for line in real if "requeue" in line]


def test_gpus_of_training_alone_are_looked_for(tmp_path: Path, monkeypatch) -> None:
    """Oracle: a machine without GPUs, for a site that asks for some in [slurm.train] and nowhere else."""
    (runs := tmp_path / "runs").mkdir()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    OneNode(tmp_path, monkeypatch, "touch {file}")
    found = list(doctor.of_node(Slurm(train=JobKind(gpus_per_node=1)), runs))
    assert [finding.serious for finding in found if "finds no GPU" in finding.what] == [True]


def test_the_folder_of_the_runs(tmp_path: Path, monkeypatch) -> None:
    """Oracle: the disk's own figures, and a file system that knows no locks."""
    free, locked = doctor.of_folder(tmp_path)
    assert not locked.cure and "GB free" in free.what

    def flock(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("fcntl.flock", flock)
    monkeypatch.setattr(doctor, "LITTLE", 1e30)
    free, locked = doctor.of_folder(tmp_path)
    assert str(free).startswith("look ") and "--runs takes another disk" in free.cure
    assert "No locks available" in locked.what and "-o flock" in locked.cure and not locked.serious
    tmp_path.chmod(0o2775)
    assert next(find for find in doctor.of_folder(tmp_path) if find.serious and "umask" in find.cure)
    assert not list(tmp_path.iterdir())


def test_the_controller() -> None:
    """Oracle: what it says of itself."""
    good = [str(finding) for finding in doctor.of_controller("slurm 23.11.4", {"MaxArraySize": "17"}, True)]
    assert good == ["ok     slurm 23.11.4: arrays of at most 17 tasks, 10000 jobs in all; larger submissions are cut"]
    poor = [str(finding) for finding in doctor.of_controller("slurm 23.11.4", {"JobRequeue": "0"}, False)]
    assert [line[:7] for line in poor] == ["ok     ", "look   ", "look   "] and "sacct" in poor[1]


def test_each_kind_of_job_is_asked_for_once(tmp_path: Path) -> None:
    """Oracle: by hand, the options of each: a kind and a row with their own; those that agree are one."""
    one, *others = requests()
    assert one.jobs[0] == "prepare" and "train" in one.jobs and one.jobs[-1] == "report" and not others
    row = {"method": "er", "set": {"slurm.train.mem": "9GB", "slurm.score.time": 77}}
    keys = {
        "slurm.partition": "gpu",
        "slurm.gpus_per_node": 2,
        "slurm.prepare.partition": "cpu",
        "tables": ["main_pretraining"],
    }
    task = {"name": "t", "domain": "science", "train": "a", "dev": "b", "test": "c"}
    domain = load_suite("demo").domains[0].name
    found = requests(**keys, rows=[row], methods=["naive"], tasks=[{**task, "domain": domain}])
    told = {
        one.jobs: {flag for flag in one.script.splitlines() if re.search("partition|mem|time|gpus", flag)}
        for one in found
    }
    gpu, day = "#SBATCH --partition=gpu", "#SBATCH --time=1440"
    assert told == {
        ("prepare",): {"#SBATCH --partition=cpu", day},
        ("train",): {gpu, day, "#SBATCH --gpus-per-node=2"},
        ("train ER",): {gpu, day, "#SBATCH --gpus-per-node=2", "#SBATCH --mem=9GB"},
        ("score",): {gpu, day, "#SBATCH --gpus-per-node=1"},
        ("score ER",): {gpu, "#SBATCH --time=77", "#SBATCH --gpus-per-node=1"},
        ("report",): {gpu, day},
    }
    assert (
        not [one for one in found if "wckey" in one.script] and "wckey=x" in requests(**{"slurm.wckey": "x"})[0].script
    )


PARTITIONS = (
    "PartitionName=short QoS=few Default=NO MaxTime=01:00:00 State=UP\n"
    "PartitionName=main QoS=N/A Default=YES MaxTime=1-00:00:30 State=UP\n"
    "PartitionName=long QoS=N/A Default=NO MaxTime=UNLIMITED State=UP\n"
)


@pytest.mark.parametrize(
    ("partition", "time", "most"),
    [("short", 61, 60), ("short", 60, 0), ("short,long", 9999, 0), (None, 1441, 1440.5), (None, 1440, 0), ("x", 9, 0)],
)
def test_a_time_that_no_partition_allows(monkeypatch, partition: str | None, time: int, most: float) -> None:
    """Oracle: what Slurm 22.05 says of partitions; it queues such jobs for ever, unless EnforcePartLimits is set."""
    monkeypatch.setattr(commands, "_ask", lambda command: PARTITIONS)
    monkeypatch.setattr(commands, "refusal", lambda script: "")
    asked = requests(**{"slurm.time": time} | ({"slurm.partition": partition} if partition else {}))
    [found] = of_requests(asked, commands.partitions())
    said = f": their partition allows {most:g} minutes: they would wait for ever: set time in [slurm.prepare], "
    assert str(found).startswith("wrong " if most and time > most else "ok ")
    assert (said in str(found)) == bool(most and time > most)


def test_what_slurm_refuses_is_told_with_its_place(tmp_path: Path, monkeypatch) -> None:
    """Oracle: the words of sbatch 22.05, which is asked once for each set of options, and submits nothing."""
    script = 'case "$*" in *=nowhere*) echo allocation failure: Invalid partition >&2; exit 1;; esac'
    (tmp_path / "sbatch").write_text(f"#!/bin/sh\n[ $1 = --test-only ] && echo >> {tmp_path}/asked\n{script}\n")
    (tmp_path / "sbatch").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    found = [*of_requests(requests(**{"slurm.report.partition": "nowhere"}), {})]
    [wrong] = [one for one in found if one.serious and one.cure]
    assert str(wrong) == (
        "wrong  jobs to report (partition nowhere, nodes 1, time 1440): Slurm refuses them, Invalid partition: "
        "correct it in [slurm.report], [slurm]"
    )
    assert len((tmp_path / "asked").read_text().splitlines()) == len(found) == 2


def test_a_user_without_a_name_has_limits_too(monkeypatch) -> None:
    """Oracle: in a container the number of a user may have no name: Python's own error, and the number in its place."""

    def nameless() -> str:
        raise KeyError("getpwuid(): uid not found")

    asked: list[list[str]] = []
    monkeypatch.setattr("getpass.getuser", nameless)
    monkeypatch.setattr(commands, "_ask", lambda command: asked.append(command) or "lab|4||\n")
    assert commands.associations(None, "")[0]["MaxSubmitJobs"] == "4" and f"user={os.getuid()}" in asked[0]


class OneNode:
    """Slurm with one node, which is this machine; `requeue` is the body of its scontrol, `signals` of its scancel."""

    def __init__(
        self, folder: Path, patch: pytest.MonkeyPatch, requeue: str, signals: str = "kill -USR2 $PPID"
    ) -> None:
        self.ended, self.requeued = False, folder / "requeued"
        bodies = {"scontrol": requeue.format(file=self.requeued), "scancel": signals, "srun": 'exec "$@"'}
        for name, body in bodies.items():
            (folder / name).write_text(f"#!/bin/sh\n{body}\n")
            (folder / name).chmod(0o755)
        patch.setenv("PATH", str(folder), prepend=":")
        patch.setenv("SLURM_JOB_ID", "7")
        patch.setattr(commands, "submit", self.submit)
        patch.setattr(commands, "queue", self.queue)
        patch.setattr(commands, "restarts", lambda job: int(self.requeued.exists()))
        patch.setattr(commands, "cancel", self.cancel)
        patch.setattr(doctor, "PAUSE", 0.01)

    def submit(self, script: Path) -> str:
        self.script = script.read_text()
        with (script.parent / "log").open("w") as log:
            self.failed = subprocess.run(["bash", str(script)], stdout=log, stderr=log).returncode != 0
        return "7"

    def queue(self) -> dict[str, commands.Queued]:
        there = {} if self.ended or self.failed else {"7": commands.Queued("PENDING", "BeginTime", "")}
        return there

    def cancel(self, jobs: list[str]) -> None:
        assert jobs == ["7"]
        self.ended = True


@pytest.mark.parametrize(
    ("requeue", "line"),
    [
        ("touch {file}", "jobs can queue themselves again"),
        ("echo 'access denied' >&2; exit 1", "a job cannot queue itself again (access denied): after a time limit"),
    ],
)
def test_a_node_is_asked(tmp_path: Path, monkeypatch, requeue: str, line: str) -> None:
    """Oracle: this machine is the node: the lock that is held here keeps its process out; nothing stays."""
    (runs := tmp_path / "runs").mkdir()
    node = OneNode(tmp_path, monkeypatch, requeue)
    found = [str(finding) for finding in doctor.of_node(Slurm(partition="gpu", setup=("true",)), runs)]
    assert sum("locks hold between machines" in text for text in found) == 1
    assert line in found[-1] and found[-1].startswith("wrong" if "denied" in line else "ok")
    assert node.ended and not list(runs.iterdir())
    assert "#SBATCH --partition=gpu\n" in node.script and "\ntrue\n" in node.script


@pytest.mark.parametrize(("requeue", "signals"), [("touch {file}", "kill -BUS $PPID"), ("", "kill -USR2 $PPID")])
def test_a_container_whose_image_goes_with_the_signal(tmp_path: Path, monkeypatch, requeue: str, signals: str) -> None:
    """Where what mounts the image dies of the signal that asks to save, Python dies at its next page (SIGBUS), or finds
    no program. Oracle: apptainer 1.4.5 with its FUSE mount, whose words and ends these are."""
    (runs := tmp_path / "runs").mkdir()
    OneNode(tmp_path, monkeypatch, requeue, signals)
    if "BUS" not in signals:
        lost = OSError(errno.ENOTCONN, os.strerror(errno.ENOTCONN), "scontrol")
        (tmp_path / "scontrol").write_text(f"#!/bin/sh\necho '{lost}' >&2\nexit 1\n")
    *_, found = doctor.of_node(Slurm(python=sys.executable), runs)
    assert "a job ends by the signal that asks it to save" in str(found) and found.serious
    assert "--sandbox" in found.cure


def test_what_set_changes_is_asked_of_the_node(tmp_path: Path, monkeypatch, capsys) -> None:
    """Oracle: the batch script that `run` with the same words would write."""
    node = OneNode(tmp_path, monkeypatch, "touch {file}")
    (tmp_path / "sbatch").touch(0o755)
    monkeypatch.setattr(commands, "version", lambda: "slurm 23.11.4")
    monkeypatch.setattr(commands, "configuration", dict)
    monkeypatch.setattr(commands, "_ask", lambda command: "")
    monkeypatch.setattr(commands, "refusal", lambda script: "")
    words = ["doctor", "demo", "--runs", str(tmp_path / "runs"), "--set", "slurm.partition=long"]
    assert run_all.main([*words, "--set", "slurm.train.mem=3GB"]) == 0
    assert "jobs can queue themselves again" in capsys.readouterr().out
    assert {"#SBATCH --partition=long", "#SBATCH --mem=3GB"} <= set(node.script.splitlines())


@pytest.mark.parametrize(
    ("given", "refused"),
    [
        (("training.learning_rate=0.1",), "training.learning_rate"),
        (("slurm.time=60", "seeds=[1, 2]"), "seeds"),
        (("slurmy.time=60",), "slurmy.time"),
        (("slurm.time=60", "budget.unit=steps", "budget.amount=9", "tables=[]", "tasks=[]"), ""),
        (('methods=["er"]', "rows=[]"), ""),
    ],
)
def test_what_doctor_does_not_look_at_is_refused(tmp_path, monkeypatch, capsys, given, refused: str) -> None:
    """Oracle: `requests_of`, which reads these and no more; what is refused is so before anything is looked at."""
    monkeypatch.setattr(doctor, "examine", lambda *_: [Finding("all")])
    words = [word for one in given for word in ("--set", one)]
    assert run_all.main(["doctor", "demo", "--runs", str(tmp_path / "runs"), *words]) == (2 if refused else 0)
    told = capsys.readouterr()
    assert bool(refused) != bool(told.out)
    assert told.err.startswith(f"error: --set {refused}: doctor looks at slurm, " if refused else "")


@pytest.mark.parametrize("seen", [True, False])
def test_a_node_sees_where_code_lies(tmp_path: Path, monkeypatch, seen: bool) -> None:
    """Oracle: a folder in which others can write, so that code goes to the home folder, which this node's `setup` takes
    away, as where nodes have homes of their own."""
    (runs := tmp_path / "runs").mkdir()
    runs.chmod(0o777)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    OneNode(tmp_path, monkeypatch, "touch {file}")
    setup = () if seen else (f"mv {tmp_path}/home {tmp_path}/elsewhere",)
    found = [str(finding) for finding in doctor.of_node(Slurm(setup=setup), runs)]
    told = f"wrong  n: does not see {tmp_path}/home/.lifelong-pretraining: jobs find their code there"
    assert any(re.sub(r"^wrong  [^:]+:", "wrong  n:", line).startswith(told) for line in found) != seen
    assert not [*runs.iterdir(), *(tmp_path / "home").glob(".lifelong-pretraining/*")]


@pytest.mark.parametrize(("behind", "line"), [(30.0, "its clock is right"), (70.0, "its clock is 10 s off")])
def test_a_clock_behind_by_less_than_the_queue(tmp_path: Path, monkeypatch, behind: float, line: str) -> None:
    """Oracle: a job that waits for three minutes and starts at 240: of the looks, one a minute, the one at 180 saw it
    wait; so a clock that is 30 s behind may be right, and one that is 70 s behind is not, by 10 s at least. That it
    waits once more, having answered and queued itself again, says nothing.
    """
    (runs := tmp_path / "runs").mkdir()
    now = [0.0]
    clock = SimpleNamespace(time=lambda: now[0], monotonic=lambda: now[0], sleep=lambda _: now.append(now.pop() + 60))
    answered: list[Path] = []

    def queue() -> dict[str, commands.Queued]:
        if now[0] < 240:
            return {"7": commands.Queued("PENDING", "Priority", "")}
        [script] = runs.glob(".doctor-*/job.sh")
        if not answered:  # the folder shows the answer a look later than the queue does
            answered.append(script.with_name("answer.json"))
            return {"7": commands.Queued("PENDING", "BeginTime", "")}
        answered[0].write_text(json.dumps({**FINE, "time": 240.0 - behind, "cores": 1}))
        return {"7": commands.Queued("PENDING", "BeginTime", "")}

    monkeypatch.setattr(doctor, "time", clock)
    monkeypatch.setattr(commands, "submit", lambda script: "7")
    monkeypatch.setattr(commands, "queue", queue)
    monkeypatch.setattr(commands, "restarts", lambda job: 1)
    monkeypatch.setattr(commands, "cancel", lambda jobs: None)
    assert sum(line in str(finding) for finding in doctor.of_node(Slurm(), runs)) == 1


def test_a_job_that_ends_without_an_answer(tmp_path: Path, monkeypatch) -> None:
    """Oracle: a `setup` that fails; its last line is in the message."""
    (runs := tmp_path / "runs").mkdir()
    OneNode(tmp_path, monkeypatch, "true")
    [found] = doctor.of_node(Slurm(setup=("echo no module named cuda; exit 1",)), runs)
    assert str(found).startswith(
        "wrong  job 7 ended without an answer: it said 'no module named cuda'; see slurm.setup"
    )
    assert not list(runs.iterdir())
