"""A tiny suite in a folder of its own, commands on it, and ways to disturb its jobs, for tests of
launching.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import methods
import run_all
from analysis import catalogue, report
from benchmark.jobs.executors import Job, slurm
from benchmark.jobs.executors.local import do_units
from benchmark.jobs.executors.slurm import commands
from benchmark.jobs.state import RunState, Survey
from benchmark.jobs.waves import Plan
from benchmark.jobs.work import Train, Worker
from benchmark.ledger.store import Store
from benchmark.settings.load import expand, load_suite
from benchmark.settings.names import ROOT
from benchmark.settings.suite import RunConfig
from benchmark.training.processes import join
from tests.support import processes
from tests.support.record_lines import read_lines, write_lines
from tests.support.slurm_cluster import SlurmCluster, missing_programs

missing = missing_programs()
needs_slurm = [
    pytest.mark.slurm,
    pytest.mark.skipif(
        bool(missing) and os.environ.get("CI") != "true",
        reason="Slurm is not installed: apt-get install --no-install-recommends "
        f"{' '.join(missing)}",
    ),
]
PATIENCE = 300.0  # seconds; on an idle machine nothing takes more than an eighth of it
STEPS = 200  # of the second stage, evaluated every 10 steps
WORDS = {
    "wood": "oak ash elm fir pine birch leaf root bark moss",
    "sea": "wave salt tide fish crab sand reef gull",
}

ROWS = '{ method = "naive" }', '{ method = "er" }'
SUITE = """
title = "Tiny"
methods = []
tables = ["main_pretraining"]
domains = [
  {{ name = "wood", train = ["{texts}/wood.jsonl"] }},
  {{ name = "sea", train = ["{texts}/sea.jsonl"] }},
]
rows = [{rows}]
tasks = [{tasks}]
[tokenizer]
vocabulary = 300
[data]
sequence_length = 16
valid_share = 0.2
memory_tokens = 500
[model]
architecture = "gpt"
head_size = 8
dropout = 0.1
ladder = [{{ layers = 1, hidden_size = 16 }}, {{ layers = 2, hidden_size = 16 }}]
[finetuning]
stages = "last"
seeds = 1
[training]
batch_size = 8
evaluations = 20
precision = "fp32"
checkpoint_seconds = 0.2
[budget]
unit = "steps"
amount = [40, {steps}]
[slurm]
{slurm}
"""


def write_texts(folder: Path) -> None:
    for name, words in WORDS.items():
        chosen = random.Random(name)
        texts = [" ".join(chosen.choices(words.split(), k=60)) for _ in range(120)]
        write_lines(folder / f"{name}.jsonl", ({"text": text} for text in texts))


def write_task(folder: Path) -> str:
    """Write the files of a downstream task, one word per class, and return its entry in a suite."""
    for split in ("train", "dev", "test"):
        examples = [
            {"text": f"{word} {split}", "label": word}
            for word in WORDS["sea"].split()[:3]
            for _ in range(4)
        ]
        write_lines(folder / f"{split}.jsonl", examples)
    files = ", ".join(f'{split} = "{folder}/{split}.jsonl"' for split in ("train", "dev", "test"))
    return f'{{ name = "fish", domain = "sea", batch_size = 4, max_epochs = 1, {files} }}'


def copy_code(folder: Path) -> Path:
    """Copy the code to `folder`, and the methods `tests/examples/paced*.py` into its methods."""
    for name in slurm.CODE:
        shutil.copytree(ROOT / name, folder / name)  # including .pyc files
    shutil.copy(ROOT / "run_all.py", folder)
    for method in (Path(__file__).parents[1] / "examples").glob("paced*.py"):
        shutil.copy(method, folder / "methods" / method.name)
    return folder


@contextlib.contextmanager
def submitting(code: Path) -> Iterator[None]:
    """Let this process submit the code in `code`, with its methods. Jobs have one thread per
    process.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(slurm, "ROOT", code)
        patch.setattr(methods, "__path__", [str(code / "methods")])
        patch.setenv("OMP_NUM_THREADS", "1")
        yield


class SuiteFolder:
    """A suite with its runs. A row `x` of the method "paced" obeys the file `x.gate`."""

    def __init__(
        self, folder: Path, texts: Path, data: Path | None = None, python: str = ""
    ) -> None:
        self.folder, self.texts, self.runs = folder, texts, folder / "runs"
        self.python = python  # of its jobs
        self.file = folder / "tiny.toml"
        self._configs: list[RunConfig] = []
        self.runs.mkdir(parents=True)
        if data:
            shutil.copytree(data, self.runs / "data")

    def write(self, *rows: str, slurm: str = "", tasks: str = "") -> SuiteFolder:
        """Write a suite of these rows: `x` has the method "paced", others are given as TOML."""
        paced = '{{ name = "{row}", method = "paced", options = {{ gate = "{gate}" }} }}'
        tables = [row if "{" in row else paced.format(row=row, gate=self.gate(row)) for row in rows]
        self._configs = []
        if self.python and "python =" not in slurm:
            slurm = f'python = "{self.python}"\n{slurm}'
        self.file.write_text(
            SUITE.format(
                texts=self.texts, rows=", ".join(tables), slurm=slurm, steps=STEPS, tasks=tasks
            )
        )
        return self

    def gate(self, row: str) -> Path:
        return self.folder / f"{row}.gate"

    def tell(self, row: str, what: str) -> None:
        """Slow a row down ("slow", "slow SECONDS"), or disturb it ("trip RANK", "die")."""
        part = self.gate(row).with_suffix(".part")
        part.write_text(what)
        part.rename(self.gate(row))

    def runtime(self) -> str:
        """Write a script that starts Python like a container runtime: it stays as the parent, and
        signals end it. Returns its line of `[slurm]`.
        """
        script = self.folder / "runtime"
        script.write_text('#!/bin/sh\n"$@"\nexit $?\n')
        script.chmod(0o755)
        return f'python = "{script} {self.python or sys.executable}"\n'

    def let_go(self, row: str) -> None:
        self.gate(row).unlink()

    def arguments(self, command: str, *more: str) -> list[str]:
        out = ["--out", str(self.folder / "report")] if command in ("run", "tune", "report") else []
        return [command, str(self.file), "--runs", str(self.runs), *out, *more]

    def call(self, command: str, *more: str) -> int:
        return run_all.main(self.arguments(command, *more))

    def submit(self, *more: str) -> int:
        return self.call("run", "--executor", "slurm", *more)

    def configs(self) -> list[RunConfig]:
        if not self._configs:
            suite = load_suite(str(self.file))
            self._configs = expand(suite, methods.list_rows(suite), suite.seeds)
        return self._configs

    def config(self, row: str) -> RunConfig:
        [config] = [config for config in self.configs() if config.row == row]
        return config

    def plan(self, overrides: dict[str, Any] | None = None, rows: list[str] | None = None) -> Plan:
        """What `run` would do for these rows, default all, with these overrides of the suite."""
        suite = load_suite(str(self.file), overrides)
        configs = [config for config in self.configs() if rows is None or config.row in rows]
        survey = Survey(
            suite, configs, methods.build, Store(self.runs), catalogue.list_measures(suite)
        )
        return Plan(survey, survey.read_states(), report.write_report, self.folder / "report")

    def survey(self) -> Survey:
        return Survey(load_suite(str(self.file)), self.configs(), methods.build, Store(self.runs))

    def states(self) -> dict[str, RunState]:
        """The state of each row."""
        return {state.config.row: state for state in self.survey().read_states()}

    def jobs(self) -> list[Job]:
        return slurm.list_jobs(load_suite(str(self.file)), Store(self.runs))

    def waves(self) -> list[dict[str, Any]]:
        """The submitted arrays of jobs, one dictionary per array."""
        return slurm.read_notes(
            slurm.find_notes_folder(load_suite(str(self.file)), Store(self.runs))
        )

    def ids(self, kind: str = "") -> dict[str, str]:
        """The id of the last job of each unit, of one kind or by default of all."""
        ids = {}
        for wave in self.waves():
            for number, units in enumerate(wave["units"]) if kind in ("", wave["kind"]) else ():
                ids.update(
                    dict.fromkeys(
                        units, f"{wave['id']}_{number}" if len(wave["units"]) > 1 else wave["id"]
                    )
                )
        return ids

    def job(self, row: str) -> str:
        """The id of the last job of a row."""
        return self.ids()[f"train-{self.config(row).id}"]

    def log(self, job: str) -> Path:
        return next(self.runs.glob(f"suites/*/jobs/slurm/*/{job}_0_log.out"))

    def run_lines(self, row: str) -> list[dict[str, Any]]:
        file = Store(self.runs).run_file(self.config(row))
        return read_lines(file) if file.exists() else []

    def keys(self, row: str) -> list[str]:
        """The keys of the row's stages, an empty list before the row has started."""
        return next((line["stages"] for line in self.run_lines(row) if line["kind"] == "run"), [])

    def stage(self, row: str, index: int = 1) -> list[dict[str, Any]]:
        """The lines of one stage's file, as they were written."""
        paths = [Store(self.runs).stage_file(key) for key in self.keys(row)[index : index + 1]]
        return [line for path in paths if path.exists() for line in read_lines(path)]

    def count(self, row: str, kind: str, index: int = 1) -> int:
        return sum(line["kind"] == kind for line in self.stage(row, index))

    def weights(self, row: str) -> dict[str, torch.Tensor]:
        """The weights that the last stage ended with."""
        return load_file(
            Store(self.runs).stage_folder(self.keys(row)[-1]) / "model" / "model.safetensors"
        )

    def wait_for_mid_stage(self, *rows: str) -> None:
        """Wait until the second stage has three evaluations, one at its start, and a checkpoint."""
        for row in rows:
            wait_until(lambda row=row: self.count(row, "evaluation") >= 3)  # type: ignore[misc]
            wait_until((Store(self.runs).stage_folder(self.keys(row)[1]) / "checkpoint.pt").exists)

    def wait_for(self, row: str, state: str) -> RunState:
        wait_until(lambda: self.states()[row].state == state)
        return self.states()[row]

    def wait_for_endings(self, *ids: str) -> None:
        """Wait until these jobs, by default all of the suite, have left Slurm's queue."""
        wanted = set(ids or self.ids().values())
        wait_until(lambda: not wanted & {*queue()})

    def undisturbed(self, row: str) -> SuiteFolder:
        """Train the row's run in this process, in another folder, without disturbance."""
        other = SuiteFolder(self.folder / f"undisturbed-{row}", self.texts, data=self.runs / "data")
        other.file.write_text(self.file.read_text())
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        train_here(self.config(row), other.runs)
        torch.set_num_threads(threads)
        return other


def train_here(config: RunConfig, runs: Path) -> None:
    """Train a run in this process."""
    with join() as world:
        unit = Train(runs, config, config.id, methods.build)
        assert do_units([unit], [], Worker(world)) == []


@contextlib.contextmanager
def new_suite_folder(
    folder: Path, texts: Path, prepared: bool = True, python: str = ""
) -> Iterator[SuiteFolder]:
    """A suite folder whose jobs run the code in `folder/code`. At its end jobs are cancelled."""
    data = texts / "prepared" / "runs" / "data" if prepared else None
    tiny = SuiteFolder(folder, texts, data, python)
    with submitting(copy_code(folder / "code")):
        yield tiny
        subprocess.run(["scancel", "--me"], check=True)
        wait_until(lambda: not queue())


def scontrol(*words: str) -> None:
    subprocess.run(["scontrol", *words], check=True)


def queue() -> dict[str, commands.SlurmJob]:
    """This user's jobs in Slurm's queue."""
    return commands.ask_queue([getpass.getuser()])


def wait_for_account(job: str, state: str, restarts: int) -> None:
    """Wait until Slurm's accounting, which lags behind, says that a job ended in `state` after
    `restarts` restarts.
    """
    words = ("sacct", "-nXP", "--duplicates", "--format=State", f"--jobs={job}")
    wait_until(lambda: [*map(str.split, commands.ask(*words).splitlines())][restarts:] == [[state]])


def assert_as_if_undisturbed(tiny: SuiteFolder, row: str, resumed: int) -> None:
    """Assert that a run resumed `resumed` times, and equals an undisturbed run bit for bit."""
    expected = tiny.undisturbed(row)
    assert all(
        torch.equal(tensor, tiny.weights(row)[name])
        for name, tensor in expected.weights(row).items()
    )
    assert tiny.stage(row)[-2]["perplexity"] == expected.stage(row)[-2]["perplexity"]
    assert tiny.stage(row)[-1]["charged"]["steps"] == STEPS
    steps = [line["step"] for line in tiny.stage(row) if line["kind"] == "resumed"]
    assert len(steps) == resumed and all(0 < step < STEPS for step in steps)


def processes_of(job: str) -> list[int]:
    """Pids of the processes that a job has started on this machine, without its batch script."""
    array, _, task = job.partition("_")
    own = (
        [f"SLURM_ARRAY_JOB_ID={array}", f"SLURM_ARRAY_TASK_ID={task}"]
        if task
        else [f"SLURM_JOB_ID={job}"]
    )
    wanted = [*own, "SUBMITIT_EXECUTOR=slurm"]
    return [
        pid
        for pid in processes.everyone()
        if all(processes.has_variable(pid, setting) for setting in wanted)
    ]


def wait_until(happened: Callable[[], Any], patience: float = PATIENCE) -> None:
    began = looked = time.monotonic()
    while not happened():
        if time.monotonic() > began + patience:
            raise TimeoutError(f"waited {patience:.0f} s; in the queue: {queue()}")
        time.sleep(max(0.2, 3 * (time.monotonic() - looked)))  # a look takes time from the jobs
        looked = time.monotonic()


@contextlib.contextmanager
def silent(cluster: SlurmCluster) -> Iterator[None]:
    """Stop the controller, as if under a heavy load, and set the shortest time that commands wait
    for its answer.
    """
    conf = cluster.folder / "slurm.conf"
    [line] = [
        line for line in conf.read_text().splitlines() if line.startswith("SlurmctldPidFile=")
    ]
    pid = int(Path(line.partition("=")[2]).read_text())
    impatient = cluster.folder / "impatient.conf"
    impatient.write_text(conf.read_text() + "MessageTimeout=2\n")
    os.kill(pid, signal.SIGSTOP)
    os.environ["SLURM_CONF"] = str(impatient)
    try:
        yield
    finally:
        os.environ["SLURM_CONF"] = str(conf)
        os.kill(pid, signal.SIGCONT)


def write_suite_of_two(folder: Path) -> SuiteFolder:
    """A suite of Naive and ER, and its text."""
    write_texts(folder)
    return SuiteFolder(folder / "tiny", folder).write(*ROWS)
