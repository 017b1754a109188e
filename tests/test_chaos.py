"""A small `make chaos`: kills of a run (tests/TRIALS.md)."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest

import methods
from benchmark.instruments.conformance import TinyRuns
from tests.support.kills import Kills

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forks, and looks into /proc")


def test_a_run_that_is_killed_comes_to_the_same(tmp_path: Path) -> None:
    """Oracle: an undisturbed run: the same models, tokens and tables bit for bit, the same records
    except for times, and the same names of files. ELLE grows and has two phases.
    """
    kills, different = Kills(tmp_path, "elle").disturb(random.Random(9))
    # one kill leaves an unfinished checkpoint in a stage's folder, others come between two of them
    assert "sync runs/stages/*/.checkpoint.pt.*" in kills
    assert not different


def test_a_checkpoint_that_a_kill_left_beside_its_done_stage_is_removed(
    tiny_folder: Path, monkeypatch
) -> None:
    """Oracle: an undisturbed stage, whose folder has no checkpoint once the stage is done."""
    unlink = Path.unlink

    def killed(path: Path, missing_ok: bool = False) -> None:
        if path.name == "checkpoint.pt":
            raise KeyboardInterrupt  # like a kill: all of the stage but this is done
        unlink(path, missing_ok)

    tiny = TinyRuns("naive", methods.build, tiny_folder)
    config = tiny.make_config(checkpoint_seconds=1e-9)  # one after each step
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(Path, "unlink", killed)
        tiny.make_run(config, "left").train()
    run = tiny.make_run(config, "left")
    left = run.store.stage_folder(run.keys[0]) / "checkpoint.pt"
    assert run.store.is_stage_done(run.keys[0]) and left.exists()
    run.train(last_stage=0)
    assert not left.exists()
