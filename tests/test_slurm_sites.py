"""Clusters of other kinds: GPUs that have a type, a limit of a quality of service; see tests/test_slurm.py."""

from __future__ import annotations

import os
import pwd
import re
import subprocess
from collections import Counter
from pathlib import Path

from benchmark.jobs.slurm import commands
from tests.support.slurm_cluster import SlurmCluster
from tests.support.slurm_lab import Lab, needs_slurm, new_lab, scontrol, wait_until, write_task
from tests.support.thorough import THOROUGH

pytestmark = needs_slurm


def held_by_slurm(lab: Lab) -> dict[str, tuple[str, str, str]]:
    """GPUs, processes and cores of each noted job, by its name and in Slurm's words."""
    found = {}
    for job in lab.jobs():
        told = subprocess.run(["scontrol", "show", "job", job.id], check=True, capture_output=True, text=True).stdout
        fields = dict(re.findall(r"\b(TresPerNode|NumTasks|NumCPUs)=(\S+)", told))
        found[job.name] = fields.get("TresPerNode", "none"), fields["NumTasks"], fields["NumCPUs"]
    return found


def test_gpus_that_have_a_type(texts: Path, tmp_path: Path, capsys) -> None:
    """Oracle: scontrol's words for what each job asks for, by hand; in a thorough test also the files of what its
    processes say, one each. The GPUs are made up, so that they say that torch finds none."""
    whole = 'gres = "gpu:a100:4"\ncpus_per_task = 1'
    half = 'gpus_per_node = "a100:2"\ncpus_per_task = 2\n[slurm.score]\ngpus_per_node = "a100:2"\n'
    alone = '[slurm.train]\ngpus_per_node = "a100:2"\n'
    expected = {
        half: [("gres:gpu:a100:2", "2", "4"), ("gres:gpu:a100:2", "1", "2"), ("none", "1", "2")],
        alone: [("gres:gpu:a100:2", "2", "2"), ("gres:gpu:a100:1", "1", "1"), ("none", "1", "1")],
        whole: [("gres:gpu:a100:4", "4", "4"), ("gres:gpu:a100:1", "1", "1"), ("none", "1", "1")],
    }
    with SlurmCluster(tmp_path / "slurm", nodes=1, gpus="a100:4"), new_lab(tmp_path / "lab", texts) as first:
        scontrol("update", "PartitionName=main", "State=DOWN")  # jobs wait
        for number, (asked, gpus) in enumerate(expected.items()):
            lab = Lab(tmp_path / f"lab-{number}", texts, data=first.runs / "data")
            lab.write("x", slurm=asked, tasks=write_task(lab.folder))
            assert lab.submit() == 0
            assert [*held_by_slurm(lab).values()] == gpus, asked
            if asked != whole:
                commands.cancel([job.id for job in lab.jobs()])
        if not THOROUGH:
            return
        scontrol("update", "PartitionName=main", "State=UP")
        assert "torch finds none" in lab.wait_for("x", "failed").detail
        assert lab.job("x").starts[0]["gpus"] == "0,1,2,3"
        log = Path(lab.job("x").submitted["log"])
        said = [log.with_name(log.name.replace("_0_log", f"_{rank}_log")).exists() for rank in range(5)]
        assert said == [True, True, True, True, False]


def test_a_quality_of_service_that_takes_few_jobs(texts: Path, tmp_path: Path, capsys) -> None:
    """Oracle: by hand: MaxSubmitJobsPerUser of the QOS lets four of ten jobs go; `run` says so, submits none more until
    some have ended, and then as many again, none twice. (All comes to its end in a thorough test.)"""
    enforced, user = "AccountingStorageEnforce=limits,qos", pwd.getpwuid(os.getuid()).pw_name
    with SlurmCluster(tmp_path / "slurm", nodes=1, more=enforced), new_lab(tmp_path / "lab", texts) as lab:
        for words in (
            ("add", "account", "lab"),
            ("add", "user", user, "account=lab"),
            ("modify", "qos", "normal", "set", "MaxSubmitJobsPerUser=4"),
        ):
            subprocess.run(["sacctmgr", "-i", *words], check=True, stdout=subprocess.DEVNULL)
        scontrol("update", "PartitionName=main", "State=DOWN")  # jobs wait
        lab.write("a", "b", "c", "d", slurm='account = "lab"', tasks=write_task(lab.folder))
        lab.file.write_text(lab.file.read_text().replace("[40, 200]", "[2, 2]"))
        assert lab.submit() == 3
        told = capsys.readouterr().out
        assert "4 jobs submitted in 2 calls" in told and "! Slurm took no more: 6 jobs are left; `run` again" in told
        assert "QOSMaxSubmitJobPerUserLimit" in told and {*commands.queue()} == {job.id for job in lab.jobs()}
        assert lab.call("status") == 0
        assert " submits the runs and scores that are left; `" in capsys.readouterr().out
        assert lab.submit() == 2 and "QOSMaxSubmitJobPerUserLimit" in capsys.readouterr().err
        assert lab.submit("--dry-run") == 0
        assert "  6 jobs to submit: 1 to train, 4 to score, 1 to report\n" in capsys.readouterr().out
        commands.cancel([lab.job("a").id, lab.job("b").id])
        assert lab.submit() == 3
        assert len(commands.queue()) == 4 and "2 jobs submitted" in capsys.readouterr().out
        if not THOROUGH:
            return
        scontrol("update", "PartitionName=main", "State=UP")
        while (status := lab.submit()) == 3 or status == 2:
            assert len(commands.queue()) <= 4
            wait_until(lambda: not commands.queue())
        assert status == 0
        lab.wait_for_endings()
        assert lab.call("status") == 0 and {one.state for one in lab.states().values()} == {"done"}
        assert not sum(one.missing for state in lab.states().values() for one in state.trained.scored)
        ended = Counter(job.key for job in lab.jobs() if job.end and job.end["state"] == "done" and job.key != "report")
        assert len(ended) == 9 and {*ended.values()} == {1}
