"""Asking Slurm and telling it: thin functions over squeue, sacct, scontrol and scancel. No torch here."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from benchmark.errors import UserError

PIECE = 500  # ids in one command


class SlurmError(UserError):
    """Slurm is not there, does not answer, or refuses."""


@dataclass(frozen=True)
class Queued:
    """A job that Slurm has not ended: what squeue says of it."""

    state: str  # PENDING, RUNNING, COMPLETING, ...
    reason: str  # why it waits
    node: str
    script: str = ""  # the batch script that it was submitted with

    @property
    def waits(self) -> bool:
        return self.state == "PENDING"


def queue() -> dict[str, Queued]:
    """This user's jobs by id; tasks of arrays are apart, `123_4`. Raises SlurmError where there is no answer."""
    command = ["squeue", "--noheader", "--array", f"--user={os.getuid()}", "--format=%i|%T|%r|%N|%o"]
    rows = (line.split("|", 4) for line in _ask(command).splitlines())
    return {
        job: Queued(state, reason if reason != "None" else "", node, script)
        for job, state, reason, node, script in rows
    }


def endings(jobs: Iterable[str]) -> dict[str, str]:
    """How jobs ended, e.g. OUT_OF_MEMORY, as far as sacct knows; many clusters have none."""
    wanted = set(jobs)
    if not wanted or not shutil.which("sacct"):
        return {}
    found: dict[str, str] = {}
    for arrays in pieces(sorted({job.partition("_")[0] for job in wanted})):
        command = ["sacct", "--noheader", "--parsable2", "--allocations", f"--jobs={','.join(arrays)}"]
        try:
            rows = [line.split("|") for line in _ask([*command, "--format=JobID,State"]).splitlines()]
        except SlurmError:
            return {}
        found |= {job: state.split()[0] for job, state in rows if job in wanted}
    return found


def wire(job: str, name: str, after: Sequence[str], needs: Sequence[str]) -> None:
    """Name a waiting job, or one task of a waiting array; it starts when `after` have ended and `needs` succeeded."""
    wanted = [f"{kind}:{':'.join(ids)}" for kind, ids in (("afterany", after), ("afterok", needs)) if ids]
    dependency = [f"Dependency={','.join(wanted)}"] if wanted else []
    _ask(["scontrol", "update", f"JobId={job}", f"JobName={name}", *dependency])


def release(jobs: Sequence[str]) -> None:
    """Let held jobs or tasks of arrays go."""
    for piece in pieces(jobs):
        _ask(["scontrol", "release", ",".join(piece)])


def cancel(jobs: Sequence[str]) -> None:
    """End jobs, tasks of arrays or whole arrays."""
    for piece in pieces(jobs):
        _ask(["scancel", *piece])


def pieces(ids: Sequence[str]) -> Iterator[Sequence[str]]:
    """Ids in bounded numbers: the words of a command are limited, and so is a message to Slurm."""
    for start in range(0, len(ids), PIECE):
        yield ids[start : start + PIECE]


def _ask(command: list[str]) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout
    except FileNotFoundError:
        raise SlurmError(
            f"no {command[0]} here: run this on a machine of the cluster, or use --executor local"
        ) from None
    except subprocess.TimeoutExpired:
        raise SlurmError(f"Slurm does not answer within two minutes: {' '.join(command)}") from None
    except subprocess.CalledProcessError as error:
        raise SlurmError(f"`{' '.join(command)}` failed: {error.stderr.strip()}") from None
