"""What a terminal shows while runs are trained, and what a file gets instead."""

from __future__ import annotations

import io
import os
import time

import msgspec
from rich.console import Console

import methods
from benchmark.jobs.executors import local
from benchmark.jobs.work import Train
from benchmark.training.progress import WATCHED, Heartbeat
from tests.support.suite_folder import SuiteFolder, write_texts


def test_a_terminal_shows_what_is_under_way(tmp_path, monkeypatch) -> None:
    """Oracle: a heartbeat written by hand; and the variable by which processes know of the table
    goes with it.
    """
    write_texts(tmp_path)
    [config] = SuiteFolder(tmp_path / "tiny", tmp_path).write('{ method = "naive" }').configs()
    unit, out = Train(tmp_path, config, config.id, methods.build), io.StringIO()
    beat = Heartbeat(0, 2, "wood", "adapt", fraction=0.25, tokens_per_second=9000, time=time.time())
    file = unit.store.heartbeat_file(config)
    file.parent.mkdir(parents=True)
    file.write_bytes(msgspec.json.encode(beat))
    monkeypatch.setattr(
        local, "Console", lambda stderr: Console(file=out, force_terminal=True, width=100)
    )
    monkeypatch.setattr(local, "PAUSE", 0.05)
    with local.show_work("tiny") as show:
        assert WATCHED in os.environ
        show([unit])
        time.sleep(0.5)
        show([])
        time.sleep(0.5)
    text = out.getvalue()
    assert "stage 1 of 2: wood, adapt, 25%, 9,000 tokens/s" in text and text.index(
        "0 units"
    ) < text.index("1 units")
    assert WATCHED not in os.environ
