"""`make chaos` in small: kills of a run, of several side by side, and what kills cost (docs/reliability.md)."""

from __future__ import annotations

import json
import random
import sys
import time
from pathlib import Path

import pytest

import methods
from benchmark.instruments.tiny_runs import Lab
from tests.support import goodput, many_runs
from tests.support.goodput import SAVE, START, STEP, Goodput, measure
from tests.support.kills import Kills
from tests.support.many_runs import ManyRuns
from tests.tools import chaos

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forks, and looks for processes in /proc")
INTERVAL = 600.0  # seconds of train time between checkpoints, the default


def test_a_run_that_is_killed_comes_to_the_same(tmp_path: Path) -> None:
    """Oracle: an undisturbed run's models, tokens, records and tables, bit for bit."""
    found = Kills(tmp_path, "er").disturb(2, random.Random(1))
    assert sum(found["kills"].values()) == 2 and not found["different"]


def test_any_piece_of_a_kind_may_be_hit_and_the_tally_says_which_kinds_were_not(
    tmp_path: Path, monkeypatch, capsys
) -> None:
    """Oracle: the last of the six steps of the last stage is drawn; kinds of the tally, counted by hand."""
    kills, last = Kills(tmp_path, "er", whole=False), "step of adapt, stage 2"
    monkeypatch.setattr(random.Random, "choice", lambda self, places: max(places))
    known = {kind: 1 for kind, _ in kills.pieces if kind != last}
    found = kills.disturb(1, random.Random(1), known)
    assert found["kills"] == {last: 1} and not found["different"]
    happened = [json.loads(line) for line in (tmp_path / "pieces").read_text().splitlines()]
    begun = [kind for what, kind, _ in happened[: [what for what, *_ in happened].index("hit")] if what == "begin"]
    assert begun.count(last) == 6
    chaos._say([{"commit": "c", "seed": 0, "method": "er", **found, "kinds": ["report", last]}])
    assert "1 of 2 pairs of a method and a kind were hit; never hit: ['report']" in capsys.readouterr().out


def test_a_tally_says_what_no_kill_hit_and_goes_on_with_it(tmp_path: Path, monkeypatch, capsys) -> None:
    """Oracle: by hand. What two methods have in common is two pairs; what another run of a method hit is hit."""
    run = {"commit": "c", "seed": 0, "charged": 1, "taken": 1, "different": []}
    phases = ["step of adapt, stage 1", "step of adapt, stage 2"]
    tally = [
        {**run, "method": "er", "kinds": ["report", *phases], "kills": {phases[0]: 1, "report": 2}},
        {**run, "method": "er", "kinds": ["report", *phases], "kills": {phases[1]: 1}},
        {**run, "method": "elle", "kinds": ["report", *phases, "step of recover, stage 2"], "kills": {phases[0]: 1}},
    ]
    file = tmp_path / "tally"
    file.write_text("".join(json.dumps(one) + "\n" for one in tally))
    monkeypatch.setattr(sys, "argv", ["chaos", "kills", "--list-missing", "--tally", str(file)])
    assert chaos.main() == 0
    said = capsys.readouterr().out
    assert "4 of 7 pairs of a method and a kind were hit; never hit: ['step of recover, stage 2']\n" in said
    assert "steps of each phase of each method: 3 of 5 hit\n" in said
    assert said.endswith("  elle, missing: ['report', 'step of adapt, stage 2', 'step of recover, stage 2']\n")
    names = ["er", "elle"]
    assert chaos._turn(tally[:2], names, None) == "elle"  # of which nothing is known
    assert chaos._turn([*tally, tally[2], tally[2]], names, None) == "elle"  # er, with fewer runs, misses nothing
    assert chaos._turn(tally, ["er"], None) is None
    assert chaos._turn([*tally, tally[2]], names, 7) == "er"  # the fewest runs
    assert chaos._turn(tally, names, 5) is None  # there were five kills


def test_a_method_is_run_until_all_of_its_kinds_were_hit(tmp_path: Path, monkeypatch, capsys) -> None:
    """Oracle: a made-up method of nine kinds, of which a run hits seven, what was not hit first."""

    class MadeUp:
        def __init__(self, *_: object) -> None:
            pass

        def disturb(self, kills: int, chosen: random.Random, known: dict[str, int], _: object) -> dict[str, object]:
            kinds = [f"kind {number}" for number in range(9)]
            hit = sorted(kinds, key=lambda kind: (known.get(kind, 0), chosen.random()))[:kills]
            return {"kills": dict.fromkeys(hit, 1), "kinds": kinds, "charged": 1, "taken": 1, "different": []}

    monkeypatch.setattr("tests.support.kills.Kills", MadeUp)
    assert chaos.kills(None, 7, 0, ["er"], 60.0, tmp_path / "tally") == 0
    said = capsys.readouterr().out
    assert "14 kills of 2 runs of 1 methods, 0 differ" in said and "9 of 9 pairs" in said
    assert chaos.kills(None, 7, 0, ["er", "elle"], 0.0, tmp_path / "tally") == 1  # no time is left
    assert "not finished, elle was next" in capsys.readouterr().out


def test_a_checkpoint_that_a_kill_left_beside_its_done_stage_is_removed(tmp_path: Path, monkeypatch) -> None:
    """Oracle: the folder of a stage that nobody disturbed, which has none."""
    unlink = Path.unlink

    def killed(path: Path, missing_ok: bool = False) -> None:
        if path.name == "checkpoint.pt":
            raise KeyboardInterrupt  # as good as a kill, as the stage is over but for this
        unlink(path, missing_ok)

    lab = Lab("naive", methods.build, tmp_path)
    config = lab.config(checkpoint_seconds=1e-9)  # one after each step
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(Path, "unlink", killed)
        lab.run(config, "left").train()
    run = lab.run(config, "left")
    left = run.store.stage(run.keys[0]) / "checkpoint.pt"
    assert run.store.stage_done(run.keys[0]) and left.exists()
    run.train(last_stage=0)
    assert not left.exists()


def test_runs_side_by_side_of_which_one_is_killed_are_each_done_once(tmp_path: Path, monkeypatch) -> None:
    """Oracles: the runs that were asked for, the three stages of each seed, and the weights of undisturbed runs."""
    monkeypatch.setattr(many_runs, "COMPARED", 1)
    many = ManyRuns(tmp_path, runs=4, share=0.25, seed=1)
    assert many.disturb(seconds=300)
    found = many.found()
    assert (found["runs"], found["done"], found["stages"], found["kills"]) == (4, 4, 6, 1) and not found["wrong"]


@pytest.mark.parametrize(
    ("hours", "share", "status"), [(5.0, 0.971, 0), (5.0, 0.969, 1), (24.0, 0.969, 1), (3.2, 0.966, 0)]
)
def test_a_goodput_below_the_target_fails(hours: float, share: float, status: int, monkeypatch, capsys) -> None:
    """Oracle: the target of docs/reliability.md, 97% where kills come every five hours or less often."""
    monkeypatch.setattr(goodput, "measure", lambda *_: Goodput(10, share * 1e5, 1e5, 200.0))
    assert goodput.main(hours, 1.0) == status
    assert ("below 97%" in capsys.readouterr().err) == bool(status)


def test_a_kill_costs_an_interval_of_checkpoints_at_most(tmp_path: Path) -> None:
    """Oracle: the default interval, and what steps, checkpoints and starts take on the clocks of the simulation."""
    began = time.perf_counter()
    found = measure(tmp_path / "run", hours=1.0, days=0.05, chosen=random.Random(4))
    real = time.perf_counter() - began
    assert found.kills >= 1 and found.charged == pytest.approx(2 * 0.05 * 86400, abs=2 * STEP)
    assert 0 < found.recorded <= found.kills * (INTERVAL + STEP)
    checkpoints = SAVE * (found.charged / INTERVAL + found.kills)
    most = found.kills * (INTERVAL + STEP) + START * (found.kills + 1) + checkpoints + real
    assert found.recorded < found.spent - found.charged <= most
