"""The matrix of stages and domains as a figure, reports of long streams, and reference rows."""

import dataclasses
import re
from typing import Any

import numpy as np
import pytest

from analysis.study import Study, find_header
from analysis.tables import to_csv, to_markdown, to_text
from benchmark.ledger.records import EvaluationLine, Titled, select_kind
from benchmark.ledger.runs import load_runs
from tests.support import synthetic


@pytest.fixture
def study(tmp_path) -> Study:
    synthetic.write(tmp_path / "runs", "demo")
    return Study("demo", load_runs(tmp_path / "runs", "demo"))


def test_the_matrix_shows_each_domain_and_probe_after_each_stage(study):
    """Oracle: the perplexities of each stage's last evaluation, averaged over the seeds here. A
    missing stage is blank.
    """
    study = Study("demo", [run for run in study.runs if run.row not in ("EWC", "A-GEM")])
    for run in study.runs:
        run.line.probes = [Titled("wiki", "Wiki")]
        for line in synthetic.list_lines(run, EvaluationLine):
            line.perplexity = {**line.perplexity, "wiki": 7.0 + run.seed}
            line.bits_per_byte = {**line.bits_per_byte, "wiki": 1.0}
        if run.row == "MAS":
            run.stages[4] = []
    figure = synthetic.load("stage_domain_matrix").draw(study)
    panels = {axis.get_title(): axis for axis in figure.axes if axis.get_title()}
    texts = {row: [text.get_text() for text in axis.texts] for row, axis in panels.items()}
    assert list(texts) == list(dict.fromkeys(run.row for run in study.runs))
    er = [
        select_kind(stage, EvaluationLine)[-1]
        for run in study.list_runs("demo")
        if run.row == "ER"
        for stage in run.stages
    ]
    expected = [
        np.mean([end.perplexity[name] for end in (er[i], er[i + 5])])
        for i in range(5)
        for name in ("wb", "ns", "rev", "bio", "cs", "wiki")
    ]
    assert texts["ER"] == [f"{value:.3g}" for value in expected]
    titles = [label.get_text() for label in panels["ELLE"].get_xticklabels()]
    assert titles == ["WB", "Ns", "Rev", "Bio", "CS", "Wiki"]
    assert len(texts["MAS"]) == 4 * 6
    framed = {row: [patch.get_xy() for patch in axis.patches] for row, axis in panels.items()}
    assert framed["ER"] == [(i, i) for i in range(5)] and framed["MAS"] == framed["ER"][:4]
    labelled = [bool(axis.get_xticklabels()) for axis in panels.values()]
    assert labelled == [False] * 4 + [True] * 2, "once, below the last panel of each column"
    assert [bool(axis.get_yticklabels()) for axis in panels.values()] == [True, False] * 3
    colours = panels["ER"].collections[0]
    assert colours.norm.vmax == pytest.approx(10 * colours.norm.vmin), (
        "an order of magnitude, though numbers go from 6 to 240"
    )


@pytest.mark.parametrize(("stages", "probes"), [(1, 0), (3, 0), (5, 0), (5, 1), (7, 0), (12, 0)])
def test_numbers_can_be_read_in_a_column_of_a_paper(stages, probes, tmp_path) -> None:
    """Oracle: a font's size on paper is its size in the figure, times 3.3 inches (a column) over
    the width of the PDF's page. It must be 5 points or more, and each number narrower than its
    cell.
    """
    domains = [(f"d{i}", f"Domain no. {i}") for i in range(stages)]
    study = synthetic.study(tmp_path, domains=domains, stages=stages, seeds=1, scores=False)
    for run in study.runs:
        run.line.probes = [Titled("wiki", "Wiki")][:probes]
        for line in synthetic.list_lines(run, EvaluationLine):
            line.perplexity = dict.fromkeys((*line.perplexity, "wiki"), 1234.5)
    exhibit = synthetic.load("stage_domain_matrix")
    picture = exhibit.render(study)
    found = re.search(rb"/MediaBox \[ 0 0 ([\d.]+) ", picture.pdf)
    assert found
    inches = float(found[1]) / 72
    figure = exhibit.draw(study)
    figure.draw_without_rendering()
    panels = [axis for axis in figure.axes if axis.texts]
    assert len(panels) == 6
    for axis in panels:
        cell = axis.get_window_extent().width / (stages + probes)
        for text in axis.texts:
            assert text.get_fontsize() * 3.3 / inches >= 5
            assert text.get_window_extent().width < cell
    latex = picture.to_files("matrix", "fig:matrix", "")["tex"].decode()
    assert latex.startswith("\\begin{figure}[t]"), "of one column"


def test_a_matrix_of_many_rows_shows_six_and_names_the_others(tmp_path) -> None:
    """By hand: the exhibit's five rows, and B, the best of the other rows that are trained stage by
    stage.
    """
    five = ["Naive", "ER", "PNN", "ELLE", "ELLE (exact)"]
    names = ["A", "Naive", "B", "ER", "From scratch", "PNN", "C", "ELLE", "ELLE (exact)"]
    rows: list[tuple[str, str, dict[str, Any]]] = [(name, "naive", {}) for name in names]
    rows[4] = ("From scratch", "scratch", {})
    study = synthetic.study(tmp_path, rows=rows, seeds=1, scores=False)
    ends = study.ends["row"].map({"From scratch": 1.0, "B": 2.0, "A": 3.0, "C": 4.0})
    study.ends["ap"] = ends.fillna(5.0)
    find_header(study.list_runs("demo")[4].stages[-1]).phases[0]["share"] = 2.0
    assert study.pooled == {"From scratch"}
    figure = synthetic.load("stage_domain_matrix").draw(study)
    titles = [axis.get_title() for axis in figure.axes if axis.get_title()]
    assert titles == [name for name in names if name in (*five, "B")]
    assert "Left out: A, From scratch, C. The records have" in figure.sentences


def test_a_report_of_a_long_stream_has_room_for_its_labels(tmp_path, monkeypatch) -> None:
    """By hand: of 60 domains every fifth has a label and a marker, and no cell has a number. The
    last marker is the last stage's. The figure is smaller than 15 inches. Tables on a page have six
    stages, the last among them, and their CSV has all. Notes name no domain.
    """
    domains = [(f"d{i}", f"Domain {i}") for i in range(60)]
    monkeypatch.setattr(synthetic, "LADDER", [(1, 16, 1e6)] * 60)
    study = synthetic.study(
        tmp_path,
        domains=domains,
        stages=60,
        evaluations=2,
        seeds=1,
        scores=False,
        similarities=False,
    )
    figure = synthetic.load("stage_domain_matrix").draw(study)
    panels = [axis for axis in figure.axes if axis.get_title()]
    assert len(panels) == 6 and not any(axis.texts for axis in panels)
    assert [label.get_text() for label in panels[0].get_yticklabels()] == [
        f"Domain {i}" for i in range(0, 60, 5)
    ]
    assert max(figure.get_size_inches()) < 15
    trend = synthetic.load("trend_main").draw(study)
    [above] = [child for child in trend.axes[0].child_axes if child.get_xticklabels()]
    assert [label.get_text() for label in above.get_xticklabels()] == [
        f"Domain {i}" for i in range(0, 60, 5)
    ]
    lines = [line for line in trend.axes[0].lines if line.get_markevery() is not None]
    assert len(lines) == 8
    for line in lines:
        marked = np.sort(line.get_markevery())
        assert len(marked) == 12 and marked[-1] == len(line.get_xdata()) - 1
    table = synthetic.load("main_pretraining").build(study)
    head = next(line for line in to_markdown(table).splitlines() if line.startswith("|"))
    assert head.count("|") == 2 + 6 * 2
    assert all(f"Domain {i} " in head for i in range(9, 60, 10)) and "Domain 10" not in head
    text = to_text(dataclasses.replace(table, warnings=()))
    assert head.count("Domain") == text.count("Domain") == 6 * 2
    assert len(to_csv(table).splitlines()) > 8 * (60 * 2 - 1)


@pytest.mark.parametrize("name", ["main_pretraining", "lifelong_metrics", "units"])
def test_a_reference_is_never_the_best(name, tmp_path):
    """Oracle: the marks and ranks of the table without the reference, which itself has none, though
    it forgets less than Naive.
    """
    rows: list[tuple[str, str, dict[str, Any]]] = [
        ("Naive", "naive", {}),
        ("ELLE", "elle", {}),
        ("Oracle", "oracle", {}),
    ]
    data = synthetic.study(tmp_path, seeds=2, rows=rows)
    for run in data.runs:
        if run.row != "Oracle":
            continue
        for index, stage in enumerate(run.stages):  # each costs as much as all stages so far
            find_header(stage).phases[0]["share"] = 1.0 + index
    others = [run for run in data.runs if run.row != "Oracle"]
    [block], [alone] = (
        synthetic.load(name).build(Study("demo", runs)).blocks for runs in (data.runs, others)
    )
    marks, expected = (
        {row.label: [(cell.best, cell.text) for cell in row.cells] for row in a.rows}
        for a in (block, alone)
    )
    for label in ("Naive", "ELLE"):
        assert marks[label] == expected[label]
    assert any(best for line in expected.values() for best, _ in line) or name == "units"
    for label in marks.keys() - {"Naive", "ELLE"}:
        # `units` leaves it out
        assert not any(best or text.isdigit() for best, text in marks[label])
