"""The demo suite through a throw-away Slurm cluster, with one preemption on the way: `make slurm-demo`."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmark.jobs.slurm import job_files
from tests.support.slurm_cluster import SlurmCluster
from tests.support.slurm_lab import wait_until

ROOT = Path(__file__).parents[2]
RUNS = ROOT / "runs" / "slurm-demo"
SETTINGS = ["--runs", str(RUNS), "--set", "slurm.partition=preemptible"]
OUT = ["--out", str(ROOT / "report" / "slurm-demo")]


def run_all(command: str, *more: str) -> None:
    print(f"\n$ run_all.py {command} demo {' '.join(more)}", flush=True)
    # what is given to this script goes to each command, e.g. --set budget.amount=3
    arguments = [sys.executable, "run_all.py", command, "demo", *more, *SETTINGS, *sys.argv[1:]]
    subprocess.run(arguments, cwd=ROOT, check=False)


def running() -> job_files.Job | None:
    """A run that trains: it has said how far it is."""
    found = job_files.read(job_files.folder_of(RUNS, "demo"))
    return next((job for job in found if job.run and job.starts and not job.end and heartbeat(job).exists()), None)


def heartbeat(job: job_files.Job) -> Path:
    return RUNS / "suites" / "demo" / f"{job.run}.json"


def main() -> None:
    # One node: its budgets are in seconds, so runs go one at a time.
    with tempfile.TemporaryDirectory() as folder, SlurmCluster(Path(folder) / "c", nodes=1, cpus=os.cpu_count() or 1):
        run_all("run", "--executor", "slurm", "--dry-run", *OUT)
        run_all("run", "--executor", "slurm", *OUT)
        wait_until(running, patience=600)
        print("\nan urgent job takes the node", flush=True)
        subprocess.run(["sbatch", "--exclusive", "--wrap=true", "--output=/dev/null"], check=True)
        run_all("status", "--watch")
    run_all("report", *OUT)


if __name__ == "__main__":
    main()
