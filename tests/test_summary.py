"""The sentences at the head of a report."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from scipy import stats

from analysis.page import summarize
from tests.support import synthetic


def test_the_sentences_say_what_the_records_say(tmp_path) -> None:
    """Oracle: final AP and AP⁺ of the records; the change and its interval by scipy's paired t test
    of logarithms.
    """
    data = synthetic.study(tmp_path, seeds=3)
    best, growth, forgotten = summarize(data)
    ends = data.ends[data.ends["stage"] == 4]
    ap = ends.pivot(index="seed", columns="row", values="ap")
    lost = ends.groupby("row")["ap_plus"].mean()
    assert re.match(rf"Best: ELLE .* CS, {ap['ELLE'].mean():.3g} .*\b3 seeds\b", best)
    pair = stats.ttest_rel(np.log(ap["ELLE"]), np.log(ap["PNN"]))
    ends_of = pair.confidence_interval(0.95)
    logs = np.log(ap["ELLE"] / ap["PNN"]).mean(), *ends_of
    change, low, high = (re.escape(f"{np.expm1(x):+.1%}".replace("-", "−")) for x in logs)
    assert re.match(rf"Growth .* {change} .*95% .* {low} to {high}\W.* ELLE\b.* PNN\b", growth)
    ends_with = rf"{lost['ELLE']:.3g} .*\bELLE\. .*\bPNN, 0\. .*\bA-GEM, {lost['A-GEM']:.3g}\."
    assert re.fullmatch(f"Forgotten, .*AP⁺: {ends_with}", forgotten)


@pytest.mark.parametrize(
    ("rows", "finished", "expected"), [("ER", 0, []), ("Naive ER", None, ["Best", "Forgotten"])]
)
def test_nothing_is_said_of_what_is_not_there(tmp_path, rows, finished, expected) -> None:
    """By hand: no sentence without a run that has ended, and none on growth if no row grows."""
    named: list[Any] = [(name, name.lower(), {}) for name in rows.split()]
    data = synthetic.study(tmp_path, rows=named, seeds=1, finished=finished)
    assert [
        sentence.partition(":")[0].partition(",")[0] for sentence in summarize(data)
    ] == expected
