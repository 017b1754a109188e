"""Jobs of Slurm without Slurm: what squeue says, and job files as a submission and a job write them."""

from __future__ import annotations

from typing import Any

import pytest

from benchmark.jobs.slurm import commands, job_files
from tests.support.record_lines import append_line
from tests.support.slurm_lab import Lab


def ask(monkeypatch: pytest.MonkeyPatch, queue: dict[str, commands.Queued] | None) -> None:
    """What squeue says; None: nothing. no accounts are kept."""

    def answer() -> dict[str, commands.Queued]:
        if queue is None:
            raise commands.SlurmError("no answer")
        return queue

    monkeypatch.setattr(commands, "queue", answer)
    monkeypatch.setattr(commands, "endings", lambda ids: None)
    monkeypatch.setattr(commands, "began", lambda ids: {})


def write_job(lab: Lab, row: str, *lines: dict[str, Any], id: str = "7", released: bool = True, **other: Any) -> None:
    """The file of a job that trains a row, or of what `other` says, and what it said."""
    one = lab.config(row)
    path = job_files.folder_of(lab.runs, lab.file.stem) / f"{id}.jsonl"
    job: dict[str, Any] = {
        "id": id,
        "key": one.id,
        "name": row,
        "run": one.id,
        "after": [],
        "needs": [],
        "log": "L",
        "exclusive": False,
        "serves": [other["run"]] if other.get("run") else [one.id],
        **other,
    }
    for line in ({"kind": "job", **job}, *([{"kind": "released"}] if released else []), *lines):
        append_line(path, line)


STARTED = {"kind": "started", "node": "n1", "gpus": None, "restarts": 0}
