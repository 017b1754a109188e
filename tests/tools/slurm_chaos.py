"""Sixty short runs on a real Slurm, a third of them disturbed at random: `make slurm-chaos`, some minutes.

    python -m tests.tools.slurm_chaos [--runs 60] [--runs-per-job 1] [--seed S]

Who submits is killed twice on its way. Then jobs are told that their time is over, killed, preempted, suspended, or
lose their node, and the controller falls silent. With several runs a job what happens to one happens to its job: all of
its runs stop, or its processes die.

All must finish, each once, equal to undisturbed ones bit for bit, and the training that was lost must stay within the
checkpoint intervals and two percent.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from itertools import cycle
from pathlib import Path

import torch

import methods
from benchmark.jobs.slurm import commands
from benchmark.jobs.slurm.job_files import Job
from benchmark.jobs.survey import Survey
from benchmark.settings.suite_files import load_suite
from benchmark.store import Store
from tests.support import processes
from tests.support.slurm_cluster import SlurmCluster
from tests.support.slurm_lab import STEPS, Lab, copy_code, processes_of, silent, submitting, wait_until, write_texts

DISTURBED = 1 / 3
SIDE_BY_SIDE = 2  # runs of a job that has several
SILENCE = 3.0  # seconds
STEP, INTERVAL = 0.05, 0.5  # seconds of train time: of a step, between checkpoints
METHODS = ("paced", "paced", "paced_elle")
RATES = (1e-3, 2e-3)  # of the second stage, so that not all runs are the same


class Chaos:
    def __init__(self, folder: Path, cluster: SlurmCluster, runs: int, runs_per_job: int, seed: int) -> None:
        self.cluster, self.chosen = cluster, random.Random(seed)
        write_texts(folder)
        self.lab = Lab(folder / "lab", folder)
        self.rows = [f"r{number:02}" for number in range(runs)]
        (folder / "lab" / "steps").mkdir()
        settings = 'partition = "preemptible"\narray_parallelism = 5'
        if runs_per_job > 1:
            settings += f"\nruns_per_job = {runs_per_job}\nntasks_per_node = {SIDE_BY_SIDE}\ncpus_per_task = 1"
        self.lab.write(*map(self.row, range(runs)), slurm=settings)
        text = self.lab.file.read_text().replace("checkpoint_seconds = 0.2", f"checkpoint_seconds = {INTERVAL}")
        self.lab.file.write_text(text)
        for row in self.rows:
            self.lab.tell(row, f"slow {STEP}")
        # row -> after how many of its twenty evaluations what happens to it
        kinds = [self.tell, self.kill, self.lose_node, self.preempt, self.suspend, self.silence]
        self.chosen.shuffle(kinds)
        rows = self.chosen.sample(self.rows, round(DISTURBED * runs))
        self.plan = {row: (self.chosen.randrange(2, 18), kind) for row, kind in zip(rows, cycle(kinds), strict=False)}
        self.happened: Counter[str] = Counter()

    def row(self, number: int) -> str:
        name, rate = self.rows[number], RATES[number % len(RATES)]
        options = f'gate = "{self.lab.gate(name)}", log = "{self.steps(name)}"'
        rates = f'"training.learning_rate" = [5e-4, {rate}]'
        method = METHODS[number % len(METHODS)]
        return f'{{ name = "{name}", method = "{method}", options = {{ {options} }}, set = {{ {rates} }} }}'

    def steps(self, row: str) -> Path:
        return self.lab.folder / "steps" / row

    def run(self) -> None:
        for scripts in (1, 2):
            self.kill_submitter(scripts)
        self.lab.submit()
        while commands.queue():
            for row, (evaluations, disturb) in list(self.plan.items()):
                job = self.running(row)
                if job and self.lab.count(row, "evaluation") >= evaluations:
                    print(f"{row}: {disturb.__name__}", flush=True)
                    disturb(job)
                    self.happened[disturb.__name__] += 1
                    del self.plan[row]
            time.sleep(0.2)
        self.lab.submit("--retry-failed")  # those whose process was killed
        wait_until(lambda: not commands.queue())

    def kill_submitter(self, scripts: int) -> None:
        """SIGKILL to who submits, when it has written so many batch scripts; what it left unnoted is ended."""
        before = len(self.scripts())
        process = subprocess.Popen(
            [sys.executable, "run_all.py", *self.lab.arguments("run", "--executor", "slurm")],
            cwd=self.lab.folder.parent / "code",
            start_new_session=True,
            stdout=subprocess.DEVNULL,
        )
        wait_until(lambda: len(self.scripts()) >= before + scripts or process.poll() is not None)
        time.sleep(self.chosen.uniform(0, 0.1))
        self.happened["kill_submitter"] += process.poll() is None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # with the sbatch that it waits for
        process.wait()
        time.sleep(1)
        survey = Survey(load_suite(str(self.lab.file)), self.lab.configs(), methods.build, Store(self.lab.runs))
        survey.states()
        left = [job.id for key, job in survey.jobs.items() if key.startswith("unnoted-")]
        print(f"killed who submits: {len(self.lab.jobs())} jobs are noted, {len(left)} not", flush=True)
        commands.cancel(left)

    def scripts(self) -> list[Path]:
        return list(self.lab.runs.rglob("submission-*.sh"))

    def running(self, row: str) -> Job | None:
        config = self.lab.config(row)
        found = [job for job in self.lab.jobs() if job.run == config.id and job.starts and not job.end]
        return found[-1] if found and self.lab.count(row, "done") == 0 else None

    def tell(self, job: Job) -> None:
        """Send the signal that a time limit sends."""
        subprocess.run(["scancel", "--signal=USR2", job.id], check=False)

    def kill(self, job: Job) -> None:
        """The training process dies, as when there is no memory left."""
        processes.kill(processes_of(job.id))

    def lose_node(self, job: Job) -> None:
        self.cluster.kill_node(job.starts[-1]["node"])
        subprocess.run(
            ["scontrol", "update", f"NodeName={job.starts[-1]['node']}", "State=DOWN", "Reason=chaos"], check=True
        )
        self.cluster.start_node(job.starts[-1]["node"])
        subprocess.run(["scontrol", "update", f"NodeName={job.starts[-1]['node']}", "State=RESUME"], check=True)

    def preempt(self, job: Job) -> None:
        """An urgent job takes all of the node."""
        urgent = [
            "sbatch",
            "--partition=main",
            f"--nodelist={job.starts[-1]['node']}",
            "--exclusive",
            "--wrap=true",
            "--output=/dev/null",
        ]
        subprocess.run(urgent, check=True, capture_output=True)

    def suspend(self, job: Job) -> None:
        """The job stands still, as others take turns with it; `status` says so."""
        if subprocess.run(["scontrol", "suspend", job.id], check=False).returncode == 0:
            state = next(one for one in self.lab.states().values() if one.config.id == job.run)
            assert state.state == "done" or state.detail.startswith("suspended"), state
            time.sleep(SILENCE)
            subprocess.run(["scontrol", "resume", job.id], check=True)

    def silence(self, job: Job) -> None:
        """The controller stands still; nothing is taken for ended by it."""
        before = self.ended()
        with silent(self.cluster):
            assert self.ended() <= before
            time.sleep(SILENCE)

    def ended(self) -> set[str]:
        """The rows whose jobs are taken for dead."""
        return {row for row, one in self.lab.states().items() if one.state in ("failed", "interrupted")}

    def verify(self) -> None:
        states = self.lab.states()
        assert {state.state for state in states.values()} == {"done"}, {row: one.state for row, one in states.items()}
        for row in self.rows:
            assert self.lab.count(row, "done") == 1
            assert [line["kind"] for line in self.lab.run_lines(row)].count("done") == 1
        self.verify_waste()  # first: the undisturbed runs take steps too
        self.verify_results()

    def verify_results(self) -> None:
        """Rows with the same method and rate are the same run."""
        period = len(METHODS) * len(RATES)
        for first in range(min(period, len(self.rows))):
            expected = self.lab.undisturbed(self.rows[first]).weights(self.rows[first])
            for row in self.rows[first::period]:
                found = self.lab.weights(row)
                assert all(torch.equal(tensor, found[name]) for name, tensor in expected.items()), row

    def verify_waste(self) -> None:
        executed = restarts = 0
        for row in self.rows:
            lines = [line["kind"] for line in self.lab.stage(row)]
            began = lines.count("stage") + lines.count("resumed")
            phases = len(self.lab.stage(row)[0]["phases"])
            executed += self.steps(row).stat().st_size - began - (phases - 1)  # without the steps that warm up
            restarts += began - 1
        runs = len(self.rows)
        wasted, allowed = executed - runs * STEPS, restarts * (INTERVAL / STEP + 1)
        share = max(0.0, wasted - allowed) / (runs * STEPS)
        print(
            f"{runs} runs, {restarts} restarts ({dict(self.happened)}), {wasted} of {runs * STEPS} steps done again, "
            f"{allowed:.0f} by the checkpoint interval; beyond it {share:.1%}"
        )
        assert share <= 0.02


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=60)
    parser.add_argument("--runs-per-job", type=int, default=1)
    parser.add_argument("--seed", type=int, default=random.randrange(1000))
    given = parser.parse_args()
    print(f"chaos number {given.seed}")
    with tempfile.TemporaryDirectory() as name, SlurmCluster(Path(name) / "cluster", nodes=2, cpus=4) as cluster:
        folder = Path(name)
        with submitting(copy_code(folder / "code")):
            chaos = Chaos(folder, cluster, given.runs, given.runs_per_job, given.seed)
            chaos.run()
            chaos.verify()


if __name__ == "__main__":
    main()
