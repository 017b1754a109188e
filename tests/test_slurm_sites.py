"""Sites that are set up in another way than the cluster of the other tests, on a real Slurm."""

from __future__ import annotations

import os
import pwd
import re
import subprocess
from pathlib import Path

from benchmark.jobs.executors.slurm import commands
from tests.support.slurm_cluster import SlurmCluster
from tests.support.suite_folder import (
    SuiteFolder,
    needs_slurm,
    new_suite_folder,
    queue,
    scontrol,
    wait_until,
    write_task,
)
from tests.support.thorough import THOROUGH

pytestmark = needs_slurm


def held_by_slurm(tiny: SuiteFolder) -> list[tuple[str, str, str]]:
    """GPUs, processes and cores of a job of each wave, in Slurm's words."""
    held = []
    for wave in tiny.waves():
        command = ["scontrol", "show", "job", wave["id"]]
        told = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        fields = dict(re.findall(r"\b(TresPerNode|NumTasks|NumCPUs)=(\S+)", told))
        held.append((fields.get("TresPerNode", "none"), fields["NumTasks"], fields["NumCPUs"]))
    return held


def test_gpus_that_have_a_type(texts: Path, tmp_path: Path) -> None:
    """Oracle: scontrol's words for what each job asks for, by hand. The GPUs are made up, so that the processes say
    that torch finds none."""
    whole = 'gpus_per_node = "a100:4"\ncpus_per_task = 1'
    half = 'gpus_per_node = "a100:2"\ncpus_per_task = 2\n[slurm.score]\ngpus_per_node = "a100:2"\n'
    alone = '[slurm.train]\ngpus_per_node = "a100:2"\n'
    expected = {
        half: [("gres:gpu:a100:2", "2", "4"), ("gres:gpu:a100:2", "1", "2"), ("none", "1", "2")],
        alone: [("gres:gpu:a100:2", "2", "2"), ("gres:gpu:a100:1", "1", "1"), ("none", "1", "1")],
        whole: [("gres:gpu:a100:4", "4", "4"), ("gres:gpu:a100:1", "1", "1"), ("none", "1", "1")],
    }
    with SlurmCluster(tmp_path / "slurm", nodes=1, gpus="a100:4"), new_suite_folder(tmp_path / "tiny", texts) as first:
        scontrol("update", "PartitionName=main", "State=DOWN")  # jobs wait
        for number, (asked, gpus) in enumerate(expected.items()):
            tiny = SuiteFolder(tmp_path / f"tiny-{number}", texts, data=first.runs / "data")
            tiny.write("x", slurm=asked, tasks=write_task(tiny.folder)).record_baselines()
            assert tiny.submit() == 0
            assert held_by_slurm(tiny) == gpus, asked
            if asked != whole:
                commands.cancel([*tiny.ids().values()])
        if THOROUGH:
            scontrol("update", "PartitionName=main", "State=UP")
            job = tiny.wait_for("x", "failed").job
            assert job and "torch finds none" in Path(job.log).read_text()


def test_a_quality_of_service_that_takes_few_jobs(texts: Path, tmp_path: Path, capsys) -> None:
    """Oracle: by hand: MaxSubmitJobsPerUser of the QOS lets four of nine jobs go; `run` submits none more until
    some have ended, and then as many again, none twice. (All comes to its end in a thorough test.)"""
    enforced, user = "AccountingStorageEnforce=limits,qos", pwd.getpwuid(os.getuid()).pw_name
    with SlurmCluster(tmp_path / "slurm", nodes=1, more=enforced), new_suite_folder(tmp_path / "tiny", texts) as tiny:
        for words in (
            ("add", "account", "tiny"),
            ("add", "user", user, "account=tiny"),
            ("modify", "qos", "normal", "set", "MaxSubmitJobsPerUser=4"),
        ):
            subprocess.run(["sacctmgr", "-i", *words], check=True, stdout=subprocess.DEVNULL)
        scontrol("update", "PartitionName=main", "State=DOWN")  # jobs wait
        tiny.write("a", "b", "c", "d", slurm='account = "tiny"', tasks=write_task(tiny.folder))
        tiny.file.write_text(tiny.file.read_text().replace("[40, 200]", "[2, 2]"))
        tiny.record_baselines()
        assert tiny.submit() == 3
        told = capsys.readouterr().out
        assert "! Slurm took no more: 6 units are left" in told and "QOSMaxSubmitJobPerUserLimit" in told
        assert {*queue()} == {*tiny.ids().values()} and len(queue()) == 4
        assert tiny.submit() == 2 and "QOSMaxSubmitJobPerUserLimit" in capsys.readouterr().err
        commands.cancel([tiny.job("a"), tiny.job("b")])
        wait_until(lambda: len(queue()) == 2)
        assert tiny.submit() == 3 and len(queue()) == 4
        if THOROUGH:
            scontrol("update", "PartitionName=main", "State=UP")
            while (status := tiny.submit()) in (2, 3):
                assert len(queue()) <= 4
                wait_until(lambda: not queue())
            assert status == 0
            tiny.wait_for_endings()
            assert tiny.call("status") == 0 and {state.state for state in tiny.states().values()} == {"done"}
            assert not tiny.plan().waves
