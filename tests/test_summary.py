"""The sentences at the head of a report."""

from __future__ import annotations

import re
from typing import Any

import pytest

from analysis.page import summarize
from tests.support import synthetic


def test_the_sentences_say_what_the_records_say(tmp_path) -> None:
    """Oracle: final AP and AP⁺ of the records."""
    data = synthetic.study(tmp_path, seeds=3)
    best, forgotten = summarize(data)
    ends = data.ends[data.ends["stage"] == 4]
    ap = ends.pivot(index="seed", columns="row", values="ap")
    lost = ends.groupby("row")["ap_plus"].mean()
    assert re.match(rf"Best: ELLE .* CS, {ap['ELLE'].mean():.3g} .*\b3 seeds\b", best)
    ends_with = rf"{lost['ELLE']:.3g} .*\bELLE\. .*\bPNN, 0\. .*\bA-GEM, {lost['A-GEM']:.3g}\."
    assert re.fullmatch(f"Forgotten, .*AP⁺: {ends_with}", forgotten)


@pytest.mark.parametrize(
    ("rows", "finished", "expected"), [("ER", 0, []), ("Naive ER", None, ["Best", "Forgotten"])]
)
def test_nothing_is_said_of_what_is_not_there(tmp_path, rows, finished, expected) -> None:
    """By hand: no sentence without a run that has ended."""
    named: list[Any] = [(name, name.lower(), {}) for name in rows.split()]
    data = synthetic.study(tmp_path, rows=named, seeds=1, finished=finished)
    assert [
        sentence.partition(":")[0].partition(",")[0] for sentence in summarize(data)
    ] == expected
