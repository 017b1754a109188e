"""A Slurm that suspends by itself: preemption by suspension, and two jobs that take turns on the same cores."""

from __future__ import annotations

import itertools
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmark.jobs.slurm import commands
from tests.support.slurm_cluster import SlurmCluster
from tests.support.slurm_lab import Lab, assert_as_if_undisturbed, needs_slurm, new_lab, wait_until
from tests.support.thorough import only_thorough

pytestmark = [*needs_slurm, only_thorough]
GANG = """\
PreemptMode=SUSPEND,GANG
SchedulerTimeSlice=5
PartitionName=low Nodes=ALL PriorityTier=1 PreemptMode=SUSPEND OverSubscribe=FORCE:1
PartitionName=turns Nodes=ALL PriorityTier=1 PreemptMode=SUSPEND OverSubscribe=FORCE:2
"""


@pytest.fixture
def gang(texts: Path, tmp_path: Path) -> Iterator[Lab]:
    with SlurmCluster(tmp_path / "slurm", nodes=1, cpus=2, more=GANG), new_lab(tmp_path / "lab", texts) as lab:
        yield lab


def is_suspended(job: str) -> bool:
    return commands.queue()[job].state == "SUSPENDED"


def stood_still(lab: Lab, row: str) -> float:
    return lab.stage(row)[-1]["cores"]["stood_still"]


def test_preemption_that_suspends(gang: Lab) -> None:
    """Oracle: an undisturbed run, bit for bit, never queued again; the six seconds of the other job, less Slurm's and
    the system's own, are in the record and off the clock."""
    gang.write("x", slurm='partition = "low"').tell("x", "slow")
    gang.submit()
    gang.wait_for_mid_stage("x")
    job = gang.job("x").id
    urgent = ["sbatch", "--parsable", "--exclusive", "--wrap=sleep 6", f"--output={gang.folder}/urgent"]
    subprocess.run(urgent, check=True, capture_output=True)
    wait_until(lambda: is_suspended(job))
    assert gang.states()["x"].detail.startswith("suspended; ")
    wait_until(lambda: not is_suspended(job))
    gang.let_go("x")
    state = gang.wait_for("x", "done")
    assert (state.job.id, state.restarts) == (job, 0) and stood_still(gang, "x") > 3
    told = [(line["time"], line["charged"]["seconds"]) for line in gang.stage("x") if line["kind"] == "evaluation"]
    assert max((b - a) - (d - c) for (a, c), (b, d) in itertools.pairwise(told)) > 3
    assert_as_if_undisturbed(gang, "x", resumed=0)


def test_two_runs_that_take_turns(gang: Lab) -> None:
    """Oracle: undisturbed runs, bit for bit; each stood still while the other had its five seconds."""
    gang.write("x", "y", slurm='partition = "turns"\ncpus_per_task = 2').tell("x", "slow")
    gang.tell("y", "slow")
    gang.submit()
    gang.wait_for_mid_stage("x", "y")
    for row in ("x", "y", "x", "y"):
        wait_until(lambda row=row: is_suspended(gang.job(row).id))  # type: ignore[misc]
    for row in ("x", "y"):
        gang.let_go(row)
    for row in ("x", "y"):
        assert gang.wait_for(row, "done").restarts == 0 and stood_still(gang, row) > 6
        assert_as_if_undisturbed(gang, row, resumed=0)
