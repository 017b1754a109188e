"""The map of regimes: which runs make a cell, where it lies, and what the fitted plane says of it."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from scipy import stats

import paper_tables
from analysis.study import Study
from benchmark.records import LineOfStage, RunLine, Titled
from benchmark.store import RunRecords
from tests.support.record_lines import DONE, STAGE, evaluation

paper_tables.load("growth_regimes", Path(__file__).parents[1] / "results" / "when_growing_pays")
regimes: Any = sys.modules["growth_regimes"]
find_cells, fit, predict, MapPoint = regimes.find_cells, regimes.fit, regimes.predict, regimes.MapPoint
CONTENDERS = ("er", "elle", "er_large")
PARAMETERS = {16: 1000, 32: 4000, 64: 16_000}


def run(
    method: str, ap: float, seed: int = 0, budget: float = 1.0, last: int = 32, row: int = 0, unit: str = "flops"
) -> RunRecords:
    """A finished run of two stages; 16 wide at first, and `last` at the end if it grows. FLOPs are known in no other
    unit than theirs."""
    ladder = [{"layers": 1, "hidden_size": 16}, {"layers": 1, "hidden_size": last}]
    config = {"budget": {"unit": unit, "amount": budget}, "model": {"architecture": "gpt", "ladder": ladder}}
    line = RunLine(
        id=f"{method}-{row}-{budget}-{last}-{seed}",
        suite="s",
        row=f"{method} {row}",
        row_index=row,
        method=method,
        options={},
        seed=seed,
        config=config,
        domains=[Titled("a", "A"), Titled("b", "B")],
    )
    stages = []
    for index in range(2):
        size = ladder[index]["hidden_size"] if method == "elle" else 16
        spent = {"tokens": budget * 5000.0, "seconds": 1.0, "steps": 10.0}
        spent |= {"flops": budget * 1e6} if unit == "flops" else {}
        share = 2.0 * index if method == "scratch" else 1.0
        phases = [{"name": "adapt", "share": share, "memory": 0.0, "trains": True}]
        head = {"parameters": PARAMETERS[size], "budget": {"unit": unit, "amount": budget}, "phases": phases}
        measured = {"a": max(1.0, ap / 2), "b": ap * ap / max(1.0, ap / 2)}  # of which ap is the geometric mean
        text = {"perplexity": measured, "bits_per_byte": {"a": 1.0, "b": 1.0}, "fraction": 1.0, "charged": spent}
        lines = [STAGE | head, evaluation("adapt", 10, ap) | text, DONE | {"charged": spent}]
        stages.append(msgspec.convert(lines, list[LineOfStage]))
    return RunRecords(line=line, stages=stages)


def test_a_cell_lies_where_its_tokens_parameters_and_flops_put_it():
    """Oracle: the definitions, by hand: 5,000 tokens over 1,000 parameters; 4,000 over the root of 2e6/120."""
    (cell,) = find_cells(Study("s", [run("er", 20.0), run("elle", 10.0)]), CONTENDERS)
    assert cell.tokens_per_parameter == 5.0
    assert cell.relative_size == pytest.approx(4000 / math.sqrt(2e6 / 120))
    assert cell.log_ratio == pytest.approx(math.log(0.5))
    assert not cell.decided  # one seed


def test_a_cell_is_decided_by_scipys_paired_t_test_on_the_seeds_that_both_have():
    """Oracle: scipy.stats.ttest_rel on logarithms, on both sides of 5%."""
    noise = [0.9, 1.0, 1.1, 1.05, 0.97, 1.02]
    for factor in (0.97, 0.8):
        er = [20.0 * factor for factor in noise]
        elle = [value * factor * other for value, other in zip(er, reversed(noise), strict=True)]
        runs = [run("er", value, seed) for seed, value in enumerate([*er, 1.0])]
        (cell,) = find_cells(
            Study("s", runs + [run("elle", value, seed) for seed, value in enumerate(elle)]), CONTENDERS
        )
        p = stats.ttest_rel(np.log(elle), np.log(er)).pvalue
        assert cell.seeds == 6 and cell.decided == (p < 0.05) == (factor == 0.8)


def test_the_fit_finds_a_plane_again_and_predicts_places_that_it_has_not_seen():
    """Oracle: places made from a + b ln x + c ln y."""
    plane = (0.3, -0.2, 0.5)
    places = [MapPoint("", x, y, 0.3 - 0.2 * math.log(x) + 0.5 * math.log(y)) for x in (10, 100) for y in (0.2, 3.0)]
    assert fit(places[:3]) == pytest.approx(plane)
    assert predict(fit(places[:3]), places[3]) == pytest.approx(places[3].log_ratio)
    assert fit(places[:2]) is None and math.isnan(predict(None, places[3]))
    assert fit([*places, MapPoint("diverged", 50, 1.0, math.inf)]) == pytest.approx(plane)
