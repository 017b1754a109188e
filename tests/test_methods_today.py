"""Methods of the last years compute what their papers' equations say."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

import methods
from tests.support import toy


def build(name: str, options: dict[str, Any] | None = None) -> Any:
    """The method, whose attributes of its own the tests look at."""
    return methods.build(name, options)


@pytest.mark.parametrize(("spent", "budget"), [(1.0, 1.0), (2.0, 1.0), (4.0, 1.0), (600.0, 300.0)])
def test_ar_schedule_peaks_on_a_long_cosine(spent: float, budget: float) -> None:
    """Oracle: the equation of Roth et al. by hand; for equal stages cos(pi n / (n + 1)), as their released code has it.
    Half of the decay is over in the middle of what the warm-up leaves, and the end is the floor."""
    [phase] = build("ar_schedule", {"warmup": 0.2}).phases(replace(toy.stage(1), spent=spent, budget=budget))
    peak = 0.1 + 0.9 / 2 * (1 + math.cos(math.pi * spent / (spent + budget)))
    assert phase.memory == 0.5
    expected = {0.1: peak / 2, 0.2: peak, 0.6: (peak + 0.1) / 2, 1.0: 0.1}
    assert [phase.schedule.at(x) for x in expected] == pytest.approx(list(expected.values()), abs=1e-6)
    assert build("ar_schedule").phases(toy.stage(0))[0].schedule is None
