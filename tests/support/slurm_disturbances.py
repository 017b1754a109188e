"""What can happen to jobs of a lab on a real Slurm, for `tests/tools/slurm_chaos.py`."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

from benchmark.jobs.executors import Job
from tests.support import processes
from tests.support.slurm_cluster import SlurmCluster
from tests.support.slurm_lab import Lab, processes_of, queue, scontrol, silent, wait_until

SILENCE = 3.0  # seconds


class Disturbances:
    """Each is given a job that trains."""

    def __init__(self, cluster: SlurmCluster, lab: Lab) -> None:
        self.cluster, self.lab = cluster, lab
        self.stood_still: dict[str, int] = {}  # row -> how often its stage had gone on before
        self.left = False  # whether `run` is to be called again
        self.kinds = [self.tell, self.kill, self.lose_node, self.drain, self.preempt, self.preempt_by_cancelling]
        self.kinds += [self.suspend, self.silence, self.silence_of_accounts, self.cancel]

    def tell(self, job: Job) -> None:
        """Send the signal that a time limit sends."""
        subprocess.run(["scancel", "--signal=USR2", job.id], check=False)

    def kill(self, job: Job) -> None:
        """The training process dies, as when there is no memory left."""
        processes.kill(processes_of(job.id))

    def cancel(self, job: Job) -> None:
        """All jobs are ended by `cancel`; the next `run` goes on."""
        assert self.lab.call("cancel") == 0
        self.left = True

    def lose_node(self, job: Job) -> None:
        node = job.node
        self.cluster.kill_node(node)
        scontrol("update", f"NodeName={node}", "State=DOWN", "Reason=chaos")
        self.cluster.start_node(node)
        scontrol("update", f"NodeName={node}", "State=RESUME")

    def drain(self, job: Job) -> None:
        """No job starts on its node for a while, and it goes on."""
        node = job.node

        def there() -> set[str]:
            return {id for id, one in queue().items() if one.node == node}

        scontrol("update", f"NodeName={node}", "State=DRAIN", "Reason=chaos")
        before = there()
        time.sleep(SILENCE)
        assert there() <= before
        scontrol("update", f"NodeName={node}", "State=RESUME")

    def preempt_by_cancelling(self, job: Job) -> None:
        """The same where that ends jobs: after SIGTERM it has the time of grace to save and to queue itself again."""
        scontrol("update", "PartitionName=preemptible", "PreemptMode=CANCEL")
        self.preempt(job)
        wait_until(lambda: job.id not in (jobs := queue()) or jobs[job.id].state != "RUNNING")
        scontrol("update", "PartitionName=preemptible", "PreemptMode=REQUEUE")

    def preempt(self, job: Job) -> None:
        """An urgent job takes all of the node."""
        urgent = [
            "sbatch",
            "--account=urgent",
            "--partition=main",
            f"--nodelist={job.node}",
            "--exclusive",
            "--wrap=true",
            "--output=/dev/null",
        ]
        subprocess.run(urgent, check=True, capture_output=True)

    def suspend(self, job: Job) -> None:
        """The job stands still, as others take turns with it; `status` says so, and the record of a stage."""
        row = next(config.row for config in self.lab.configs() if config.id in job.units)
        evaluations = self.lab.count(row, "evaluation")
        # it trains next: what stands still between two pieces of training is off the clock anyway
        wait_until(
            lambda: (
                self.lab.count(row, "evaluation") > evaluations or self.lab.count(row, "done") or job.id not in queue()
            )
        )
        if subprocess.run(["scontrol", "suspend", job.id], check=False).returncode == 0:
            state = self.lab.states()[row]
            assert state.state == "done" or state.detail.startswith("suspended"), state
            if not self.lab.count(row, "done"):
                self.stood_still[row] = self.lab.count(row, "resumed")
            time.sleep(SILENCE)
            scontrol("resume", job.id)

    def silence(self, job: Job) -> None:
        """The controller stands still; nothing is taken for ended by it."""
        before = self.ended()
        with silent(self.cluster):
            assert (ended := self.ended()) <= before, ended - before
            time.sleep(SILENCE)

    def silence_of_accounts(self, job: Job) -> None:
        """Who keeps accounts stands still while a job is killed: nobody knows how it ended, so it has not."""
        before = self.ended()
        with silent(self.cluster, "slurmdbd"):
            self.kill(job)
            wait_until(lambda: job.id not in queue())
            assert (ended := self.ended()) <= before, ended - before  # it waits half a minute for an answer

    def ended(self) -> set[str]:
        """The rows whose jobs are taken for dead."""
        return {row for row, one in self.lab.states().items() if one.state in ("failed", "interrupted")}

    def stop_preparation(self) -> None:
        """The job that prepares is told in the middle of a text that its time is over; Slurm queues it again."""
        domains = self.lab.runs / "data" / "domains"
        wait_until(lambda: [*domains.glob(".*/*.bin")] and self.made())
        [job] = self.lab.ids("prepare").values()
        self.made_before = self.made()
        subprocess.run(["scancel", "--signal=USR2", job], check=True)
        wait_until(lambda: queue()[job].waits)
        assert not self.made().keys() - self.made_before.keys(), "it was not stopped in mid-text"

    def made(self) -> dict[Path, int]:
        """The texts that are tokenised, and when each of them was."""
        found = (self.lab.runs / "data" / "domains").glob("*/info.json")
        return {path: path.stat().st_mtime_ns for path in found if not path.parent.name.startswith(".")}
