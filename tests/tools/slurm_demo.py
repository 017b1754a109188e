"""A short demo suite on a throw-away Slurm cluster, with a preemption: `make slurm-demo`, minutes.

All runs are one job, which trains two at a time. The demo prints what a user reads. The rest is in
the logs.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmark.jobs.executors import Job, slurm
from benchmark.jobs.pool import list_physical_cores
from benchmark.ledger.store import Store
from benchmark.settings.load import load_suite
from tests.support.slurm_cluster import SlurmCluster
from tests.support.suite_folder import queue, wait_until

ROOT = Path(__file__).parents[2]
RUNS, OUT = ROOT / "runs" / "slurm-demo", ROOT / "report" / "slurm-demo"
SHORT = {
    "budget.amount": "[10, 5, 5, 5, 5]",
    "tasks": "[]",  # each would be fine-tuned on every model
    "tables": '["main_pretraining"]',
    "slurm.partition": "preemptible",
    "slurm.report.mail_type": "END",
    "slurm.runs_per_job": 100,
    "slurm.ntasks_per_node": min(2, len(list_physical_cores())),
}


def run_all(command: str, *more: str) -> list[str]:
    """The lines that a command prints.

    It is also given this script's own arguments, e.g. --set budget.amount=3.
    """
    settings = [word for key, value in SHORT.items() for word in ("--set", f"{key}={value}")]
    arguments = [
        sys.executable,
        "run_all.py",
        command,
        "demo",
        *more,
        "--runs",
        str(RUNS),
        *settings,
        *sys.argv[1:],
    ]
    said = subprocess.run(
        arguments, cwd=ROOT, check=False, stdout=subprocess.PIPE, text=True
    ).stdout
    return [line for line in said.splitlines() if not line.startswith("next: ")]


def say(*lines: str) -> None:
    print(*(line[:160] for line in lines), sep="\n", flush=True)


def job() -> Job | None:
    """The job that trains, once `status` shows the speed of one of its runs."""
    jobs = slurm.list_jobs(load_suite("demo"), Store(RUNS)) if RUNS.exists() else []
    trains = [job for job in jobs if job.kind == "train" and job.state == "running"]
    return trains[0] if trains and any("tokens/s" in line for line in run_all("status")) else None


def recorded() -> int:
    """Bytes of records, which grow as long as anything makes progress, however slowly."""
    return sum(path.stat().st_size for path in RUNS.rglob("*.jsonl"))


def main() -> None:
    began = time.monotonic()
    for folder in (RUNS, OUT):
        shutil.rmtree(folder, ignore_errors=True)
    with (
        tempfile.TemporaryDirectory() as place,
        SlurmCluster(Path(place), nodes=1, cpus=os.cpu_count() or 1) as cluster,
    ):
        say("$ run_all.py run demo --executor slurm   (short budgets, all runs in one job)")
        say(*run_all("run", "--executor", "slurm", "--out", str(OUT)))
        jobs: list[Job] = []  # that train. Between two stages no speed is shown

        def has_begun() -> bool:
            trains = job()
            if trains:
                jobs.append(trains)
            return bool(trains)

        wait_until(has_begun, patience=600)
        trains = jobs[0]
        say(*run_all("status"))
        subprocess.run(
            ["sbatch", "--exclusive", "--wrap=true", "--output=/dev/null"],
            check=True,
            capture_output=True,
        )
        wait_until(lambda: queue()[trains.id].state == "waiting")
        say(
            f"an urgent job took the node: job {trains.id} has saved, and waits in the queue",
            *run_all("status"),
        )
        while queue():
            size = recorded()
            wait_until(lambda size=size: not queue() or recorded() > size, patience=600)  # type: ignore[misc]
        wait_until((mails := cluster.folder / "mails").exists)
        say(*run_all("status"), f"a mail says: {mails.read_text().strip()}")
    say(f"{time.monotonic() - began:.0f} s; the report is in {OUT.relative_to(ROOT)}:", "")
    [table] = OUT.rglob("main_pretraining.md")
    print(table.read_text())


if __name__ == "__main__":
    main()
