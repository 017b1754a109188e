"""What docs/python.md says, executed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pandas as pd

import run_all
from benchmark.ledger.runs import load_runs
from tests.support import tiny_suite

PAGE = (Path(__file__).parent.parent / "docs" / "python.md").read_text(encoding="utf-8")


def test_the_page_can_be_typed(tmp_path, monkeypatch) -> None:
    """Oracle: the records that the page's programs leave (the last perplexities), and the table
    that the command line writes.
    """
    tiny_suite.write(tmp_path).rename(tmp_path / "mine.toml")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for program in re.findall(r"```python\n(.*?)```", PAGE, re.S):
        exec(compile(program, "docs/python.md", "exec"), names)
    runs = load_runs(tmp_path / "runs", "mine")
    assert [(run.row, run.finished) for run in runs] == [("Naive", 2), ("ER", 2)]
    ends: pd.DataFrame = names["study"].ends
    for run in runs:
        last = ends[(ends["row"] == run.row) & (ends["stage"] == 1)].iloc[0]
        assert dict(zip("ab", last["perplexity"], strict=True)) == run.matrix[1].perplexity
    assert run_all.main(["report", "mine", "--out", "report"]) == 0
    shown = (tmp_path / "report" / "mine" / "main_pretraining.md").read_text()
    assert (
        names["table"]._repr_markdown_() in shown and (tmp_path / "mine.png").stat().st_size > 5000
    )
    assert names["figure"].axes[0].get_title() == "my stream"
