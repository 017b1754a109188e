"""The clock, the learning rate and the loop: what is charged, when it stops, what a stop leaves."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

import methods
from benchmark import cancel
from benchmark.instruments.conformance import ALONE, TinyRuns
from benchmark.settings.schedules import ScheduleName, find_schedule
from benchmark.settings.suite import Budget, pick_for_stage
from benchmark.settings.units import Work
from benchmark.training.clock import Clock
from benchmark.training.declaration import make_stage_keys
from benchmark.training.method import LifelongMethod, Phase
from benchmark.training.processes import World
from benchmark.training.stage import NonFiniteLoss
from tests.support.record_lines import read_lines, read_stage_lines


class FakeTime:
    """A clock whose seconds pass only when a test says so."""

    def __init__(self, monkeypatch) -> None:
        self.now = 100.0
        for clock in (
            "perf_counter",
            "process_time",
        ):  # CPU time equals wall time, so the process never seems stopped
            monkeypatch.setattr(time, clock, lambda: self.now)


class FirstIsFurther(World):
    """The first of two processes has a checkpoint of step 7."""

    def broadcast(self, value: Any) -> Any:
        return (0, 7) if value is None else value


class SlowerOther(World):
    """Two processes, of which the other has always spent 5 s more."""

    def find_maximum(self, *values: float) -> list[float]:
        return [values[0] + 5.0, *values[1:]]


def test_only_time_between_start_and_pause_is_charged(monkeypatch) -> None:
    """Oracle: seconds counted by hand."""
    clock, fake = Clock(Budget(unit="seconds", amount=10.0), 0, ALONE), FakeTime(monkeypatch)
    clock.start()
    fake.now += 2.0
    clock.pause()
    fake.now += 50.0  # evaluation, say
    clock.start()
    fake.now += 1.0
    assert clock.count(Work(steps=1, tokens=8)) == 0
    assert (clock.spent, clock.fraction) == (3.0, 0.3)
    assert clock.charged == {"seconds": 3.0, "steps": 1, "tokens": 8, "flops": 0, "reference": 0}


def test_the_slowest_process_decides(monkeypatch) -> None:
    """Oracle: by hand: all spend the slowest process's 1 + 5 s, and learn the gravest alarm."""
    clock, fake = (
        Clock(Budget(unit="seconds", amount=10.0), 0, SlowerOther(0, 2, torch.device("cpu"))),
        None,
    )
    fake = FakeTime(monkeypatch)
    clock.start()
    fake.now += 1.0
    assert clock.count(Work(steps=1), alarm=2) == 2
    assert clock.spent == 6.0


def test_learning_rate() -> None:
    """Oracle: the formulas in schedules.py's docstrings, by hand, for a warm-up of 8%."""
    cases: list[tuple[ScheduleName, float, float]] = [
        *(
            ("linear", 0.04, 0.5),
            ("linear", 0.54, 0.5),
            ("inverse_sqrt", 0.32, 0.5),
            ("inverse_sqrt", 0.02, 0.25),
        ),
        *(
            ("cosine", 0.54, 0.55),
            ("cosine", 1.0, 0.1),
            ("wsd", 0.5, 1.0),
            ("wsd", 0.9, 0.5),
            ("constant", 1.0, 1.0),
        ),
    ]
    for schedule, done, expected in cases:
        assert find_schedule(schedule, 0.08).at(done) == pytest.approx(expected), (schedule, done)


def test_a_seconds_budget_ends_with_the_step_that_exceeds_it(tiny_folder, monkeypatch) -> None:
    """Oracle: the clock advances 0.7 s per step, so step 15 is the first to exceed 10 s. Evaluation
    does not move the clock.
    """
    fake = FakeTime(monkeypatch)
    count = Clock.count

    def one_step(self, work, alarm=0):
        fake.now += 0.7 * work.steps
        return count(self, work, alarm)

    monkeypatch.setattr(Clock, "count", one_step)
    tiny = TinyRuns("er", methods.build, tiny_folder)
    config = tiny.make_config()
    config = config.model_copy(update={"budget": Budget(unit="seconds", amount=10.0)})
    run = tiny.make_run(config, "run")
    run.train(last_stage=0)
    lines = read_stage_lines(run.store.stage_file(run.keys[0]))
    done = next(line for line in lines if line["kind"] == "done")
    assert done["charged"]["steps"] == 15
    assert done["charged"]["seconds"] == pytest.approx(15 * 0.7)
    # evaluations at half of the budget (step 8, 5.6 s of 10) and at the end
    assert [line["step"] for line in lines if line["kind"] == "evaluation"] == [8, 15]


def test_a_stop_loses_no_time_of_the_device(tiny_folder, monkeypatch) -> None:
    """Oracle: by hand: a step takes 0.25 s on a device. The clock shows this time only after the
    process has waited for the device. A run that is stopped after its third step, and every
    evaluation, have the time of all steps so far.
    """
    fake, queue = FakeTime(monkeypatch), [0.0]
    count = Clock.count

    def one_step(self, work, alarm=0):
        queue[0] += 0.25 * work.steps
        return count(self, work, alarm)

    def finish(self):
        fake.now += queue[0]
        queue[0] = 0.0

    monkeypatch.setattr(Clock, "count", one_step)
    monkeypatch.setattr(World, "synchronize", finish)
    tiny = TinyRuns("naive", methods.build, tiny_folder)
    calls = iter(range(100))
    tiny.make_run(tiny.make_config(), "text")  # prepares the text, which also looks for a stop
    run = tiny.make_run(tiny.make_config(), "run")
    with pytest.raises(cancel.Stopped), cancel.heed(lambda: next(calls) == 2):
        run.train(last_stage=0)
    saved = torch.load(run.store.stage_folder(run.keys[0]) / "checkpoint.pt", weights_only=True)
    assert (saved["position"]["step"], saved["charged"]["seconds"]) == (3, 0.75)
    run.train(last_stage=0)
    lines = read_stage_lines(run.store.stage_file(run.keys[0]))
    charged = [
        (line["step"], line["charged"]["seconds"]) for line in lines if line["kind"] == "evaluation"
    ]
    assert charged == [(5, 1.25), (10, 2.5)]


@dataclass
class Diverges(LifelongMethod):
    """Its loss is not finite from the fourth step of the first stage."""

    state = ("calls",)
    calls: int = field(default=0, init=False)

    def loss(self, learner, batch):
        self.calls += 1
        return super().loss(learner, batch) * (math.nan if self.calls >= 4 else 1.0)


def test_divergence_names_the_place_and_keeps_the_checkpoint(tiny_folder) -> None:
    """Oracle: by hand: the loss of step 4 is the first that is not finite. The next step notices
    that, the error names step 4, and the checkpoint is of step 3.
    """
    tiny = TinyRuns("diverges", lambda name, options: Diverges(), tiny_folder)
    run = tiny.make_run(tiny.make_config(checkpoint_seconds=1e-9), "run")
    with pytest.raises(
        NonFiniteLoss, match=r"stage 0 \(json\) .*step 4 .*phase adapt.*max_grad_norm"
    ):
        run.train()
    lines = read_lines(run.store.run_file(run.config))
    assert lines[-1]["kind"] == "failed" and "NonFiniteLoss" in lines[-1]["error"]
    saved = torch.load(run.store.stage_folder(run.keys[0]) / "checkpoint.pt", weights_only=True)
    assert saved["position"]["step"] == 3
    assert all(tensor.isfinite().all() for tensor in saved["model"].values())


@pytest.mark.parametrize("method", ["ewc", "elle"])
def test_a_budget_shorter_than_the_phases(method: str, tiny_folder, learning_rates) -> None:
    """Oracle: the rule: one step per phase, whatever the budget, at a rate not above the peak."""
    tiny = TinyRuns(method, methods.build, tiny_folder)
    config = tiny.make_config().model_copy(update={"budget": Budget(unit="steps", amount=1.0)})
    run = tiny.make_run(config, "run")
    run.train()
    done = [
        line
        for line in read_stage_lines(run.store.stage_file(run.keys[1]))
        if line["kind"] == "done"
    ]
    assert [phase["steps"] for phase in done[0]["phases"]] == [1, 1]
    peak = pick_for_stage(config.training.learning_rate, 1)
    assert learning_rates and all(rate <= peak for rate in learning_rates)


def test_a_process_that_sees_another_checkpoint_is_told(tiny_folder) -> None:
    """By hand: process 0 goes on from step 7, but this process has no checkpoint. The error must
    name both, because processes must not train on from different steps.
    """
    tiny = TinyRuns("er", methods.build, tiny_folder)
    run = tiny.make_run(tiny.make_config(), "late")
    run.world = FirstIsFurther(0, 1, torch.device("cpu"))
    with pytest.raises(RuntimeError, match=r"process 0 .*None.*\(0, 7\)"):
        run.train()


def test_a_method_of_another_version_shares_only_naives_stage(tiny_folder, monkeypatch) -> None:
    """Oracle: the rule: a new version changes the keys of stages that the method's code decides,
    but not of the first stage, which ER shares with Naive.
    """
    config = TinyRuns("er", methods.build, tiny_folder).make_config()
    texts = ["a", "b", "c"]
    keys = [stage.key for stage in make_stage_keys(config, methods.build("er"), texts)]
    monkeypatch.setattr(type(methods.build("er")), "version", 2)
    again = [stage.key for stage in make_stage_keys(config, methods.build("er"), texts)]
    assert keys[0] == again[0] and not set(keys[1:]) & set(again[1:])


@dataclass
class Patient(LifelongMethod):
    def phases(self, stage):
        return [Phase("a", share=0.01), Phase("b", share=0.24), Phase("c", share=0.75)]


def test_each_phase_runs_and_the_stage_keeps_its_budget(tiny_folder) -> None:
    """Oracle: of 10 steps, a 1% phase takes its one step, the next ends at 25% (2.5, so 3 steps),
    the last at 10.
    """
    tiny = TinyRuns("patient", lambda name, options: Patient(), tiny_folder)
    run = tiny.make_run(tiny.make_config(), "run")
    run.train(last_stage=0)
    lines = read_lines(run.store.stage_file(run.keys[0]))
    done = next(line for line in lines if line["kind"] == "done")
    assert [(phase["name"], phase["steps"]) for phase in done["phases"]] == [
        ("a", 1),
        ("b", 2),
        ("c", 7),
    ]
