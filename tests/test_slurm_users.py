"""Two users of this machine, on a real Slurm that runs their jobs as theirs, share a folder of runs: needs root.

The users are two that every Debian has. Python and the packages must lie where all may read them.
"""

from __future__ import annotations

import grp
import os
import pwd
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.slurm_cluster import SlurmCluster
from tests.support.slurm_lab import (
    Lab,
    assert_as_if_undisturbed,
    copy_code,
    needs_slurm,
    submitting,
    wait_until,
    write_texts,
)
from tests.support.thorough import only_thorough

pytestmark = [*needs_slurm, only_thorough, pytest.mark.skipif(os.getuid() != 0, reason="needs root, to be two users")]
ANNA, BERT, GROUP = "daemon", "games", "users"


class Users:
    """Calls of `run_all.py` by one of the users, each with a home of his own."""

    def __init__(self, lab: Lab, conf: Path) -> None:
        self.lab, self.conf = lab, conf
        for user in (ANNA, BERT):
            home = lab.folder / user
            home.mkdir()
            os.chown(home, pwd.getpwnam(user).pw_uid, grp.getgrnam(GROUP).gr_gid)

    def begin(self, user: str, *words: str, umask: int = 0o002) -> subprocess.Popen[str]:
        environment = {"PATH": os.environ["PATH"], "OMP_NUM_THREADS": "1", "SLURM_CONF": str(self.conf)}
        own = {"HOME": str(self.lab.folder / user), "USER": user, "LOGNAME": user}
        return subprocess.Popen(
            words,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=self.lab.folder / "code",
            user=user,
            group=GROUP,
            extra_groups=[],
            umask=umask,
            env=environment | own,
        )

    def run_all(self, user: str, *words: str, umask: int = 0o002) -> subprocess.Popen[str]:
        return self.begin(user, sys.executable, "run_all.py", *self.lab.arguments(*words), umask=umask)

    def said(self, *words: str, umask: int = 0o002) -> tuple[int, str]:
        return ended(self.run_all(*words, umask=umask))


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Exit status and output of a call, when it has ended."""
    output, _ = process.communicate()
    return process.returncode, output


def waiting() -> str:
    return subprocess.run(["squeue", "--noheader"], check=True, stdout=subprocess.PIPE, text=True).stdout


@pytest.fixture
def users() -> Iterator[Users]:
    folder = Path(tempfile.mkdtemp())  # pytest's own folders, and so those of its cluster, are root's alone
    folder.chmod(0o755)
    try:
        write_texts(folder)
        lab = Lab(folder / "lab", folder)
        (lab.folder / "code").mkdir()
        with SlurmCluster(folder / "slurm") as cluster, submitting(copy_code(lab.folder / "code")):
            found = Users(lab, cluster.folder / "slurm.conf")
            if ended(found.begin(BERT, sys.executable, "-c", "import torch"))[0]:
                pytest.skip(f"{sys.executable} and its packages must lie where all may read them")
            for shared in (lab.runs, lab.folder / "report"):
                shared.mkdir(exist_ok=True)
                os.chown(shared, pwd.getpwnam(ANNA).pw_uid, grp.getgrnam(GROUP).gr_gid)
                shared.chmod(0o2775)
            yield found
            subprocess.run(["scancel", f"--user={ANNA}"], check=True)
            subprocess.run(["scancel", f"--user={BERT}"], check=True)
            wait_until(lambda: not waiting())
    finally:
        shutil.rmtree(folder)


def test_two_users_share_a_folder_of_runs(users: Users) -> None:
    """Oracle: runs that one user trained alone, bit for bit; each stage is done once, and all that lies in the folder
    is for both."""
    lab = users.lab.write('{ method = "naive" }', "slow")
    status, output = users.said(BERT, "run", "--executor", "slurm", umask=0o022)
    assert status == 2 and "say `umask 002` first" in output
    assert users.said(BERT, "status", umask=0o022)[0] == 0 and not [*lab.runs.iterdir()]

    lab.tell("slow", "slow")
    both = [users.run_all(user, "run", "--executor", "slurm") for user in (ANNA, BERT)]
    found = [ended(process) for process in both]
    assert [status for status, _ in found] == [0, 0], found
    own, *others = {job.submitted["user"] for job in lab.jobs()}
    assert not others  # who came second found all under way
    second = BERT if own == pwd.getpwnam(ANNA).pw_uid else ANNA
    lab.wait_for_mid_stage("slow")
    status, output = users.said(second, "cancel")
    assert status == 0 and "jobs of another cluster or user go on" in output

    lab.tell("slow", "die")
    wait_until(lambda: not waiting())
    assert users.said(second, "status")[0] == 1
    lab.let_go("slow")
    status, output = users.said(second, "run", "--executor", "slurm", "--retry-failed")
    assert status == 0, output
    wait_until(lambda: not waiting())
    assert lab.job("slow").submitted["user"] == pwd.getpwnam(second).pw_uid
    assert {row: state.state for row, state in lab.states().items()} == {"Naive": "done", "slow": "done"}
    assert all(lab.count(row, "done", index) == 1 for row in ("Naive", "slow") for index in (0, 1))
    closed = [path for path in lab.runs.rglob("*") if not path.stat().st_mode & stat.S_IWGRP]
    assert not closed and {path.group() for path in lab.runs.rglob("*")} == {GROUP}
    assert_as_if_undisturbed(lab, "slow", resumed=1)
    assert_as_if_undisturbed(lab, "Naive", resumed=0)
