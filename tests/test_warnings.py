"""Warnings before the numbers of a report: rows that counting beats, and missing records."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from analysis.notes import warn_of_baselines, warn_of_counting
from analysis.page import render_page, summarize
from analysis.study import Study
from analysis.tables import to_latex, to_markdown, to_text
from run_all import main
from tests.support import synthetic, tiny_suite

ROWS: list[tuple[str, str, dict[str, Any]]] = [
    (row, row.lower(), {}) for row in ("Naive", "ER", "ELLE")
]


def make_study(folder: Path, unigram: float) -> Study:
    """Three rows with two seeds and two domains, whose unigram perplexity is `unigram`."""
    data = synthetic.study(folder, rows=ROWS, stages=2)
    for run in data.runs:
        run.line.unigram = {"wb": unigram, "ns": unigram}
    return Study("demo", data.runs)


@pytest.mark.parametrize("worse", [[], ["Naive"], ["Naive", "ER"], ["Naive", "ER", "ELLE"]])
def test_a_row_that_counts_of_tokens_beat_is_said_first(worse, tmp_path) -> None:
    """Oracle: by hand, from the recorded APs after the last domain: the unigram perplexity is just
    below the AP of the best row that must be named. Tables name these rows with both numbers before
    their first line, the page before its first table. "Best" says none if all rows are named. A
    column has a best row if two rows or more are left.
    """
    ends = make_study(tmp_path, 1e6).ends
    ap = ends[ends["stage"] == 1].groupby("row")["ap"].mean()
    assert list(ap.sort_values(ascending=False).index) == ["Naive", "ER", "ELLE"]
    unigram = ap[worse[-1]] - 1e-3 if worse else 1e6
    data = make_study(tmp_path, unigram)
    told = warn_of_counting(data)
    assert len(told) == bool(worse)
    for warning in told:
        for row in ap.index:
            assert (f"{row} (AP {ap[row]:,.2f} after Ns" in warning) == (row in worse)
        assert f"unigrams {unigram:,.2f})" in warning
    for name in ("main_pretraining", "units", "lifelong_metrics"):
        table = synthetic.load(name).build(data)
        assert list(table.warnings) == told
        for shown in (to_text(table), to_markdown(table)):
            assert all(shown.index("AP ") < shown.index("ELLE") for _ in told)
        assert all("AP " in to_latex(table).partition("parbox")[2] for _ in told)
    page = render_page(data, None, [(table, table)])
    assert all(0 < page.index('<p class="warning">') < page.index("<table") for _ in told)
    best = summarize(data)[0]
    assert best.startswith("Best: none. ELLE " if len(worse) == 3 else "Best: ELLE ")
    for name in ("lifelong_metrics", "units"):
        for row in synthetic.load(name).build(data).blocks[0].rows:
            assert row.label not in worse or not any(cell.best for cell in row.cells)
    table = synthetic.load("main_pretraining").build(data)
    last = [i for i, column in enumerate(table.columns) if column.name == "AP"][-1]
    best_rows = [row.label for row in table.blocks[0].rows if row.cells[last].best]
    assert best_rows == (["ELLE"] if len(worse) < 2 else [])


def test_a_task_in_which_counting_words_wins_is_said_first(tmp_path) -> None:
    """Oracle: by hand: counting words beats all rows on the first task, and on the second the rows
    whose recorded mean is not higher. Then the first column has no best row, and the table of
    scores begins with the warning.
    """
    data = synthetic.study(tmp_path, rows=ROWS, stages=2)
    assert not warn_of_baselines(data)
    last = data.scores[(data.scores["stage"] == 1) & data.scores["headline"]]
    ns = last[last["domain"] == "ns"].groupby("row")["test"].mean()
    for run in data.runs:
        for line in run.baselines:
            if line.name == "bag of words":
                line.test = {"wb": 0.99, "ns": sorted(ns)[1] + 1e-9}.get(line.domain, 0.1)
    data = Study("demo", data.runs)
    [warning] = warn_of_baselines(data)
    behind = [row for row, *_ in ROWS if row != ns.idxmax()]
    assert " bag of words " in warning
    assert warning.endswith(f"all rows on WB, and {', '.join(behind)} on Ns.")
    table = synthetic.load("main_downstream").build(data)
    assert list(table.warnings) == [warning]
    assert not any(row.cells[0].best for row in table.blocks[0].rows)
    assert any(row.cells[1].best for row in table.blocks[0].rows)
    assert warning in render_page(data, None, [])


def test_a_report_without_records_says_so_and_shows_no_empty_table(tmp_path, capsys) -> None:
    """Oracle: the suite's name, and no cell of a table, neither printed nor written."""
    suite = str(tiny_suite.write(tmp_path))
    out = tmp_path / "out"
    runs = str(tmp_path / "runs")
    assert main(["report", suite, "--runs", runs, "--out", str(out)]) == 0
    said = capsys.readouterr().out
    assert "no records of tiny" in said and "--" not in said.replace("--runs", "")
    assert not [*out.rglob("*.md")]
