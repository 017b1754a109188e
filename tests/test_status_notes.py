"""What `status` tells beside the states of runs."""

from __future__ import annotations

import json

import pytest

from benchmark import records
from benchmark.store import Store
from tests.support import synthetic
from tests.support.slurm_lab import Lab


@pytest.fixture
def lab(tmp_path, texts) -> Lab:
    return Lab(tmp_path, texts).write('{ method = "naive" }', '{ method = "er" }')


@pytest.mark.parametrize("unit", ["seconds", "steps"])
def test_short_memory_is_said(lab: Lab, unit: str, capsys) -> None:
    """Oracle: the records of two stages, of which one says how many rows its memory held."""
    lab.file.write_text(lab.file.read_text().replace('unit = "steps"', f'unit = "{unit}"'))
    config = lab.config("ER")
    synthetic.write_as(lab.runs, config, ["first", "second"], finished=2)
    path = Store(lab.runs).stage("second") / "records.jsonl"
    [*lines, done] = records.read(path)
    path.write_text("".join(json.dumps(line) + "\n" for line in [*lines, {**done, "micro_batch_size": 2}]))
    assert lab.call("status") == 0
    [note] = [line for line in capsys.readouterr().out.splitlines() if "memory held" in line]
    domain = next(line["domain"] for line in lines if line["kind"] == "stage")
    assert note.startswith(f"! er-s0: in {domain} memory held 2 rows of a forward pass, fewer than were asked for")
