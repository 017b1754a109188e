"""Thin functions over Slurm's commands, and over the inside of submitit. No torch here."""

from __future__ import annotations

import contextlib
import io
import os
import re
import subprocess
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmark.errors import UserError
from benchmark.files import name_in_errors

PATIENCE = 120.0  # seconds for an answer
# variables of a job, which sbatch would pass on, and a user's own that change Slurm's answers, by
# how they begin
FOREIGN = (
    "SLURM",
    "SBATCH_",
    "SRUN_",
    "SUBMITIT_",
    "PMI",
    "SQUEUE_",
    "SCONTROL_",
    "SCANCEL_",
    "SACCT_",
)
# how Slurm is reached, which is no job's own
ADDRESS = {"SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_JWT"}
# states of jobs in the queue
WAITING = ("PENDING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "SPECIAL_EXIT")
# of squeue, each with what ends it
COLUMNS = "JobArrayID:|,State:|,Reason:|,NodeList:|,RestartCnt:|,Name:|"
# in what commands say where the controller gives no answer
SILENCES = ("does not answer", "timed out", "Unable to contact", "Zero Bytes", "onnection ")


class SlurmError(UserError):
    """Slurm is not there, does not answer, or refuses."""


class Refusal(SlurmError):
    """sbatch does not take what it was given; it says why."""


@dataclass(frozen=True)
class Queued:
    """A job as Slurm or its own files have it; see `Job`."""

    state: Any
    detail: str = ""
    node: str = ""
    restarts: int = 0
    name: str = ""


def ask_queue(users: Iterable[str]) -> dict[str, Queued]:
    """The jobs of users by id; tasks of arrays are apart, `123_4`.

    Raises SlurmError where there is no answer.
    """
    answer = ask(
        "squeue", "--noheader", "--array", f"--user={','.join(users)}", f"--Format={COLUMNS}"
    )
    jobs = {}
    for line in answer.splitlines():
        id, state, reason, node, restarts, name = line.split("|", 5)
        word = "running"
        detail = "suspended" if state == "SUSPENDED" else ""
        if state in WAITING:
            word = "waiting"
            detail = reason.replace("None", "")
            if "held" in reason.lower():
                array = id.partition("_")[0]  # all of its jobs, so that they are told in one line
                detail = f"{reason}: Slurm holds it until `scontrol release {array}`"
        jobs[id] = Queued(word, detail, node, int(restarts), name)
    return jobs


def ask_largest_array() -> int:
    """How many tasks an array may have; their numbers begin with 0.

    Raises SlurmError where there is no answer.
    """
    answer = ask("scontrol", "show", "config")
    sizes = re.findall(r"(?:MaxArraySize\s*=\s*|max_array_tasks=)(\d+)", answer)
    return max(1, min(map(int, sizes), default=1))


def ask_accounts(jobs: Iterable[str]) -> dict[str, Queued]:
    """How jobs that are over ended, by id: Slurm's words for their states, and exit codes.

    There is none where nobody keeps accounts.
    """
    accounts: dict[str, Queued] = {}
    try:
        columns = "--format=JobID,State,ExitCode,NodeList"
        answer = ask("sacct", "-XnP", "--duplicates", columns, f"--jobs={','.join(jobs)}")
    except SlurmError:
        return accounts
    for line in answer.splitlines():  # one of each start
        id, state, exit_code, node = line.split("|")
        state = state.partition(" ")[0]  # without the user who cancelled it
        restarts = accounts[id].restarts + 1 if id in accounts else 0
        accounts[id] = Queued(state, exit_code, node, restarts)
    return accounts


def cancel(jobs: Iterable[str]) -> None:
    """End jobs, or whole arrays."""
    ids = list(jobs)
    if ids:
        ask("scancel", *ids)


def ask(*command: str, patience: float = PATIENCE) -> str:
    """The output of a command.

    Raises SlurmError where it fails, or says nothing for so many seconds.
    """
    try:
        with outside_of_jobs():
            process = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=patience,
                check=False,
                text=True,
                errors="replace",
            )
    except FileNotFoundError:
        raise SlurmError(
            f"no {command[0]} here: run this on a machine of the cluster, or use --executor local"
        ) from None
    except subprocess.TimeoutExpired:
        raise SlurmError(
            f"Slurm does not answer within {patience:g} s: {' '.join(command)}; try again later"
        ) from None
    if process.returncode:
        message = process.stderr.strip()
        cure = "wait" if is_silence(message) else "repair what Slurm names"
        raise SlurmError(f"`{' '.join(command)}` failed: {message}; {cure}, and try again")
    return process.stdout


def is_silence(message: str) -> bool:
    """Whether a command failed as the controller gave no answer."""
    return any(word in message for word in SILENCES)


@contextlib.contextmanager
def outside_of_jobs() -> Iterator[None]:
    """Without the variables of a job that this process may itself run in.

    Those that change Slurm's answers are taken out, too.
    """
    variables = dict(os.environ)
    for name in variables:
        if name.startswith(FOREIGN) and name not in ADDRESS:
            del os.environ[name]
    try:
        yield
    finally:
        os.environ.update(variables)


# What submitit keeps to itself, or how it calls its files. A release may move it, and a test says
# so.


def submit(
    logs: Path,
    python: str,
    parameters: dict[str, Any],
    do: Callable[[Any], None],
    tasks: Sequence[Any],
) -> str:
    """Submit an array that does each of the tasks, or a job for the only one.

    Returns its id. Raises Refusal, and SlurmError where Slurm may have taken it all the same.
    """
    import submitit
    from submitit.core.utils import FailedJobError, FailedSubmissionError

    executor = submitit.SlurmExecutor(logs, python=python)
    executor.update_parameters(**parameters, stderr_to_stdout=True)
    try:
        with name_in_errors(logs), outside_of_jobs(), contextlib.redirect_stderr(io.StringIO()):
            jobs = executor.map_array(do, tasks)
    except (FailedJobError, FailedSubmissionError) as error:
        message = str(error).strip()
        if "error:" in message and not is_silence(message):
            raise Refusal(message) from None
        raise SlurmError(
            f"sbatch gave no clear answer ({message}), and its jobs may have been submitted: wait, "
            "and call `run` again, which ends these and submits them anew; `cancel` ends them, too"
        ) from None
    return str(jobs[0].job_id).partition("_")[0]


def write_script(folder: Path, parameters: dict[str, Any], command: str) -> Path:
    """A batch script as submitit writes those of jobs.

    What its first process says goes to `find_log`.
    """
    from submitit.slurm.slurm import _make_sbatch_string

    path = folder / "job.sh"
    script = _make_sbatch_string(command, folder, stderr_to_stdout=True, **parameters)
    path.write_text(script)
    return path


def find_log(folder: Path, job: str) -> Path:
    """The file of what the first process of a job says."""
    return folder / f"{job}_0_log.out"


def has_noted(log: Path, outcome: bytes) -> bool:
    """Whether submitit noted this outcome of the job of this log, b"success" or b"error".

    It does so last of all. A job that a signal ends leaves no note.
    """
    path = log.with_name(log.name.replace("log.out", "result.pkl"))
    return path.exists() and outcome in path.read_bytes()[:32]


def read_log(log: Path) -> str:
    """What the last start of the job of this log said."""
    text = log.read_text(errors="replace")
    return text.rpartition("Starting with JobEnvironment")[2]
