"""A domain that is added to a stream: what a dry run says of it until its text is tokenised."""

from __future__ import annotations

from pathlib import Path

import pytest

import run_all
from tests.support import tiny_suite
from tests.support.texts import sentences, write


def call(*words: object) -> int:
    return run_all.main([*map(str, words)])


def test_after_a_domain_was_added_a_dry_run_says_what_stays(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Oracle: by hand: two of three stages are trained (67%), and the third has six steps. Its
    domain is named as not tokenised until `prepare` has done it.
    """
    suite = tiny_suite.write(tmp_path)
    suite.write_text(
        suite.read_text().replace("vocabulary = 300", 'vocabulary = 300\ndomains = ["a"]')
    )
    places = ["--runs", tmp_path / "runs", "--methods", "naive"]
    assert call("run", suite, *places, "--out", tmp_path / "report") == 0
    write(tmp_path / "c.jsonl", sentences(9))
    second = f'{{ name = "b", train = ["{tmp_path}/b.jsonl"] }},'
    third = f'{{ name = "c", train = ["{tmp_path}/c.jsonl"] }},'
    text = suite.read_text().replace(second, f"{second}\n  {third}")
    suite.write_text(
        text.replace("hidden_size = 32 }]", "hidden_size = 32 }, { layers = 2, hidden_size = 32 }]")
    )
    capsys.readouterr()
    assert call("run", suite, *places, "--dry-run") == 0
    told = capsys.readouterr().out
    assert "67% trained" in told and "To train: 1 of 1 runs, 6 steps" in told
    assert "Not tokenised yet: c." in told
    assert call("prepare", suite, *places) == 0
    capsys.readouterr()
    assert call("run", suite, *places, "--dry-run") == 0
    told = capsys.readouterr().out
    assert "67% trained" in told and "6 steps" in told and "Not tokenised" not in told
