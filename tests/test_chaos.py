"""`make chaos` in small: kills of a run, and of several side by side (docs/reliability.md)."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

import pytest

import methods
from benchmark.instruments.conformance import TinyRuns
from tests.support import many_runs
from tests.support.kills import Kills
from tests.support.many_runs import ManyRuns
from tests.tools import chaos

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forks, and looks for processes in /proc")


def test_a_run_that_is_killed_comes_to_the_same(tmp_path: Path) -> None:
    """Oracle: an undisturbed run's models, tokens, records and tables, bit for bit."""
    outcome = Kills(tmp_path, "er").disturb(2, random.Random(1))
    assert sum(outcome["kills"].values()) == 2 and not outcome["different"]


def test_any_piece_of_a_kind_may_be_hit(tmp_path: Path, monkeypatch) -> None:
    """Oracle: the last of the six steps of the last stage is drawn."""
    kills, last = Kills(tmp_path, "er", whole=False), "step of adapt, stage 2"
    monkeypatch.setattr(random.Random, "choice", lambda self, places: max(places))
    known = {kind: 1 for kind, _ in kills.pieces if kind != last}
    outcome = kills.disturb(1, random.Random(1), known)
    assert outcome["kills"] == {last: 1} and not outcome["different"]
    happened = [json.loads(line) for line in (tmp_path / "pieces").read_text().splitlines()]
    begun = [kind for what, kind, _ in happened[: [what for what, *_ in happened].index("hit")] if what == "begin"]
    assert begun.count(last) == 6


def test_a_method_is_run_until_all_of_its_kinds_were_hit(monkeypatch, capsys) -> None:
    """Oracle: a made-up method of nine kinds, of which a run hits seven, what was not hit first."""

    class MadeUp:
        def __init__(self, *_: object) -> None:
            pass

        def disturb(self, kills: int, chosen: random.Random, known: dict[str, int]) -> dict[str, object]:
            kinds = [f"kind {number}" for number in range(9)]
            hit = sorted(kinds, key=lambda kind: (known.get(kind, 0), chosen.random()))[:kills]
            return {"kills": dict.fromkeys(hit, 1), "kinds": kinds, "different": []}

    monkeypatch.setattr(chaos, "Kills", MadeUp)
    assert chaos.kills(None, 0, ["er"]) == 0
    assert "14 kills of 2 runs of 1 methods, 0 differ" in capsys.readouterr().out


def test_a_checkpoint_that_a_kill_left_beside_its_done_stage_is_removed(tmp_path: Path, monkeypatch) -> None:
    """Oracle: the folder of a stage that nobody disturbed, which has none."""
    unlink = Path.unlink

    def killed(path: Path, missing_ok: bool = False) -> None:
        if path.name == "checkpoint.pt":
            raise KeyboardInterrupt  # as good as a kill, as the stage is over but for this
        unlink(path, missing_ok)

    tiny = TinyRuns("naive", methods.build, tmp_path)
    config = tiny.config(checkpoint_seconds=1e-9)  # one after each step
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(Path, "unlink", killed)
        tiny.run(config, "left").train()
    run = tiny.run(config, "left")
    left = run.store.stage(run.keys[0]) / "checkpoint.pt"
    assert run.store.stage_done(run.keys[0]) and left.exists()
    run.train(last_stage=0)
    assert not left.exists()


def test_runs_side_by_side_of_which_one_is_killed_are_each_done_once(tmp_path: Path, monkeypatch) -> None:
    """Oracles: the runs that were asked for, the three stages of each seed, and the weights of undisturbed runs."""
    monkeypatch.setattr(many_runs, "COMPARED", 1)
    many = ManyRuns(tmp_path, runs=4, share=0.25, seed=1)
    assert many.disturb(seconds=300)
    outcome = many.outcome()
    assert (outcome["runs"], outcome["done"], outcome["stages"], outcome["kills"]) == (4, 4, 6, 1) and not outcome[
        "wrong"
    ]
