"""Jobs become pickles that Slurm starts: by submitit, with a copy of the code as it is now."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import submitit
from submitit.core.utils import FailedJobError

from benchmark.jobs.plan import PlannedJob
from benchmark.jobs.slurm import snapshot
from benchmark.jobs.slurm.commands import SlurmError
from benchmark.jobs.slurm.job import SlurmJob
from benchmark.jobs.slurm.private import make_private
from benchmark.settings.config import Suite
from benchmark.settings.slurm_settings import asks_for_gpus


@dataclass(frozen=True)
class Sent:
    """A job that waits in Slurm's queue, held: its id, and the file that its output goes to."""

    id: str
    log: str


def submit(
    jobs: Sequence[PlannedJob], parameters: dict[str, Any], suite: Suite, folder: Path, code: Path
) -> list[Sent]:
    """Submit jobs held, as one array if there are several. `folder` is that of the suite's job files, `code` of copies.

    Raises SlurmError where there is no Slurm, or where it refuses them.
    """
    processes = [
        SlurmJob(job.payload, folder, asks_for_gpus(parameters), parameters.get("exclusive", False)) for job in jobs
    ]
    make_private(folder / "logs")
    program = snapshot.take(code) / "benchmark" / "jobs" / "slurm" / "process.py"
    python = f"{shlex.quote(sys.executable)} -u {shlex.quote(str(program))}"
    try:
        executor = submitit.SlurmExecutor(folder / "logs", max_num_timeout=suite.slurm.max_num_timeout, python=python)
    except RuntimeError:
        raise SlurmError("no srun here: run this on a machine of the cluster, or use --executor local") from None
    held = {**parameters, "additional_parameters": {**parameters["additional_parameters"], "hold": True}}
    executor.update_parameters(job_name=jobs[0].name if len(jobs) == 1 else suite.name, stderr_to_stdout=True, **held)
    try:
        sent = executor.submit_array(processes)
    except FailedJobError as error:
        raise SlurmError(f"Slurm refused the job:\n{error}") from None
    return [Sent(one.job_id, str(one.paths.stdout)) for one in sent]
