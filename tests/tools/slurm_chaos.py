"""Short runs on a real Slurm, a third of them disturbed at random: `make slurm-chaos`, some
minutes.

    python -m tests.tools.slurm_chaos [--runs 36] [--runs-per-job 1] [--largest-array 10] [--seed S]

`run` first meets a full disk, then is killed twice, then two call it at once. The cluster takes few
jobs at a time, so `run` is called again and again. The job that prepares has an account of its own,
and is stopped in the middle of a text. Jobs that train are told that their time is over, killed,
preempted, suspended or cancelled, or lose their node, and the controller falls silent. One job that
prepares and one that scores or measures is killed. One that reports reaches its time limit without
progress. Another suite asks for a run's stages while they are trained. With several runs per job, a
disturbance of one run is one of its job: all of the job's runs stop, or its processes die. A
largest array of 0 is a site without arrays.

All runs must finish, each exactly once, equal to undisturbed runs bit for bit, and be scored and
measured. Training that is lost must stay within the checkpoint intervals and two percent.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import json
import os
import pwd
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from itertools import cycle
from pathlib import Path

import torch

from benchmark.jobs.executors import Job
from benchmark.jobs.executors.slurm import PARTIAL, commands
from tests.support import processes
from tests.support.slurm_cluster import SlurmCluster
from tests.support.suite_folder import (
    STEPS,
    WORDS,
    SuiteFolder,
    copy_code,
    processes_of,
    queue,
    scontrol,
    silent,
    submitting,
    wait_for_account,
    wait_until,
    write_task,
    write_texts,
)

DISTURBED = 1 / 3
SILENCE = 3.0  # seconds
SIDE_BY_SIDE = 2  # runs of a job that has several
REFUSED = 2  # the exit status of `run` if Slurm took no job
STEP, INTERVAL = 0.05, 0.5  # seconds of train time: of a step, between checkpoints
METHODS = ("paced", "paced", "paced_elle")
RATES = (1e-3, 2e-3)  # of the second stage, so that not all runs are the same
MOST = 20  # jobs of a user at a time
LONG = 1500  # documents of a text that takes a while, and words of each
AGAIN = 10.0  # seconds between two calls of `run`, while jobs are left to submit
OTHERS = ("prepare", "score", "report")  # kinds of jobs that do not train
SLOW_REPORT = """

write_at_once = write_report

def write_report(suites, *more):
    import os, time
    gate = Path({gate!r})
    while gate.exists() and suites[0][0].name == "tiny":
        gate.with_suffix("." + os.environ["SLURM_JOB_ID"]).touch()
        time.sleep(0.2)
    write_at_once(suites, *more)
"""


class Chaos:
    """A suite and what happens to its jobs: each kind of disturbance is given a job that trains."""

    def __init__(
        self, folder: Path, cluster: SlurmCluster, runs: int, runs_per_job: int, seed: int
    ) -> None:
        self.chosen = random.Random(seed)
        write_texts(folder)
        words = [*WORDS["sea"].split(), *map(str, range(300))]
        texts = [
            " ".join(self.chosen.choices(words, k=LONG)) for _ in range(LONG)
        ]  # to be stopped in mid-text
        (folder / "sea.jsonl").write_text(
            "".join(json.dumps({"text": text}) + "\n" for text in texts)
        )
        self.cluster, self.tiny = cluster, SuiteFolder(folder / "tiny", folder)
        self.stood_still: dict[str, int] = {}  # row -> how often its stage had been resumed before
        self.left = False  # whether `run` is to be called again
        self.kinds = [
            self.tell,
            self.kill,
            self.lose_node,
            self.preempt,
            self.preempt_by_cancelling,
        ]
        self.kinds += [self.suspend, self.silence, self.cancel, self.share]
        self.rows = [f"r{number:02}" for number in range(runs)]
        (folder / "tiny" / "steps").mkdir()
        settings = 'partition = "preemptible"\naccount = "tiny"\narray_parallelism = 5'
        if runs_per_job > 1:
            settings += f"\nruns_per_job = {runs_per_job}\nntasks_per_node = {SIDE_BY_SIDE}"
            settings += "\ncpus_per_task = 1"
        settings += '\n[slurm.prepare]\naccount = "urgent"'
        self.tiny.write(
            *map(self.row, range(runs)), slurm=settings, tasks=write_task(self.tiny.folder)
        )
        text = self.tiny.file.read_text().replace(
            "checkpoint_seconds = 0.2", f"checkpoint_seconds = {INTERVAL}"
        )
        text = text.replace("[data]", "[data]\nmax_valid_bytes = 5000")
        self.tiny.file.write_text(text.replace("main_pretraining", "representational_similarity"))
        for row in self.rows:
            self.tiny.tell(row, f"slow {STEP}")
        # row -> (after how many of its twenty evaluations, which disturbance)
        kinds = self.chosen.sample(self.kinds, len(self.kinds))
        rows = self.chosen.sample(self.rows, max(round(DISTURBED * runs), min(runs, len(kinds))))
        self.plan = {
            row: (self.chosen.randrange(2, 18), kind)
            for row, kind in zip(rows, cycle(kinds), strict=False)
        }
        self.happened: Counter[str] = Counter()
        self.others, self.called = {*OTHERS}, 0.0
        self.sharing: list[SuiteFolder] = []  # other suites, of one run each
        # while this file is there, a report waits, and says so with a file of its own
        self.slow_report = folder / "slow_report"
        self.slow_report.touch()

    def row(self, number: int) -> str:
        name, rate = self.rows[number], RATES[number % len(RATES)]
        options = f'gate = "{self.tiny.gate(name)}", log = "{self.steps(name)}"'
        rates = f'"training.learning_rate" = [5e-4, {rate}]'
        method = METHODS[number % len(METHODS)]
        content = f'name = "{name}", method = "{method}", options = {{ {options} }}'
        return f"{{ {content}, set = {{ {rates} }} }}"

    def steps(self, row: str) -> Path:
        return self.tiny.folder / "steps" / row

    def run(self) -> None:
        self.submit_on_a_full_disk()
        # otherwise the job that prepares would end before it can be stopped
        scontrol("update", "PartitionName=preemptible", "State=DOWN")
        for waves in (1, 2):
            self.kill_submitter(waves)
        self.two_submitters()
        scontrol("update", "PartitionName=preemptible", "State=UP")
        self.stop_preparation()
        self.happened["stop_preparation"] += 1
        while queue() or self.left:
            self.submit_what_is_left()
            self.kill_others()
            jobs = {
                unit: job
                for job in self.tiny.jobs()
                if job.state == "running"
                for unit in job.units
            }
            for row, (evaluations, disturb) in list(self.plan.items()):
                job = jobs.get(f"train-{self.tiny.config(row).id}")
                if self.tiny.count(row, "done"):  # too late: another row's turn
                    later = [
                        name
                        for name in self.rows
                        if name not in self.plan and not self.tiny.count(name, "done")
                    ]
                    if later:
                        self.plan[self.chosen.choice(later)] = self.plan.pop(row)
                elif job and self.tiny.count(row, "evaluation") >= evaluations:
                    print(f"{row}: {disturb.__name__}", flush=True)
                    disturb(job)
                    self.happened[disturb.__name__] += 1
                    del self.plan[row]
                    break  # `jobs` may no longer be true
            time.sleep(0.2)
        before = -1
        # until nothing is left to submit: runs whose process was killed are tried again
        while before < len(self.tiny.waves()):
            before = len(self.tiny.waves())
            assert (status := self.tiny.submit("--retry-failed")) in (0, PARTIAL), status
            assert not any(other.submit("--retry-failed") for other in self.sharing)
            while queue():
                self.kill_others()
                time.sleep(0.2)

    def submit_what_is_left(self) -> None:
        """Call `run` again, some time after it could not submit all."""
        if self.left and time.monotonic() > self.called + AGAIN:
            status = self.tiny.submit()
            assert status in (0, REFUSED, PARTIAL), status
            self.happened["run_again"] += 1
            self.left, self.called = status != 0, time.monotonic()

    def two_submitters(self) -> None:
        """Let two submit at once: no unit comes twice. The cluster's limit decides how they end."""
        both = [self.submitter(), self.submitter()]
        ends = [process.wait() for process in both]
        assert {*ends} <= {0, REFUSED, PARTIAL}, ends
        units = Counter(
            unit for wave in self.tiny.waves() for task in wave["units"] for unit in task
        )
        assert all(count == 1 for unit, count in units.items() if unit != "report-all"), units
        self.left = 0 not in ends
        self.happened["two_submitters"] += 1

    def kill_others(self) -> None:
        """Let one job of each kind that does not train fail. Like runs, it is retried at the
        end.
        """
        for job in self.tiny.jobs() if self.others else ():
            if job.kind not in self.others or job.state != "running":
                continue
            if job.kind == "report":
                self.stop_in_vain(job)
            elif pids := processes_of(job.id):
                processes.kill(pids)
            else:
                continue
            print(f"{job.kind}: fails", flush=True)
            self.happened[f"fail_{job.kind}"] += 1
            self.others.remove(job.kind)

    def stop_in_vain(self, job: Job) -> None:
        """Tell a job that reports twice that its time is over, without any progress.

        It is requeued once, then it fails.
        """
        begun = self.slow_report.with_suffix(f".{job.id}")
        for _ in range(2):
            wait_until(begun.exists)
            self.tell(job)
            wait_until(lambda: job.id not in (jobs := queue()) or jobs[job.id].state == "waiting")
            begun.unlink()
        wait_for_account(job.id, "FAILED", 1)
        assert "raise slurm.report.time" in self.tiny.log(job.id).read_text()
        self.slow_report.unlink()

    def submitter(self, *before: str, stderr: int | None = None) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [
                *before,
                sys.executable,
                "run_all.py",
                *self.tiny.arguments("run", "--executor", "slurm"),
            ],
            cwd=self.tiny.folder.parent / "code",
            start_new_session=True,
            stdout=subprocess.DEVNULL,
            stderr=stderr,
            text=True,
        )

    def submit_on_a_full_disk(self) -> None:
        """Submit while no file may grow: nothing is submitted, and the error says so."""
        # without bytecode: Python keeps half of a compiled file that it could not write whole
        full = 'export PYTHONDONTWRITEBYTECODE=1; ulimit -f 1; exec "$0" "$@"'
        process = self.submitter("sh", "-c", full, stderr=subprocess.PIPE)
        said = process.communicate()[1]
        assert process.returncode == 2 and "; make room there" in said and not queue(), said

    def kill_submitter(self, waves: int) -> None:
        """Kill (SIGKILL) who submits, once it has noted so many arrays.

        What it has not noted is at worst done twice.
        """
        before = len(self.tiny.waves())
        process = self.submitter()
        wait_until(lambda: len(self.tiny.waves()) >= before + waves or process.poll() is not None)
        time.sleep(self.chosen.uniform(0, 0.1))
        self.happened["kill_submitter"] += process.poll() is None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # with the sbatch that it waits for
        process.wait()
        time.sleep(1)
        print(
            f"killed who submits: {len({*queue()} - {*self.tiny.ids().values()})} jobs are not "
            "noted",
            flush=True,
        )

    # What can happen to jobs

    def tell(self, job: Job) -> None:
        """Send the signal that a time limit sends."""
        subprocess.run(["scancel", "--signal=USR2", job.id], check=False)

    def kill(self, job: Job) -> None:
        """The training process dies, as when there is no memory left."""
        processes.kill(processes_of(job.id))

    def cancel(self, job: Job) -> None:
        """End all jobs with `cancel`, which their states must say. The next `run` goes on."""
        row = next(
            config.row for config in self.tiny.configs() if f"train-{config.id}" in job.units
        )
        assert self.tiny.call("cancel") == 0
        wait_until(
            lambda: (
                "was cancelled" in (state := self.tiny.states()[row]).detail
                or state.state == "done"
            )
        )
        self.left = True

    def share(self, job: Job) -> None:
        """Let another suite ask for a run's stages while they are trained.

        One of the two jobs must be queued again behind the other. It may be the run's own, if it
        was preempted in between.
        """
        # a run in training, because the other suite would itself train what nobody trains
        wait_until(lambda: self.list_training(job))
        row = self.list_training(job)[0]
        other = copy.copy(self.tiny)
        other.file, other._configs = self.tiny.file.with_stem(f"other-{row}"), []
        text = self.tiny.file.read_text().replace('account = "tiny"', 'account = "urgent"')
        text = re.sub(
            r"^rows = .*$", f"rows = [{self.row(self.rows.index(row))}]", text, flags=re.MULTILINE
        )
        other.file.write_text(re.sub(r"^tasks = .*$", "tasks = []", text, flags=re.MULTILINE))
        before = self.count_queued_behind()
        self.tiny.tell(row, "slow 5")
        assert other.submit() == 0
        wait_until(lambda: self.count_queued_behind() > before)
        self.tiny.tell(row, f"slow {STEP}")
        self.sharing.append(other)

    def count_queued_behind(self) -> int:
        """How often a job of any suite was queued again behind another."""
        logs = self.tiny.runs.glob("suites/*/jobs/slurm/*/*.out")
        return sum(log.read_text().count("queued again behind job") for log in logs)

    def list_training(self, job: Job) -> list[str]:
        """The rows that a job is training now."""
        states = self.tiny.states()
        ours = [config.row for config in self.tiny.configs() if f"train-{config.id}" in job.units]
        return [
            row
            for row in ours
            if states[row].state == "running" and self.tiny.count(row, "evaluation")
        ]

    def lose_node(self, job: Job) -> None:
        node = job.node
        self.cluster.kill_node(node)
        scontrol("update", f"NodeName={node}", "State=DOWN", "Reason=chaos")
        self.cluster.start_node(node)
        # a node that has registered meanwhile is back already, and this fails
        subprocess.run(["scontrol", "update", f"NodeName={node}", "State=RESUME"], check=False)

    def preempt_by_cancelling(self, job: Job) -> None:
        """Preempt in a partition that cancels jobs instead of requeueing them.

        After SIGTERM the job has the grace time to save and to queue itself again.
        """
        scontrol("update", "PartitionName=preemptible", "PreemptMode=CANCEL")
        self.preempt(job)
        wait_until(lambda: job.id not in (jobs := queue()) or jobs[job.id].state == "waiting")
        scontrol("update", "PartitionName=preemptible", "PreemptMode=REQUEUE")

    def preempt(self, job: Job) -> None:
        """Submit an urgent job that takes all of the node."""
        urgent = f"--account=urgent --partition=main --nodelist={job.node} --exclusive --wrap=true "
        urgent += "--output=/dev/null"
        subprocess.run(["sbatch", *urgent.split()], check=True, capture_output=True)

    def suspend(self, job: Job) -> None:
        """Suspend the job, as if others took turns with it.

        `status` and the record of the stage must say so.
        """
        row = next(
            config.row for config in self.tiny.configs() if f"train-{config.id}" in job.units
        )
        evaluations = self.tiny.count(row, "evaluation")
        # while it trains: a pause between two pieces of training is off the clock anyway
        wait_until(
            lambda: (
                self.tiny.count(row, "evaluation") > evaluations
                or self.tiny.count(row, "done")
                or job.id not in queue()
            )
        )
        if subprocess.run(["scontrol", "suspend", job.id], check=False).returncode == 0:
            state = self.tiny.states()[row]
            assert state.state == "done" or state.detail.startswith("suspended"), state
            if not self.tiny.count(row, "done"):
                self.stood_still[row] = self.tiny.count(row, "resumed")
            time.sleep(SILENCE)
            scontrol("resume", job.id)

    def silence(self, job: Job) -> None:
        """Stop the controller for a while. No job may be taken for ended because of it."""
        before = self.ended()
        with silent(self.cluster):
            assert (ended := self.ended()) <= before, ended - before
            time.sleep(SILENCE)

    def ended(self) -> set[str]:
        """The rows whose jobs are taken for dead."""
        return {
            row
            for row, state in self.tiny.states().items()
            if state.state in ("failed", "interrupted")
        }

    def stop_preparation(self) -> None:
        """Tell the job that prepares, in the middle of a text, that its time is over.

        Slurm must queue it again.
        """
        domains = self.tiny.runs / "data" / "domains"
        wait_until(lambda: [*domains.glob(".*/*.bin")] and self.made())
        [job] = [id for unit, id in self.tiny.ids("prepare").items() if unit != "prepare-tasks"]
        self.made_before = self.made()
        subprocess.run(["scancel", "--signal=USR2", job], check=True)
        wait_until(lambda: queue()[job].state == "waiting")
        assert not self.made().keys() - self.made_before.keys(), "it was not stopped in mid-text"

    def made(self) -> dict[Path, int]:
        """The tokenised texts, with the time when each was finished."""
        paths = (self.tiny.runs / "data" / "domains").glob("*/info.json")
        return {
            path: path.stat().st_mtime_ns for path in paths if not path.parent.name.startswith(".")
        }

    # What must be so at the end

    def verify(self) -> None:
        states = self.tiny.states()
        assert {state.state for state in states.values()} == {"done"}, states
        for row in self.rows:
            assert self.tiny.count(row, "done") == 1
            assert [line["kind"] for line in self.tiny.run_lines(row)].count("done") == 1
        assert self.made_before.items() <= self.made().items(), (
            "a text that was there was made anew"
        )
        for other in self.sharing:
            assert {state.state for state in other.states().values()} == {"done"}, other.states()
        assert not self.tiny.plan().waves and not self.others, (self.tiny.plan().waves, self.others)
        assert list(self.tiny.folder.rglob("representational_similarity.png")), "no report"
        for kind, account in (("prepare", "urgent"), ("train", "tiny")):
            arrays = ",".join({id.partition("_")[0] for id in self.tiny.ids(kind).values()})
            assert {
                *commands.ask("sacct", "-nXP", "--format=Account", f"--jobs={arrays}").split()
            } == {account}, kind
        for row, resumed in self.stood_still.items():
            if (
                self.tiny.count(row, "resumed") == resumed
            ):  # else a kill may have taken the note with it
                assert self.tiny.stage(row)[-1]["cores"]["stood_still"] > SILENCE - 1, row
        self.verify_waste()  # first: the undisturbed runs take steps too
        self.verify_results()

    def verify_results(self) -> None:
        """Rows with the same method and rate are the same run."""
        period = len(METHODS) * len(RATES)
        for first in range(min(period, len(self.rows))):
            expected = self.tiny.undisturbed(self.rows[first]).weights(self.rows[first])
            for row in self.rows[first::period]:
                weights = self.tiny.weights(row)
                assert all(
                    torch.equal(tensor, weights[name]) for name, tensor in expected.items()
                ), row

    def verify_waste(self) -> None:
        executed = restarts = 0
        for row in self.rows:
            lines = [line["kind"] for line in self.tiny.stage(row)]
            began = lines.count("stage") + lines.count("resumed")
            phases = len(self.tiny.stage(row)[0]["phases"])
            executed += (
                self.steps(row).stat().st_size - began - (phases - 1)
            )  # without the steps that warm up
            restarts += began - 1
        runs = len(self.rows)
        wasted, allowed = executed - runs * STEPS, restarts * (INTERVAL / STEP + 1)
        share = max(0.0, wasted - allowed) / (runs * STEPS)
        print(
            f"{runs} runs, {restarts} restarts ({dict(self.happened)}), {wasted} of {runs * STEPS} "
            "steps done again, "
            f"{allowed:.0f} by the checkpoint interval; beyond it {share:.1%}"
        )
        assert share <= 0.02 and restarts, "too much was done again, or nothing was disturbed"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=36)
    parser.add_argument("--runs-per-job", type=int, default=1)
    parser.add_argument("--largest-array", type=int, default=10)
    parser.add_argument("--seed", type=int, default=random.randrange(1000))
    given = parser.parse_args()
    print(f"chaos number {given.seed}")
    limits = f"MaxArraySize={given.largest_array}\nAccountingStorageEnforce=limits"
    with (
        tempfile.TemporaryDirectory() as name,
        SlurmCluster(Path(name) / "cluster", cpus=4, more=limits) as cluster,
    ):
        folder, user = Path(name), pwd.getpwuid(os.getuid()).pw_name
        for words in (
            ("account", "tiny"),
            ("account", "urgent"),
            ("user", user, "account=tiny", f"MaxSubmitJobs={MOST}"),
            ("user", user, "account=urgent"),
        ):
            subprocess.run(["sacctmgr", "-i", "add", *words], check=True, stdout=subprocess.DEVNULL)
        code = copy_code(folder / "code")
        tables = code / "analysis" / "report.py"
        tables.write_text(tables.read_text() + SLOW_REPORT.format(gate=str(folder / "slow_report")))
        with submitting(code):
            chaos = Chaos(folder, cluster, given.runs, given.runs_per_job, given.seed)
            chaos.run()
            chaos.verify()


if __name__ == "__main__":
    main()
