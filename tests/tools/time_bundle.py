"""How long a job of eight short runs takes beside what these runs take themselves, on a real Slurm of one node.

    python -m tests.tools.time_bundle [STEPS ...]

A run takes so many steps (default: 600, 1200 and 2400), one after the other on one core. What the job takes is
Slurm's answer, in whole seconds; what a run takes is from the first line of its records to the last.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from benchmark.jobs.slurm import commands, job_files
from tests.support.record_lines import read_lines
from tests.support.slurm_cluster import SlurmCluster
from tests.support.slurm_lab import Lab, new_lab, wait_until, write_texts

RUNS = 8


def timed(lab: Lab, steps: int) -> str:
    """Submit a job of eight runs, and describe what it took."""
    words = ("--set", f"budget.amount=[10,{steps - 10}]", "--set", "training.checkpoint_seconds=600")
    lab.write('{ method = "naive" }', slurm=f"runs_per_job = {RUNS}")
    seeds = f"seeds = {[*range(RUNS)]}\nmethods ="
    lab.file.write_text(lab.file.read_text().replace("methods =", seeds))
    lab.submit(*words)
    wait_until(lambda: not commands.queue(), patience=600)
    own = 0.0
    for path in (lab.runs / "suites" / "tiny").glob("*.jsonl"):
        lines = read_lines(path)
        assert lines[-1]["kind"] == "done", lines[-1]
        own += lines[-1]["time"] - lines[0]["time"]
    (job,) = {job.id for job in job_files.read(job_files.folder_of(lab.runs, "tiny")) if job.run}
    asked = ["sacct", "--jobs", job, "--allocations", "--noheader", "--parsable2", "--format", "ElapsedRaw"]
    took = int(subprocess.run(asked, check=True, capture_output=True, text=True).stdout.split()[0])
    return f"{steps:5} steps: a run {own / RUNS:.1f} s, eight {own:.1f} s, their job {took} s: {took / own:.2f} times"


def main(every: list[int]) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_texts(folder)
        Lab(folder / "prepared", folder).write('{ method = "naive" }').call("prepare")
        with SlurmCluster(folder / "cluster", nodes=1, cpus=2):
            for steps in every:
                with new_lab(folder / f"lab{steps}", folder) as lab:
                    print(timed(lab, steps), flush=True)


if __name__ == "__main__":
    main([int(word) for word in sys.argv[1:]] or [600, 1200, 2400])
