"""What the cases of several kinds make."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import run_all
from tests.support import tiny_suite
from tests.support.malformed import Make

SUITE = "{place}/tiny.toml"
RUNS = ("--runs", "{here}/runs")
PLACES = (*RUNS, "--out", "{here}/report")  # of commands that render
# what a test puts into the environment, and must find nowhere
SECRET, SECRETS = "hunter2-hunter2", ("HF_TOKEN", "WANDB_API_KEY", "AWS_SECRET_ACCESS_KEY", "DATABASE_PASSWORD")
TASK = [{"text": f"text {i}", "label": "ab"[i % 2]} for i in range(8)]


FILLED: list[Path] = []  # the places that `fill` has filled


def fill(place: Path) -> None:
    """Train a suite of two runs below `place`, from which cases copy, and write texts and tasks."""
    suite = str(tiny_suite.write(place))
    given = ["run", suite, "--parallel", "1", "--runs", f"{place}/runs", "--out", f"{place}/report"]
    assert run_all.main([*given, "--set", "tables=[]"]) == 0
    (place / "t.jsonl").write_bytes(lines(*TASK))
    FILLED.append(place)
    shutil.copytree(stage_folder() / "model", place / "model")


def stage_folder() -> Path:
    """The folder of the second stage of ER."""
    line = json.loads(next((FILLED[-1] / "runs/suites/tiny").glob("er-*.jsonl")).read_text().splitlines()[0])
    return FILLED[-1] / "runs/stages" / str(line["stages"][-1])


def lines(*rows: object) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def write(name: str, content: bytes) -> Make:
    def make(here: Path) -> None:
        (here / name).parent.mkdir(parents=True, exist_ok=True)
        (here / name).write_bytes(content)

    return make


def pipe(name: str) -> Make:
    """A pipe in the place of a file: whoever opened it would wait for ever."""

    def make(here: Path) -> None:
        (here / name).parent.mkdir(parents=True, exist_ok=True)
        (here / name).unlink(missing_ok=True)
        os.mkfifo(here / name)

    return make


def both(*makes: Any) -> Make:
    def make(here: Path) -> None:
        for one in makes:
            one(here)

    return make
