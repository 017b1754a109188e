"""What docs/python.md says, executed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import run_all
from benchmark.settings.base import ConfigError
from benchmark.store import load_runs
from tests.support import tiny_suite

PAGE = (Path(__file__).parent.parent / "docs" / "python.md").read_text(encoding="utf-8")


def test_the_page_can_be_typed(tmp_path, monkeypatch) -> None:
    """Oracle: the records that its own programs left: their last perplexities, and the table of the command line."""
    tiny_suite.write(tmp_path).rename(tmp_path / "mine.toml")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for program in re.findall(r"```python\n(.*?)```", PAGE, re.S):
        exec(compile(program, "docs/python.md", "exec"), names)
    runs = load_runs(tmp_path / "runs", "mine")
    assert [(run.row, run.finished) for run in runs] == [("Naive", 2), ("ER", 2)]
    ends: pd.DataFrame = names["ends"]
    for run in runs:
        last = ends[(ends["row"] == run.row) & (ends["stage"] == 1)].iloc[0]
        assert {name: last[f"perplexity_{name}"] for name in "ab"} == run.matrix[1].perplexity
    assert run_all.main(["report", "mine", "--out", "report"]) == 0
    shown = (tmp_path / "report" / "mine" / "main_pretraining.md").read_text()
    assert names["table"]._repr_markdown_() in shown and (tmp_path / "mine.png").stat().st_size > 5000
    assert names["figure"].axes[0].get_title() == "my stream"


def test_what_is_not_there_is_named(tmp_path, monkeypatch) -> None:
    """Oracle: the choices in the message."""
    tiny_suite.write(tmp_path)
    suite = run_all.open_suite(str(tmp_path / "tiny.toml"), str(tmp_path / "runs"))
    with pytest.raises(ConfigError, match="no run of row 'EWC' and seed None; there are rows Naive, ER and seeds 0"):
        suite.run("EWC")
    with pytest.raises(ConfigError, match=r"trend_main is a figure: figure\('trend_main'\)"):
        suite.table("trend_main")
    with pytest.raises(ConfigError, match=r"units is a table: table\('units'\)"):
        suite.figure("units")
    assert suite.evaluations.empty
