"""The time for which a process is stopped (suspended) is not charged."""

from __future__ import annotations

import time

import pytest
import torch

from benchmark.settings.suite import Budget
from benchmark.settings.units import Work
from benchmark.training.clock import Clock
from benchmark.training.processes import World

CPU = torch.device("cpu")


class Seconds:
    """Clocks that a test moves by seconds of wall time and seconds of computing."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = self.computed = 100.0
        monkeypatch.setattr(time, "perf_counter", lambda: self.now)
        monkeypatch.setattr(time, "process_time", lambda: self.computed)

    def __call__(self, wall: float, computed: float) -> None:
        self.now, self.computed = self.now + wall, self.computed + computed


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> Seconds:
    return Seconds(monkeypatch)


@pytest.mark.parametrize(
    ("wall", "computed", "charged"),
    [
        (1.9, 0.0, 1.9),  # short, as the system's own stops are
        (60.0, 6.1, 60.0),  # a tenth of a core
        (60.0, 5.9, 0.0),  # stopped
    ],
)
def test_what_counts_as_a_stop(
    wall: float, computed: float, charged: float, passes: Seconds
) -> None:
    """Oracle: the rule: a stop is more than two seconds between two readings, of which the process
    computed less than a tenth.
    """
    clock = Clock(Budget(unit="seconds", amount=10.0), 0, World(0, 1, CPU))
    clock.start()
    passes(wall, computed)
    clock.count(Work(steps=1))
    assert clock.spent == pytest.approx(charged)


def test_a_driver_that_lets_the_process_sleep_stops_no_clock(passes: Seconds) -> None:
    """Oracle: all 60 s are charged, although the process slept. Else a budget would never end."""
    clock = Clock(Budget(unit="seconds", amount=10.0), 0, World(0, 1, torch.device("mps")))
    clock._world = World(0, 1, CPU)
    clock.start()
    passes(60.0, 0.0)
    clock.count(Work(steps=1))
    assert clock.spent == pytest.approx(60.0)


def test_a_stop_is_in_no_core_time(passes: Seconds) -> None:
    """Oracle: seconds counted by hand. Stops and pauses are in neither charged nor core time."""
    clock = Clock(Budget(unit="seconds", amount=10.0), 0, World(0, 1, CPU))
    clock.start()
    for wall, computed in ((3.0, 3.0), (3600.0, 0.0), (1.0, 1.0)):
        passes(wall, computed)
        clock.count(Work(steps=1))
    clock.pause()
    passes(50.0, 0.0)
    clock.start()
    passes(1.0, 1.0)
    clock.pause()
    clock.count(Work())
    assert clock.spent == pytest.approx(5.0) and clock.charged["steps"] == 3
    assert [clock.cores.wall, clock.cores.cpu] == pytest.approx([5.0, 5.0])
    assert clock.cores.stood_still == pytest.approx(3600.0)


class OtherIsStopped(World):
    """Two processes. The other was stopped for 60 s, and this one waited for it."""

    def find_maximum(self, *values: float) -> list[float]:
        seconds, still, alarm = values
        return [seconds, max(still, 60.0), alarm]


def test_waiting_for_a_process_that_is_stopped_is_not_charged(passes: Seconds) -> None:
    """Oracle: 61 s passed here, 60 of them while the other stood still."""
    clock = Clock(Budget(unit="seconds", amount=100.0), 0, OtherIsStopped(0, 2, CPU))
    clock.start()
    passes(61.0, 61.0)
    clock.count(Work(steps=1))
    assert clock.spent == pytest.approx(1.0)
