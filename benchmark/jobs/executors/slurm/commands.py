"""Asking Slurm and telling it: thin functions over squeue, sacct, scontrol and scancel. No torch here."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from benchmark.errors import UserError

PATIENCE = 120.0  # seconds for an answer
# A job's own variables, which sbatch would pass on, by how they begin; and a user's own that change Slurm's answers.
OUTER = ("SLURM", "SBATCH_", "SRUN_", "SUBMITIT_", "PMI", "OMPI_", "TORCHELASTIC_")
FILTERS = ("SQUEUE_", "SACCT_", "SCONTROL_", "SCANCEL_")
OF_TORCHRUN = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT"}
WHERE = {"SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_JWT"}  # how Slurm is reached, which is no job's own
WAITING = ("PENDING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "SPECIAL_EXIT")  # states of jobs in the queue
COLUMNS = "JobArrayID:|,State:|,Reason:|,NodeList:|,RestartCnt:|"  # of squeue, each with what ends it
NO_ACCOUNTS = ("accounting storage is disabled", "no sacct here")  # in what says that a cluster keeps none


class SlurmError(UserError):
    """Slurm is not there, does not answer, or refuses."""


@dataclass(frozen=True)
class Queued:
    """A job that Slurm has not ended: what squeue says of it."""

    state: str  # PENDING, RUNNING, COMPLETING, ...
    reason: str  # why it waits
    node: str
    restarts: int

    @property
    def waits(self) -> bool:
        return self.state in WAITING


def queue(users: Iterable[str]) -> dict[str, Queued]:
    """The jobs of users by id; tasks of arrays are apart, `123_4`. Raises SlurmError where there is no answer."""
    told = ask("squeue", "--noheader", "--array", f"--user={','.join(users)}", f"--Format={COLUMNS}")
    rows = [line.split("|")[:5] for line in told.splitlines() if line.count("|") >= 5]
    return {
        job: Queued(state, reason if reason != "None" else "", node, int(restarts))
        for job, state, reason, node, restarts in rows
    }


def endings(jobs: Iterable[str]) -> dict[str, str]:
    """How jobs ended, e.g. OUT_OF_MEMORY, as far as sacct knows; nothing where no accounts are kept.

    Raises SlurmError where accounts are kept and there is no answer.
    """
    arrays = dict.fromkeys(job.partition("_")[0] for job in jobs)
    words = ("--noheader", "--parsable2", "--allocations", f"--jobs={','.join(arrays)}", "--format=JobID,State")
    try:
        rows = [line.split("|") for line in ask("sacct", *words).splitlines()]
    except SlurmError as error:
        if any(word in str(error) for word in NO_ACCOUNTS):
            return {}
        raise
    return {job: state.split()[0] for job, state in rows}


def cancel(jobs: Iterable[str]) -> None:
    """End jobs, or whole arrays."""
    if ids := [*jobs]:
        ask("scancel", *ids)


def ask(*command: str) -> str:
    """What a command says. Raises SlurmError where it fails, or says nothing for two minutes."""
    try:
        with outside_of_jobs():
            done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=PATIENCE, check=False)
    except FileNotFoundError:
        cure = "run this on a machine of the cluster, or use --executor local"
        raise SlurmError(f"no {command[0]} here: {cure}") from None
    except subprocess.TimeoutExpired:
        raise SlurmError(f"Slurm does not answer within two minutes: {' '.join(command)}; try again later") from None
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip()
        raise SlurmError(f"`{' '.join(command)}` failed: {said}; repair what Slurm names, and try again")
    return done.stdout.decode(errors="replace")


@contextlib.contextmanager
def outside_of_jobs() -> Iterator[None]:
    """Without what belongs to a job that this process may itself run in, and what changes Slurm's answers."""
    before = dict(os.environ)
    for key in before:
        if (key in OF_TORCHRUN or key.startswith((*OUTER, *FILTERS))) and key not in WHERE:
            del os.environ[key]
    try:
        yield
    finally:
        os.environ.update(before)
