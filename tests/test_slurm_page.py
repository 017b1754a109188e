"""The commands of docs/reproduce.md run as they stand, on a cluster with the partitions and the
feature of GPUs that the page names.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.pages import ROOT, copy_project, list_blocks, run_in_shell
from tests.support.slurm_cluster import SlurmCluster
from tests.support.suite_folder import needs_slurm, queue, scontrol, wait_until

pytestmark = needs_slurm

PARTITIONS = ("gpu", "cpu")
# Settings of the page's site.toml that this machine cannot give, and what replaces them.
REPLACED = {
    "gpus_per_node = 1": "gpus_per_node = 0",  # a job that asks for a GPU fails if torch has none
    "cpus_per_task = 8": "cpus_per_task = 1",  # the nodes have four cores
    '"module load cuda"': '"true"',  # there are no modules
    '"64GB"': '"2GB"',  # the nodes have 16
}


@pytest.fixture
def site(cluster: SlurmCluster) -> Iterator[None]:
    """Give the cluster what the page names."""
    for name in PARTITIONS:
        scontrol("create", f"PartitionName={name}", "Nodes=ALL", "PriorityTier=2")
    features = ("AvailableFeatures=h100", "ActiveFeatures=h100")
    scontrol("update", f"NodeName={','.join(cluster.nodes)}", *features)
    yield
    subprocess.run(["scancel", "--me"], check=True)
    wait_until(lambda: not queue())
    for name in PARTITIONS:
        scontrol("delete", f"PartitionName={name}")


@pytest.mark.timeout(1800)  # jobs wait for each other
def test_the_page_runs_on_a_cluster(site: None, job_python: str, tmp_path: Path) -> None:
    """Oracle: exit status 0 of each command, and what the page says: after `cancel` the next `run`
    goes on, and the table in report/bert_base has both rows.
    """
    project = copy_project(tmp_path / "project")
    (project / ".venv/bin").mkdir(parents=True)
    shutil.copy(job_python, project / ".venv/bin/python")
    replaced = {**REPLACED, "[slurm]\n": f'[slurm]\npython = "{job_python}"\n'}
    submits = ""
    reports = []  # at the end, when there are records
    for block in list_blocks(ROOT / "docs/reproduce.md"):
        if block.language == "toml":
            text = block.text
            for words, replacement in replaced.items():
                assert words in text
                text = text.replace(words, replacement)
            (project / "site.toml").write_text(text)
            continue
        assert block.language == "bash"
        for line in block.text.splitlines():
            if " -m pip " in line:
                continue  # tests/support/pages.py has no package to install
            if " report " in line:
                reports.append(line)
                continue
            print(run_in_shell(line, project))
            if line.endswith(" --executor slurm"):
                submits = line
                assert queue()
    wait_until(lambda: not queue())
    run_in_shell(submits, project)
    wait_until(lambda: not queue(), patience=600)
    for line in ["python run_all.py status bert_base", *reports]:
        run_in_shell(line, project)
    table = (project / "report/bert_base/main_pretraining.md").read_text()
    assert "Naive" in table and "ER" in table
