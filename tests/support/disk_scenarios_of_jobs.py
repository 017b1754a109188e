"""More of what the project writes, for a faulty disk: what stands around training, see disk_scenarios.py."""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path
from typing import Any
from unittest.mock import patch

import submitit
from submitit.core.utils import DelayedSubmission

import methods
from benchmark.instruments import tiny_runs
from benchmark.jobs import doctor, study
from benchmark.jobs.plan import PlannedJob
from benchmark.jobs.slurm import commands, job_files, probe, snapshot
from benchmark.jobs.slurm.submission import Destination, Submission, SubmitCall
from benchmark.settings.load import load_suite
from benchmark.settings.slurm_settings import Slurm
from benchmark.store import Store
from benchmark.training.progress import Silent
from benchmark.training.run import Run
from tests.support import tiny_suite
from tests.support.faulty_disk import Scenario


def nothing(folder: Path) -> None:
    pass


def anything(*_: Any) -> bool:
    """Nothing: nobody reads it before its writer has ended."""
    return True


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


class Trained:
    """A run of two stages, and a study of it, in a folder of its own that is copied."""

    def __init__(self, place: Path) -> None:
        self._place = place
        path = tiny_suite.write(place)
        path.write_text(path.read_text().replace('"er"', '"naive"').replace('["naive", "naive"]', '["naive"]'))
        self.suite = load_suite(str(path))
        self.configs = methods.runs(self.suite)
        self.run(place).train()
        study.collect(self.suite, self.configs, Store(place / "runs"), place / "study")

    def run(self, folder: Path, runs: str = "runs") -> Run:
        return Run(self.configs[0], lambda: methods.build("naive"), Store(folder / runs), tiny_runs.ALONE, Silent())

    # A study

    def copy_runs(self, folder: Path) -> None:
        shutil.copytree(self._place / "runs", folder / "runs")

    def collect(self, folder: Path) -> None:
        study.collect(self.suite, self.configs, Store(folder / "runs"), folder / "study")

    def collected(self, folder: Path) -> Any:
        return [sorted(study._members(path)) for path in (folder / "study").rglob("*.gz")]

    def unpack(self, folder: Path) -> None:
        study.unpack(self._place / "study", folder / "unpacked")

    # What is submitted

    def submit(self, folder: Path) -> None:
        place = Destination("c", 10, folder / "jobs", folder / "logs", folder / "code")
        job = PlannedJob("key", "train", "name", print)  # type: ignore[arg-type]
        with contextlib.ExitStack() as stack:
            stack.enter_context(small_code(folder))
            stack.enter_context(patch.object(commands, "submit", return_value="1"))
            stack.enter_context(patch.object(submitit.SlurmExecutor, "affinity", return_value=1))
            submission = Submission(self.suite, place, None, {})  # type: ignore[arg-type]
            submission._send(SubmitCall([job], None, {"time": 5, "additional_parameters": {}}))

    @staticmethod
    def submitted(folder: Path) -> Any:
        jobs = job_files.read(folder / "jobs")
        return [[job.id, bool(DelayedSubmission.load(folder / "logs" / f"{job.id}_submitted.pkl"))] for job in jobs]


# A copy of the code


@contextlib.contextmanager
def small_code(folder: Path) -> Any:
    """Code of two files, beside the folder, in the place of the project's."""
    root = folder.with_name("root")
    for name in ("run_all.py", "methods/er.py"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)
    with patch.object(snapshot, "ROOT", root):
        yield


def copy_code(folder: Path) -> None:
    with small_code(folder):
        snapshot.take(folder / "code")


def copied(folder: Path) -> Any:
    kept = [path for path in (folder / "code").glob("*") if not path.name.startswith("tmp")]
    return [snapshot.digest(path) == path.name for path in kept]


# What doctor tries


def ask(folder: Path) -> None:
    def submit(script: Path) -> str:
        with contextlib.suppress(OSError):  # on another machine
            probe.main(script.parent)
        return "1"

    findings = [*doctor.of_folder(folder)]
    with contextlib.ExitStack() as stack:
        answers: Any = {"submit": submit, "queue": dict, "restarts": lambda job: 1}
        stack.enter_context(patch.multiple(commands, **answers))
        stack.enter_context(patch.object(probe, "of_torch", return_value={"torch": "2", "device": "cpu", "devices": 0}))
        stack.enter_context(patch.dict(os.environ, SLURM_JOB_ID="1"))
        findings += doctor.of_node(Slurm(), folder)
    for finding in findings:
        if finding.serious and finding.cure:
            raise ValueError(f"{folder}: {finding}")


# Where conformance trains


def make_lab(folder: Path) -> None:
    with patch.object(tiny_runs, "Run"):
        tiny_runs.Lab("naive", methods.build, folder).run(tiny_runs.tiny_config("naive"), "store")


def scenarios(place: Path) -> list[Scenario]:
    """`place`: where what they begin with is made, not on the faulty disk."""
    place.mkdir()
    trained = Trained(place)
    return [
        Scenario("collect", trained.copy_runs, trained.collect, trained.collected),
        Scenario("unpack", nothing, trained.unpack, contents, anything),
        Scenario("submit", nothing, trained.submit, trained.submitted),
        Scenario("code", nothing, copy_code, copied),
        Scenario("doctor", nothing, ask, lambda folder: None),
        Scenario("lab", nothing, make_lab, lambda folder: (folder / "store" / "data").is_dir()),
    ]
