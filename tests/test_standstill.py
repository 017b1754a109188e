"""A process that is stopped is not charged for it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from benchmark.jobs.known_stages import recorded
from benchmark.jobs.status import jumped
from benchmark.settings.suite import Budget
from benchmark.settings.units import Work
from benchmark.training import clock as watching
from benchmark.training.clock import Clock, ClockReading, CoreMeter, CoreTime, Standstill, contention
from benchmark.training.processes import World

ROOT = Path(__file__).parent.parent


class Readings:
    """What the clocks say at one look after the other: seconds, those computed, cores kept busy by all."""

    def __init__(self, *looks: tuple[float, float, float]) -> None:
        self._readings, self.looks_at_cores = iter(looks), 0

    def clocks(self) -> ClockReading:
        self._now = next(self._readings)
        return ClockReading(*self._now[:2])

    def cores(self) -> CoreTime:
        self.looks_at_cores += 1
        return CoreTime(*self._now)


@pytest.mark.parametrize(
    ("looks", "lost"),
    [
        (((0, 0, 0), (0.5, 0.4, 1), (1.0, 0.9, 2)), 0.0),  # computes
        (((0, 0, 0), (2.4, 0.0, 5)), 0.0),  # short
        (((0, 0, 0), (60.0, 58.0, 60)), 0.0),  # one long operation held the lock of the interpreter
        (((0, 0, 0), (60.0, 7.0, 60)), 0.0),  # an eighth of a core
        (((0, 0, 0), (100.5, 0.3, 201)), 100.0),  # stopped, and another had both cores
        (((0, 0, 0), (10.5, 0, 0), (11.0, 0.5, 0), (31.5, 0.6, 0)), 30.0),  # twice
    ],
)
def test_what_counts_as_standing_still(looks: tuple[tuple[float, float, float], ...], lost: float) -> None:
    """Oracle: seconds counted by hand; up to a tick before each stop the process ran."""
    readings = Readings(*looks)
    watch = Standstill(readings.clocks, readings.cores)
    found = [watch.lost() for _ in looks[1:]][-1]
    assert found.wall == pytest.approx(lost)
    assert found.busy == pytest.approx(2 * lost if looks[-1][2] == 201 else 0)


def test_cores_are_looked_at_with_a_tick_and_after_a_stop_alone() -> None:
    """Oracle: counted by hand: once at first, with the tick, and after the stop. Two cores are busy all the time, so
    200 s of them in the 100 s that are lost, although they were last looked at half a second before the stop."""
    steps = [(0.01 * step, 0.01 * step, 0.02 * step) for step in range(100)]
    readings = Readings(*steps, (1.0, 1.0, 2.0), (1.5, 1.5, 3.0), (102.0, 1.6, 204.0), (102.1, 1.7, 204.2))
    watch = Standstill(readings.clocks, readings.cores)
    for _ in steps[1:]:
        assert watch.lost() == CoreTime()
    assert readings.looks_at_cores == 1
    watch.lost(tick=True)
    watch.lost()
    assert readings.looks_at_cores == 2
    lost = watch.lost()
    assert lost == watch.lost() and readings.looks_at_cores == 3
    assert [lost.wall, lost.busy] == pytest.approx([100.0, 200.0])


class Lost:
    """Stands for the watch: seconds lost so far, told by a test."""

    def __init__(self) -> None:
        self.seconds, self.now = 0.0, 100.0

    def lost(self) -> CoreTime:
        return CoreTime(wall=self.seconds, cpu=0.0, busy=2 * self.seconds)


@pytest.fixture
def told(monkeypatch) -> Lost:
    lost = Lost()
    monkeypatch.setattr("benchmark.training.clock.standstill", lambda: lost)
    monkeypatch.setattr(time, "perf_counter", lambda: lost.now)
    return lost


def test_the_clock_charges_none_of_it(told: Lost) -> None:
    """Oracle: seconds counted by hand; what was lost while the clock was paused was never charged."""
    clock = Clock(Budget(unit="seconds", amount=10.0), 0, World(0, 1, torch.device("cpu")))
    clock.start()
    told.now += 3.0
    clock.count(Work(steps=1))
    told.now, told.seconds = told.now + 3601.0, told.seconds + 3600.0
    clock.count(Work(steps=1))
    assert clock.spent == pytest.approx(4.0)
    clock.pause()
    told.now, told.seconds = told.now + 50.0, told.seconds + 50.0
    clock.start()
    told.now += 1.0
    clock.pause()
    clock.count(Work())
    assert clock.spent == pytest.approx(5.0) and clock.charged()["steps"] == 2
    assert clock.cores.total.wall == pytest.approx(5.0)
    assert clock.cores.total.stood_still == pytest.approx(3600.0)


def test_jumps_of_the_time_of_day_are_told_and_not_charged(told: Lost, monkeypatch, caplog) -> None:
    """Oracle: seconds counted by hand: the machine slept for an hour while the clock ran, which the clock of budgets
    does not see (clock_gettime(2): CLOCK_MONOTONIC); it was set back by 50 s while that was paused; 0.9 s are none."""
    ahead = 1e9
    monkeypatch.setattr(time, "time", lambda: told.now + ahead)
    clock = Clock(Budget(unit="seconds", amount=10.0), 0, World(0, 1, torch.device("cpu")))
    clock.start()
    told.now, ahead = told.now + 4.0, ahead + 3600.0
    clock.pause()
    ahead -= 50.0
    clock.start()
    told.now, ahead = told.now + 1.0, ahead + 0.9
    clock.pause()
    clock.count(Work())
    assert clock.spent == pytest.approx(5.0) and clock.cores.total.wall == pytest.approx(5.0)
    assert clock.cores.total.jumped == pytest.approx(3650.0)
    assert [record.args for record in caplog.records] == [(pytest.approx(3600.0),), (pytest.approx(-50.0),)]
    cores = contention(clock.cores, World(0, 1, torch.device("cpu")))
    begun = {"domain": "wb", "provenance": {"hardware": {"count": 1, "device": "CPU"}}}
    stages = [recorded(begun, {"kind": "done", "cores": cores}), recorded(begun, {})]
    [line] = jumped([SimpleNamespace(config=SimpleNamespace(label="ER, seed 0"), stages=stages)])  # type: ignore
    assert "ER, seed 0: in wb" in line and "by 3,650 s" in line


class OtherIsStopped(World):
    """Two processes, of which the other was stopped for 60 s, for which this one waited."""

    def maximum(self, *values: float) -> list[float]:
        seconds, still, alarm = values
        return [seconds, max(still, 60.0), alarm]


def test_waiting_for_a_process_that_is_stopped_is_not_charged(told: Lost) -> None:
    """Oracle: 61 s passed here, 60 of them while the other stood still."""
    clock = Clock(Budget(unit="seconds", amount=100.0), 0, OtherIsStopped(0, 2, torch.device("cpu")))
    clock.start()
    told.now += 61.0
    clock.count(Work(steps=1))
    assert clock.spent == pytest.approx(1.0)


CHILD = """
import time
from benchmark.training.clock import standstill
watch = standstill()
print("ready", flush=True)
end = time.monotonic() + 60
while (lost := watch.lost().wall) < 2.8 and time.monotonic() < end:  # a busy machine may keep it waiting before
    sum(range(10**5))
print(lost)
"""


def test_a_stopped_process_notices() -> None:
    """Oracle: the signals, 3.5 s apart, of which up to half a second may be taken for work."""
    if not hasattr(time, "pthread_getcpuclockid"):
        pytest.skip("this system does not say what a thread has computed")
    child = subprocess.Popen([sys.executable, "-c", CHILD], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert child.stdout and child.stdout.readline() == "ready\n"
    os.kill(child.pid, signal.SIGSTOP)
    time.sleep(3.5)
    os.kill(child.pid, signal.SIGCONT)
    assert float(child.communicate(timeout=90)[0]) > 2.8


def test_a_meter_without_a_watch_counts_all() -> None:
    """Oracle: the class's own fields: nothing is lost."""
    meter = CoreMeter()
    meter.start()
    meter.pause()
    assert meter.total.stood_still == 0.0 and meter.total.wall >= 0.0
    assert watching.standstill() is watching.standstill()
