"""Thin functions around Slurm's commands and submitit's internals. No torch here."""

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
# beginnings of variables to remove: those of a job, which sbatch would pass on, and a user's own
# that change Slurm's answers
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
# variables to keep: they say how Slurm is reached
ADDRESS = {"SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_JWT"}
# states of jobs in the queue
WAITING = ("PENDING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "SPECIAL_EXIT")
# of squeue, each with its separator
COLUMNS = "JobArrayID:|,State:|,Reason:|,NodeList:|,RestartCnt:|,Name:|"
# parts of commands' messages if the controller gives no answer
SILENCES = ("does not answer", "timed out", "Unable to contact", "Zero Bytes", "onnection ")


class SlurmError(UserError):
    """Slurm is not there, does not answer, or refuses."""


class Refusal(SlurmError):
    """sbatch refuses what it was given, and says why."""


@dataclass(frozen=True)
class SlurmJob:
    """A job according to Slurm or to its own files, with fields as in `Job`."""

    state: Any
    detail: str = ""
    node: str = ""
    restarts: int = 0
    name: str = ""


def ask_queue(users: Iterable[str]) -> dict[str, SlurmJob]:
    """The queued jobs of users by id, such as `123_4` for a task of an array.

    Raises SlurmError if Slurm does not answer.
    """
    answer = ask(
        "squeue", "--noheader", "--array", f"--user={','.join(users)}", f"--Format={COLUMNS}"
    )
    jobs = {}
    for line in answer.splitlines():
        id, slurm_state, reason, node, restarts, name = line.split("|", 5)
        state = "running"
        detail = "suspended" if slurm_state == "SUSPENDED" else ""
        if slurm_state in WAITING:
            state = "waiting"
            detail = reason.replace("None", "")
            if "held" in reason.lower():
                array = id.partition("_")[0]  # the whole array, so that its jobs share one line
                detail = f"{reason}: Slurm holds it until `scontrol release {array}`"
        jobs[id] = SlurmJob(state, detail, node, int(restarts), name)
    return jobs


def ask_largest_array() -> int:
    """The largest number of tasks of an array, whose indices begin with 0.

    Raises SlurmError if Slurm does not answer.
    """
    answer = ask("scontrol", "show", "config")
    sizes = re.findall(r"(?:MaxArraySize\s*=\s*|max_array_tasks=)(\d+)", answer)
    return max(1, min(map(int, sizes), default=1))


def ask_accounts(jobs: Iterable[str]) -> dict[str, SlurmJob]:
    """The state and the exit code of jobs that have ended, from Slurm's accounts, by id.

    Empty if the accounts give no answer: not every cluster keeps them.
    """
    accounts: dict[str, SlurmJob] = {}
    try:
        columns = "--format=JobID,State,ExitCode,NodeList"
        answer = ask("sacct", "-XnP", "--duplicates", columns, f"--jobs={','.join(jobs)}")
    except SlurmError:
        return accounts
    for line in answer.splitlines():  # one line per start of a job
        id, state, exit_code, node = line.split("|")
        state = state.partition(" ")[0]  # without the user who cancelled it
        restarts = accounts[id].restarts + 1 if id in accounts else 0
        accounts[id] = SlurmJob(state, exit_code, node, restarts)
    return accounts


def cancel(jobs: Iterable[str]) -> None:
    """End jobs, or whole arrays."""
    ids = list(jobs)
    if ids:
        ask("scancel", *ids)


def ask(*command: str, patience: float = PATIENCE) -> str:
    """Run a command, and return its output.

    Raises SlurmError if the command fails, or gives no answer for `patience` seconds.
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
    """Whether a command failed because the controller gave no answer."""
    return any(word in message for word in SILENCES)


@contextlib.contextmanager
def outside_of_jobs() -> Iterator[None]:
    """Remove, inside the block, the variables of a job in which this process may run.

    Variables that change Slurm's answers are removed, too.
    """
    variables = dict(os.environ)
    for name in variables:
        if name.startswith(FOREIGN) and name not in ADDRESS:
            del os.environ[name]
    try:
        yield
    finally:
        os.environ.update(variables)


# Private parts of submitit, and names of its files. If a release changes them, a test fails.


def submit(
    logs: Path,
    python: str,
    parameters: dict[str, Any],
    do: Callable[[Any], None],
    tasks: Sequence[Any],
) -> str:
    """Submit an array with a job for each task, or a single job for a single task.

    Returns its id. Raises Refusal if sbatch refuses it, and SlurmError if it may have been
    submitted all the same.
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
    """Write a batch script as submitit writes those of its jobs.

    The output of the script's first process goes to the file of `find_log`.
    """
    from submitit.slurm.slurm import _make_sbatch_string

    path = folder / "job.sh"
    script = _make_sbatch_string(command, folder, stderr_to_stdout=True, **parameters)
    path.write_text(script)
    return path


def find_log(folder: Path, job: str) -> Path:
    """The file with the output of a job's first process."""
    return folder / f"{job}_0_log.out"


def has_noted(log: Path, outcome: bytes) -> bool:
    """Whether submitit noted the outcome b"success" or b"error" for the job of this log.

    submitit writes the note at the very end. A job that a signal ends has no note.
    """
    path = log.with_name(log.name.replace("log.out", "result.pkl"))
    return path.exists() and outcome in path.read_bytes()[:32]


def read_log(log: Path) -> str:
    """The output of a job's last start, from its log."""
    text = log.read_text(errors="replace")
    return text.rpartition("Starting with JobEnvironment")[2]
