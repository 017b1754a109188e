"""Every method keeps the promises of the interface. Oracles: those in benchmark/instruments/conformance.py."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

import methods
from benchmark.instruments import conformance
from benchmark.instruments.conformance import CHECKS, Lab
from benchmark.training.method import LifelongMethod, Phase

ROOT = Path(__file__).parent.parent
ALONE = [check for check in CHECKS if check is not conformance.two_processes_equal_one]


@pytest.mark.parametrize("name", methods.names())
def test_conforms(name: str, tmp_path) -> None:
    lab = Lab(name, methods.build, tmp_path)
    for check in ALONE:
        check(lab)


def test_two_processes_equal_one(tmp_path) -> None:
    """Oracle: the weights of one process. One pair of processes trains every method."""
    conformance.compare_two_processes([Lab(name, methods.build, tmp_path / name) for name in methods.names()])


def test_the_documented_method_works(tmp_path, monkeypatch) -> None:
    """Oracle: the same checks, on the page's code put where the page says. The page promises under 40 lines."""
    page = (ROOT / "docs" / "adding_a_method.md").read_text(encoding="utf-8")
    code = re.search(r"```python\n(.*?)```", page, re.DOTALL)[1]
    assert len(code.splitlines()) < 40
    (tmp_path / "l2_sp.py").write_text(code)
    monkeypatch.setattr(methods, "__path__", [*methods.__path__, str(tmp_path)])
    assert "l2_sp" in methods.names()
    lab = Lab("l2_sp", methods.build, tmp_path)
    for check in ALONE:
        check(lab)


@dataclass
class Greedy(LifelongMethod):
    """Breaks promises on purpose."""

    how: str = ""

    def phases(self, stage):
        return [Phase("adapt", share=2.0 if self.how == "budget" else 1.0)]

    def start_stage(self, model, stage):
        if self.how == "first stage":
            model.network.base_model.wte.weight.data.mul_(0.5)
        return model

    def adjust_gradients(self, learner, memory):
        learner.record(steps=learner.metrics.get("steps", 0) + 1)
        if self.how == "state" and learner.metrics["steps"] > 1:  # depends on what a resume does not restore
            self.calls = getattr(self, "calls", 0) + 1
            learner.parameters[0].grad.mul_(self.calls % 3)


@pytest.mark.parametrize(
    ("how", "check"),
    [
        ("budget", conformance.phases_fill_each_stage),
        ("first stage", conformance.shared_first_stage_is_naive),
        ("state", conformance.resumes_identically_from_a_kill_in_each_phase),
        ("", conformance.options_are_documented),
    ],
)
def test_the_checks_can_fail(how, check, tmp_path) -> None:
    """Oracle: a method that breaks one promise fails that promise's check."""
    lab = Lab("greedy", lambda name, options: Greedy(how) if name == "greedy" else methods.build(name), tmp_path)
    with pytest.raises(AssertionError):
        check(lab)
