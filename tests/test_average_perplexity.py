"""AP wherever it is shown: in tables, `status` and `track`. Oracle: Python's
`statistics.geometric_mean`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from statistics import geometric_mean

import pytest

from analysis.study import Study
from benchmark.instruments.track import list_points
from benchmark.ledger.records import EvaluationLine, find_last
from benchmark.ledger.runs import RunRecords, load_runs
from tests.support import synthetic


def list_table_values(folder: Path, run: RunRecords) -> Iterator[float]:
    yield from Study("demo", [run]).ends["ap"]


def list_status_values(folder: Path, run: RunRecords) -> Iterator[float]:
    for count in range(1, len(run.stages) + 1):
        begun = dataclasses.replace(run, stages=run.stages[:count])
        assert begun.ap is not None
        yield begun.ap


def list_tracked_values(folder: Path, run: RunRecords) -> Iterator[float]:
    last = {values["stage"]: values["AP"] for *_, values in list_points(run)}
    yield from last.values()


@pytest.mark.parametrize(
    "list_values", [list_table_values, list_status_values, list_tracked_values]
)
def test_ap_is_the_geometric_mean_of_the_domains_so_far(list_values, tmp_path) -> None:
    """Oracle: `statistics.geometric_mean` of the perplexities on the domains so far, which the last
    evaluation of each stage recorded.
    """
    synthetic.write(tmp_path, "demo", rows=[("Naive", "naive", {})], seeds=1)
    [run] = load_runs(tmp_path, "demo")
    expected = []
    for index, stage in enumerate(run.stages):
        end = find_last(stage, EvaluationLine)
        assert end is not None
        learned = [end.perplexity[domain.name] for domain in run.domains[: index + 1]]
        expected.append(geometric_mean([value for value in learned if value is not None]))
    assert [*list_values(tmp_path, run)] == pytest.approx(expected)


@pytest.mark.parametrize(
    "list_values", [list_table_values, list_status_values, list_tracked_values]
)
def test_a_perplexity_that_overflowed_makes_ap_infinite(list_values, tmp_path) -> None:
    """Oracle: a mean with infinity is infinite. Records hold null for an infinite perplexity."""
    synthetic.write(tmp_path, "demo", rows=[("Naive", "naive", {})], seeds=1, stages=2)
    for file in tmp_path.glob("stages/*1/records.jsonl"):
        file.write_text(file.read_text().replace('"wb": ', '"wb": null, "was": '))
    [run] = load_runs(tmp_path, "demo")
    values = [*list_values(tmp_path, run)]
    assert values[1] == float("inf") and values[0] < 100
