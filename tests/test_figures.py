"""Figures: what they draw, and that the files embed their fonts and never change on their own."""

import io
import struct
from typing import Any

import matplotlib.figure
import numpy as np
import pytest

import paper_tables
from analysis import figures
from analysis.render import render
from analysis.study import Study
from benchmark.records import load_runs
from tests.support import synthetic

KINDS = [
    "trend_main",
    "f1_by_stage",
    "performance_profile",
    "representational_similarity",
    "attention_patterns",
    "stage_domain_matrix",
]  # one exhibit of each kind of figure


@pytest.fixture
def study(tmp_path) -> Study:
    synthetic.write(tmp_path / "runs", "demo")
    return Study("demo", load_runs(tmp_path / "runs", "demo"))


@pytest.fixture
def drawn(monkeypatch) -> list[matplotlib.figure.Figure]:
    """Every figure that is drawn during the test."""
    seen: list[matplotlib.figure.Figure] = []
    to_files = figures.to_files
    monkeypatch.setattr(figures, "to_files", lambda figure: seen.append(figure) or to_files(figure))
    return seen


def test_a_trend_curve_is_the_mean_over_seeds_and_its_band_spans_them(study, drawn):
    """Oracle: the evaluations of one row, averaged here with plain numpy."""
    paper_tables.load("trend_main").render(study)
    for axis, metric in zip(drawn[0].axes, ["ap", "ap_plus"], strict=True):
        line = next(line for line in axis.lines if line.get_label() == "ER")
        of_er = study.evaluations[study.evaluations["row"] == "ER"].dropna(subset=[metric])
        seeds = np.array([of_er[of_er["seed"] == seed][[metric, "charged"]].to_numpy() for seed in (0, 1)])
        np.testing.assert_allclose(line.get_ydata(), seeds.mean(0)[:, 0])
        np.testing.assert_allclose(line.get_xdata(), seeds.mean(0)[:, 1])
        bands = [band.get_paths()[0].vertices for band in axis.collections]
        assert any(np.isclose(band[:, 1].max(), seeds[:, :, 0].max()) for band in bands)


@pytest.mark.parametrize("seeds", [1, 3])
@pytest.mark.parametrize("name", ["trend_main", "f1_by_stage", "representational_similarity", "performance_profile"])
def test_a_figure_says_what_its_bands_are(tmp_path, drawn, name, seeds):
    """Oracle: the text below the panels, inside the figure and apart from the legend, by what the renderer reports."""
    synthetic.write(tmp_path, "demo", seeds=seeds)
    paper_tables.load(name).render(Study("demo", load_runs(tmp_path, "demo")))
    figure = drawn[0]
    (text,) = figure.texts
    assert ("band: lowest to highest seed" in text.get_text()) == (seeds > 1 and name != "performance_profile")
    assert ("mean of 3 seeds" if seeds > 1 else "one seed") in text.get_text().lower()
    figure.draw_without_rendering()
    extent, legend = text.get_window_extent(), figure.legends[0].get_window_extent()
    assert extent.x0 >= 0 and extent.y0 >= 0 and extent.x1 <= figure.bbox.x1 and extent.y1 <= legend.y0 + 1


@pytest.mark.parametrize("name", ["trend_main", "f1_by_stage", "representational_similarity", "performance_profile"])
def test_a_row_of_fewer_seeds_says_so_in_the_legend(study, drawn, name):
    """Oracle: one of ER's two runs is taken away."""
    kept = [run for run in study.runs if (run.row, run.seed) != ("ER", 1)]
    paper_tables.load(name).render(Study("demo", kept))
    labels = drawn[0].axes[0].get_legend_handles_labels()[1]
    assert [label for label in labels if "(n =" in label] == ["ER (n = 1)"]
    assert "ean of 2 seeds, or of n" in drawn[0].texts[0].get_text()


def test_the_attention_of_one_seed_says_which(study, drawn):
    """Oracle: the first of two seeds."""
    paper_tables.load("attention_patterns").render(study)
    assert drawn[0].texts[0].get_text().startswith("Seed 0 alone")


def test_stage_boundaries_are_marked_where_the_budget_of_a_stage_ends(study, drawn):
    """Oracle: five stages of 60 s each, up to 0.2% of overshoot in the synthetic records."""
    paper_tables.load("trend_main").render(study)
    for axis in drawn[0].axes:
        ends = sorted(
            line.get_xdata()[0] for line in axis.lines if line.get_linestyle() == ":" and len(line.get_xdata()) == 2
        )
        np.testing.assert_allclose(ends, [60, 120, 180, 240, 300], rtol=0.003)
        assert [text.get_text() for text in axis.texts] == ["WB", "Ns", "Rev", "Bio", "CS"]


def test_sixteen_lines_can_be_told_apart_in_grey():
    """Oracle: no two of the first sixteen styles share both dashes and marker, and no two of twelve the
    colour."""
    styles = [figures.line_style(index) for index in range(16)]
    assert len({(str(style["linestyle"]), style["marker"]) for style in styles}) == 16
    assert len({style["color"] for style in styles[:12]}) == 12


def test_no_label_is_cut_off(study, drawn):
    """Oracle: the extents that the renderer reports, with perplexities of four digits, lie inside the figure."""
    for run in study.runs:
        for stage in run.stages:
            for line in stage:
                if line["kind"] == "evaluation":
                    line["perplexity"] = {name: 300 * value for name, value in line["perplexity"].items()}
    for name in KINDS:
        paper_tables.load(name).render(study)
        figure = drawn[-1]
        figure.draw_without_rendering()
        for axis in figure.axes:
            extent = axis.get_tightbbox()
            assert extent.x0 >= 0 and extent.y0 >= 0 and extent.x1 <= figure.bbox.x1 and extent.y1 <= figure.bbox.y1


def test_a_performance_profile_counts_stages(study, drawn):
    """Oracle: by definition, on the means over seeds; the best row of each stage starts it."""
    paper_tables.load("performance_profile").render(study)
    ends = study.ends[study.ends["stage"] > 0].groupby(["stage", "row"])["ap"].mean().unstack()
    lines = {line.get_label(): line for line in drawn[0].axes[0].lines}
    assert set(lines) == set(ends)
    for row, line in lines.items():
        ratio, share = line.get_xdata()[57], line.get_ydata()[57]
        assert share == np.mean([stage[row] <= ratio * stage.min() for _, stage in ends.iterrows()])
    assert sum(line.get_ydata()[0] for line in lines.values()) == pytest.approx(1.0)


def test_a_row_that_has_not_started_is_no_line_of_the_profile(study, drawn):
    """Oracle: ER's runs without their stages; the others keep their lines and colours."""
    for run in study.runs:
        run.stages = [[] for _ in run.stages] if run.row == "ER" else run.stages
    paper_tables.load("performance_profile").render(study)
    lines = {line.get_label(): line.get_color() for line in drawn[0].axes[0].lines}
    rows = list(dict.fromkeys(run.row for run in study.runs))
    assert lines == {row: figures.line_style(i)["color"] for i, row in enumerate(rows) if row != "ER"}


@pytest.mark.parametrize("name", KINDS)
def test_a_figure_is_the_same_bytes_on_another_day_and_embeds_its_fonts(study, monkeypatch, name):
    """Oracle: byte equality under another clock; PDF font dictionaries of TrueType (Type 42) with an embedded file."""
    first = paper_tables.load(name).render(study)
    monkeypatch.setattr("time.time", lambda: 2e9)
    assert paper_tables.load(name).render(study) == first
    assert b"/FontFile2" in first["pdf"] and b"/Type3" not in first["pdf"]
    assert b"/CreationDate" not in first["pdf"]


@pytest.mark.parametrize("name", KINDS)
def test_a_figure_without_evaluations_says_so(tmp_path, drawn, name):
    """Oracle: the text in the panel."""
    synthetic.write(tmp_path, "demo", finished=0, rows=[("ER", "er", {})])
    for run in (runs := load_runs(tmp_path, "demo")):
        run.stages = [[] for _ in run.stages]
        run.similarities = [[] for _ in run.stages]
    paper_tables.load(name).render(Study("demo", runs))
    assert all("no " in axis.texts[0].get_text() for axis in drawn[0].axes)
    assert not drawn[0].texts, "nor does it speak of seeds"


def test_a_figure_of_some_rows_draws_these_and_no_others(tmp_path, drawn):
    """Oracle: the exhibit's rows, which are rows of the paper's ablation (table:table3)."""
    printed = paper_tables.load("ablation_pretraining").printed
    ablation = list(dict.fromkeys(value.row for value in printed))
    for name in ("trend_expansion", "trend_frw_noise", "trend_prompt"):
        figure: Any = paper_tables.load(name)
        assert set(figure.rows) < set(ablation)
    synthetic.write(tmp_path, "ablation", rows=[(row, "elle", {}) for row in ablation], seeds=1, scores=False)
    figure.render(Study("ablation", load_runs(tmp_path, "ablation")))
    assert drawn[0].axes[0].get_legend_handles_labels()[1] == list(figure.rows)


@pytest.mark.parametrize(
    ("suites", "names", "count"),
    [
        (
            ["demo"],
            ["trend_main", "trend_gpt", "trend_ewc_lambda", "trend_prompt"],
            2,
        ),  # the last one of two rows alone
        (["bert_base", "bert_large"], ["trend_main", "trend_bert_base", "trend_bert_large"], 2),  # suites of their own
    ],
)
def test_what_looks_the_same_is_drawn_once(tmp_path, drawn, suites, names, count):
    """Oracle: how many figures are drawn; each file is what its exhibit alone renders to."""
    for suite in suites:
        synthetic.write(tmp_path, suite, seeds=1, scores=False, evaluations=1, rows=[("ER", "er", {})])
    study = Study("+".join(suites), [run for suite in suites for run in load_runs(tmp_path, suite)])
    exhibits = [paper_tables.load(name) for name in names]
    render(study, exhibits, paper_tables.catalogue(), tmp_path / "out")
    assert len(drawn) == count
    for exhibit in exhibits:
        for suffix, content in exhibit.render(study).items():
            assert (tmp_path / "out" / f"{exhibit.name}.{suffix}").read_bytes() == content


def test_render_writes_every_format_whole(study, tmp_path):
    """Oracle: the names that the docstring promises; PNG and PDF signatures; two runs give the same bytes."""
    names = ["main_pretraining", "trend_main"]
    paths = synthetic.report("demo", study.runs, names, tmp_path / "out")
    assert [path.name for path in paths] == [
        "main_pretraining.tex",
        "main_pretraining.csv",
        "main_pretraining.md",
        "trend_main.pdf",
        "trend_main.png",
        "scorecard.tex",
        "scorecard.csv",
        "scorecard.md",
        "index.html",
    ]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == sorted(path.name for path in paths)
    before = [path.read_bytes() for path in paths]
    assert [path.read_bytes() for path in synthetic.report("demo", study.runs, names, tmp_path / "out")] == before
    png = io.BytesIO(before[4])
    assert png.read(8) == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", png.read(16)[8:])
    assert width > 800 and height > 300


def test_the_matrix_shows_each_domain_and_probe_after_each_stage(study, drawn):
    """Oracle: the perplexities of the last evaluations, averaged over the seeds here; a missing stage is blank."""
    for run in study.runs:
        run.line["probes"] = [{"name": "wiki", "title": "Wiki"}]
        for stage in run.stages:
            for line in stage:
                if line["kind"] == "evaluation":
                    line["perplexity"] = {**line["perplexity"], "wiki": 7.0 + run.seed}
        if run.row == "MAS":
            run.stages[4] = []
    paper_tables.load("stage_domain_matrix").render(study)
    panels = {axis.get_title(): axis for axis in drawn[0].axes if axis.get_visible()}
    assert list(panels) == list(dict.fromkeys(run.row for run in study.runs))
    er = [
        [line for line in stage if line["kind"] == "evaluation"][-1]
        for run in study.of("demo")
        if run.row == "ER"
        for stage in run.stages
    ]
    expected = [
        np.mean([end["perplexity"][name] for end in (er[i], er[i + 5])])
        for i in range(5)
        for name in ("wb", "ns", "rev", "bio", "cs", "wiki")
    ]
    texts = [text.get_text() for text in panels["ER"].texts]
    assert texts == [f"{value:.3g}" for value in expected]
    assert [label.get_text() for label in panels["ER"].get_xticklabels()] == ["WB", "Ns", "Rev", "Bio", "CS", "Wiki"]
    assert len(panels["MAS"].texts) == 4 * 6
