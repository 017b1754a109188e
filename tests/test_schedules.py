"""Learning-rate schedules: their values over a phase, a stage and the stream, and what a method
sees.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, get_args

import pytest
import torch

from benchmark.errors import UserError
from benchmark.instruments.conformance import TinyRuns
from benchmark.settings.schedules import (
    SCHEDULES,
    Extent,
    Piece,
    Schedule,
    ScheduleName,
    find_schedule,
)
from benchmark.training.declaration import make_stage_keys
from benchmark.training.method import LifelongMethod, Phase

WRONG: Any = "run"
RISE_HOLD_FALL = (
    Piece(0.25, 1.0),
    Piece(0.5, 0.4, "cosine"),
    Piece(0.75, 0.4),
    Piece(1.0, 0.1, "exponential"),
)


@pytest.mark.parametrize(
    ("spent", "level"),
    [
        (0.0, 0.0),
        (0.125, 0.5),
        (0.25, 1.0),
        (0.375, 0.7),
        (0.6, 0.4),
        (0.875, 0.2),
        (1.0, 0.1),
        (1.2, 0.1),
    ],
)
def test_pieces_follow_each_other(spent: float, level: float) -> None:
    """Oracle: by hand, with the formulas of `Piece`. Halfway, "exponential" is at the geometric
    mean.
    """
    assert Schedule(RISE_HOLD_FALL).at(spent) == pytest.approx(level)


def test_every_name_has_a_schedule() -> None:
    """Oracle: the names that a suite may give. Without warm-up each schedule begins at its peak,
    and with any warm-up its last value is finite.
    """
    assert set(SCHEDULES) == set(get_args(ScheduleName))
    for name in SCHEDULES:
        assert find_schedule(name, 0.0).at(0.0) == 1.0
        assert all(math.isfinite(find_schedule(name, warmup).at(1.0)) for warmup in (0.0, 0.9, 1.0))


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Schedule(()), "the last one be 1"),
        (
            lambda: Schedule((Piece(0.5, 1.0), Piece(0.4, 1.0), Piece(1.0, 0.0))),
            r"\[0.5, 0.4, 1.0\]",
        ),
        (lambda: Schedule((Piece(1.0, 1.0),), over=WRONG), "over 'run': .*phase, stage, stream"),
        (lambda: Schedule((Piece(1.0, 1.0, WRONG),)), "linear, cosine"),
        (lambda: Schedule((Piece(1.0, None),)), "inverse_sqrt"),
        (lambda: find_schedule(WRONG, 0.1), "'run': .*linear"),
    ],
)
def test_what_is_no_schedule_is_refused(build: Any, message: str) -> None:
    """Oracle: the message names the value and the choices."""
    with pytest.raises(UserError, match=message):
        build()


@dataclass
class OverTheStream(LifelongMethod):
    """Naive with another schedule. It notes each step's rate and the elapsed shares of phase,
    stage and stream.
    """

    over: Extent = "stream"
    seen: list = field(default_factory=list, init=False)
    rates: list = field(default_factory=list, init=False)
    state = ("seen", "rates")

    def signature(self, stage):
        return {"over": self.over}

    def phases(self, stage):
        schedule = Schedule((Piece(0.5, 1.0), Piece(1.0, 0.0)), over=self.over)
        return [Phase("a", 0.4, schedule=schedule), Phase("b", 0.6, schedule=schedule)]

    def adjust_gradients(self, learner, memory):
        elapsed = learner.elapsed
        self.seen = [*self.seen, [elapsed.phase, elapsed.stage, elapsed.stream]]
        self.rates = [*self.rates, learner.learning_rate]


@pytest.mark.parametrize(("over", "steps"), [("stream", 30), ("stage", 10)])
def test_one_schedule_over_stage_and_stream(
    over: Extent, steps: int, tiny_folder, learning_rates
) -> None:
    """Oracle: by hand: each of 30 equal steps has the rate at its middle, on a triangle over all 30
    or over each ten. Two phases per stage change nothing. The method sees these middles
    and rates.
    """
    tiny = TinyRuns("over", lambda name, options: OverTheStream(over), tiny_folder)
    run = tiny.make_run(tiny.make_config(), "run")
    run.train()
    middles = [(i % steps + 0.5) / steps for i in range(30)]
    assert learning_rates == pytest.approx(
        [3e-3 * min(2 * share, 2 - 2 * share) for share in middles]
    )
    noted = torch.load(run.store.stage_folder(run.keys[-1]) / "method.pt", weights_only=True)
    assert noted["rates"] == learning_rates
    seen = noted["seen"]
    assert [stream for _, _, stream in seen] == pytest.approx([(i + 0.5) / 30 for i in range(30)])
    assert [stage for _, stage, _ in seen] == pytest.approx([(i + 0.5) / 10 for i in range(10)] * 3)
    ends = [(i + 0.5) / 4 for i in range(4)] + [(i + 0.5) / 6 for i in range(6)]
    assert [phase for phase, _, _ in seen] == pytest.approx(ends * 3)


def test_stages_depend_on_the_stream_where_a_rate_does(tiny_folder) -> None:
    """Oracle: the rule of stage keys: a stage has another key in a longer stream only if its
    schedule depends on the stream's length.
    """
    config = TinyRuns("over", lambda name, options: OverTheStream(), tiny_folder).make_config()
    shorter = config.model_copy(update={"domains": config.domains[:2]})
    cases: tuple[tuple[Extent, bool], ...] = (("stream", False), ("stage", True))
    for over, same in cases:
        keys = [
            make_stage_keys(run, OverTheStream(over), ["a", "b", "c"][: len(run.domains)])
            for run in (config, shorter)
        ]
        assert (keys[0][0] == keys[1][0]) == same
