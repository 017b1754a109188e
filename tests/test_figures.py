"""Figures: what they draw, and that the files embed their fonts and never change on their own."""

import io
import struct
from dataclasses import replace
from functools import partial
from typing import Any

import matplotlib
import numpy as np
import pytest
from matplotlib.text import Annotation
from msgspec import structs

import methods
import paper_tables
from analysis import figures
from analysis.figures import styles
from analysis.page import render
from analysis.study import Study
from benchmark.records import DoneLine, EvaluationLine
from benchmark.store import RunRecords, load_runs, not_started
from tests.support import synthetic
from tests.support.drawn_texts import faults
from tests.support.thorough import one_in

KINDS = [
    "trend_main",
    "f1_by_stage",
    "performance_profile",
    "representational_similarity",
    "attention_patterns",
    "stage_domain_matrix",
    "forgetting_cost",
]  # one exhibit of each kind of figure


@pytest.fixture
def study(tmp_path) -> Study:
    synthetic.write(tmp_path / "runs", "demo")
    return Study("demo", load_runs(tmp_path / "runs", "demo"))


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
    spread = "band" if name == "trend_main" else "bar"
    says = f"{spread}: lowest to highest seed, no confidence interval" in text.get_text().replace("\n", " ")
    assert says == (seeds > 1 and name != "performance_profile")
    assert ("mean of 3 seeds" if seeds > 1 else "one seed") in text.get_text().lower()
    figure.draw_without_rendering()
    extent, legend = text.get_window_extent(), figure.legends[0].get_window_extent()
    assert extent.x0 >= 0 and extent.y0 >= 0 and extent.x1 <= figure.bbox.x1 and extent.y1 <= legend.y0 + 1


@pytest.mark.parametrize("name", ["trend_main", "performance_profile"])
def test_a_row_of_fewer_seeds_says_so_in_the_legend(study, drawn, name):
    """Oracle: one of ER's two runs is taken away."""
    kept = [run for run in study.runs if (run.row, run.seed) != ("ER", 1)]
    paper_tables.load(name).render(Study("demo", kept))
    labels = drawn[0].axes[0].get_legend_handles_labels()[1]
    assert [label for label in labels if "(n =" in label] == ["ER (n = 1)"]
    assert "ean of 2 seeds, or of n" in drawn[0].texts[0].get_text().replace("\n", " ")


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
        titles = [text.get_text() for text in axis.texts if isinstance(text, Annotation)]
        assert titles == ["WB", "Ns", "Rev", "Bio", "CS"]


def rows_of(*methods: str) -> list[RunRecords]:
    """A run of each method, in rows of these names; `METHOD NAME` names one otherwise."""
    described: list[Any] = [{"row": name, "method": name.split()[0], "domains": []} for name in methods]
    return [not_started(one) for one in described]


def test_a_style_belongs_to_a_method_whatever_stands_beside_it():
    """Oracle: each method of the project and one that nobody knows, alone and among the others."""
    names = [*methods.names(), "nobody_knows_me"]
    together = styles(rows_of(*names))
    for name in names:
        assert styles(rows_of(name))[name] == together[name]
    assert len({(style["color"], style["marker"]) for style in together.values()}) == len(names)
    assert len({(str(style["linestyle"]), style["marker"]) for style in together.values()}) >= len(names) - 1, "in grey"
    assert len({together[method]["color"] for method, _, _ in synthetic.METHODS.values()}) == 8


def test_rows_of_one_method_share_its_marker_and_can_be_told_apart():
    """Oracle: a sweep of six values and a stranger's of three; the first has what the method has alone."""
    rows = [*(f"ewc λ = {10**i}" for i in range(6)), "new a", "new b", "new c", "er"]
    found = styles(rows_of(*rows))
    assert list(found) == rows
    for method, first in (("ewc", rows[0]), ("new", rows[6])):
        own = [style for row, style in found.items() if row.split()[0] == method]
        assert found[first] == styles(rows_of(method))[method]
        assert len({style["marker"] for style in own}) == 1
        assert len({style["color"] for style in own}) == len(own)
        assert len({(str(style["linestyle"]), style["fillstyle"]) for style in own}) >= min(4, len(own))


def test_two_unknown_methods_never_look_the_same(monkeypatch):
    """Oracle: a hash that gives both the same place."""
    monkeypatch.setattr("zlib.crc32", lambda name: 7)
    one, other = styles(rows_of("one", "other")).values()
    assert (one["color"], one["marker"]) != (other["color"], other["marker"])


@pytest.fixture(scope="module")
def crowded(tmp_path_factory) -> Study:
    """Twenty rows, one with a name of ninety letters, over twelve domains, most with long titles."""
    folder = tmp_path_factory.mktemp("crowded")
    rows: list[Any] = [(f"Method {i} (option = {10**i:,})", f"unknown_{i}", {}) for i in range(12)]
    rows += [(name, method, {}) for name, (method, _, _) in list(synthetic.METHODS.items())[:7]]
    rows += [("A row whose name says everything that its author knew of it, and somewhat more than that", "elle", {})]
    domains = [*synthetic.DOMAINS, *((f"d{i}", f"Domain no. {i} of Biomedicine") for i in range(7))]
    synthetic.write(folder, "demo", rows=rows, seeds=2, stages=12, evaluations=2, domains=domains)
    return Study("demo", load_runs(folder, "demo"))


@pytest.mark.parametrize("name", [*KINDS, "oracle_matrix"])
def test_no_texts_overlap_in_a_crowded_figure(crowded, name):
    """Oracle: the boxes of all texts that matplotlib's renderer draws: apart from each other, and in the figure."""
    few = [run for run in crowded.runs if run.line.row_index > 16]  # as a panel each is the same for any number
    if name == "oracle_matrix":
        methods = ["oracle" if run.row == "PNN" else "er" for run in few]
        few = [
            replace(run, line=structs.replace(run.line, method=name)) for run, name in zip(few, methods, strict=True)
        ]
    study = Study("demo", few) if "matrix" in name else crowded
    count, outside, overlapping = faults(figures.drawn(lambda: paper_tables.load(name).render(study)))
    assert not outside and not overlapping
    assert count > 20 or name == "attention_patterns"


def test_no_texts_overlap_in_the_curves_of_two_suites(tmp_path):
    """Oracle: as above, with headings of the suites and values at the edges of six rows; one has twelve domains."""
    rows: list[Any] = [(f"Method {i}", f"unknown_{i}", {}) for i in range(6)]
    domains = [*synthetic.DOMAINS, *((f"d{i}", f"Domain no. {i} of Biomedicine") for i in range(7))]
    for suite, stages in (("one", 5), ("two", 12)):
        options: Any = {"seeds": 1, "stages": stages, "evaluations": 1, "scores": False, "domains": domains[:stages]}
        synthetic.write(tmp_path, suite, rows=rows, similarities=False, **options)
    study = Study("one+two", [run for suite in ("one", "two") for run in load_runs(tmp_path, suite)])
    count, outside, overlapping = faults(figures.drawn(lambda: paper_tables.load("trend_main").render(study)))
    assert count > 2 * (5 + 12) + 4 * 6 + 6 and not outside and not overlapping


def test_axes_end_where_the_data_ends_and_say_their_scale(study, drawn):
    """Oracle: the last evaluation's charge, the lowest and highest of all seeds, and what matplotlib scales by."""
    paper_tables.load("trend_main").render(study)
    for axis, metric in zip(drawn[0].axes, ["ap", "ap_plus"], strict=True):
        shown = study.evaluations.dropna(subset=[metric])
        means = shown.groupby(["row", "stage", "order"])["charged"].mean()
        assert axis.get_xlim() == (0, means.max())
        transform = axis.yaxis.get_transform()
        low, high = transform.transform(np.array(axis.get_ylim()))
        first, last = transform.transform(np.array([shown[metric].min(), shown[metric].max()]))
        assert 0 < first - low < 0.05 * (last - first) and 0 < high - last < 0.05 * (last - first)
        name = {"ap": "AP", "ap_plus": "AP⁺"}[metric]
        assert axis.get_ylabel().startswith(f"{name} ({axis.get_yscale()}")
        assert axis.get_xlabel() == f"Train wall time (s, {axis.get_xscale()})"


@pytest.mark.parametrize("name", ["f1_by_stage", "representational_similarity"])
def test_an_axis_of_stages_ends_where_these_do(tmp_path, drawn, name):
    """Oracle: the rows end after three of five stages: half a stage, which their markers share, is left on both sides;
    the first model has a score but no ancestor."""
    synthetic.write(tmp_path, "demo", rows=[("ER", "er", {})], seeds=2, finished=3)
    paper_tables.load(name).render(Study("demo", load_runs(tmp_path, "demo")))
    first = 0 if name == "f1_by_stage" else 1
    for axis in (axis for axis in drawn[0].axes if axis.axison):
        assert axis.get_xlim() == (first - 0.5, 2.5)
        assert [label.get_text() for label in axis.get_xticklabels()] == ["M1", "M2", "M3"][first:]


def test_the_last_value_of_each_row_stands_at_the_right_edge(study, drawn):
    """Oracle: the AP of the last stages' ends, as tables have it, from the highest to the lowest."""
    paper_tables.load("trend_main").render(study)
    axis = drawn[0].axes[0]
    texts = {text.get_position()[1]: text.get_text() for text in axis.texts if not isinstance(text, Annotation)}
    ends = study.ends[study.ends["stage"] == 4].groupby("row")["ap"].mean()
    assert [texts[place] for place in sorted(texts)] == [f"{value:.2f}" for value in sorted(ends)]


def test_panels_of_scores_have_one_axis_and_end_values(study):
    """Oracle: the limits that matplotlib draws with; the last line of the table of scores, with its digits."""
    figure = figures.drawn(lambda: paper_tables.load("f1_by_stage").render(study))
    shown = [axis for axis in figure.axes if axis.axison]
    assert len({axis.get_ylim() for axis in shown}) == 1 and len(shown) == 6
    [block] = synthetic.load("main_downstream").build(study).blocks
    for place, axis in enumerate(shown):
        expected = sorted(row.cells[place].number for row in block.rows if row.competes)
        assert sorted(text.get_text() for text in axis.texts) == expected


def test_attention_says_what_its_colours_and_sides_are(study, drawn):
    """Oracle: the scale of square roots: a quarter of the maximum stands half way up."""
    paper_tables.load("attention_patterns").render(study)
    *pictures, bar = drawn[0].axes
    assert "square root" in bar.get_ylabel()
    labels = {label.get_text(): label.get_position()[1] for label in bar.get_yticklabels()}
    assert labels["25%"] == 0.5 and labels["100%"] == 1.0
    assert pictures[-1].get_xlabel() == "key →" and "query ↓" in pictures[0].get_ylabel()
    for picture in pictures:
        shares = picture.images[0].get_array()
        assert shares.max() == 1.0 and np.isclose(shares.min(), np.sqrt(100 / 500))


def test_forgetting_stands_against_what_differs(tmp_path, drawn):
    """Oracle: AP+ at the end of each run, and FLOPs of which each row here spends another number; all else is alike."""
    synthetic.write(tmp_path, "demo")
    runs = load_runs(tmp_path, "demo")
    for run in runs:
        for line in (line for stage in run.stages for line in stage if isinstance(line, EvaluationLine | DoneLine)):
            line.charged = {**line.charged, "flops": 1e9 * (2 + run.line.row_index)}
    study = Study("demo", runs)
    paper_tables.load("forgetting_cost").render(study)
    (axis,) = drawn[0].axes
    assert axis.get_xlabel().startswith("Training FLOPs") and axis.get_ylabel().startswith("AP⁺")
    ends = study.ends[study.ends["stage"] == 4].groupby("row")[["flops", "ap_plus"]].mean()
    front, *lines = axis.lines
    shown = study.ends[study.ends["stage"] == 4]
    spent, least = shown["flops"].max(), shown["flops"].min()
    np.testing.assert_allclose(axis.get_xlim(), (least - 0.03 * spent, 1.03 * spent))
    bottom, top = axis.yaxis.get_transform().transform(np.array(axis.get_ylim()))
    low, high = axis.yaxis.get_transform().transform(np.array([shown["ap_plus"].min(), shown["ap_plus"].max()]))
    np.testing.assert_allclose((low - bottom, top - high), 0.03 * (high - low), rtol=1e-6)
    points = {line.get_label(): (line.get_xdata()[0], line.get_ydata()[0]) for line in lines}
    assert set(points) == set(ends.index)
    best = [cost for cost, loss in ends.to_numpy() if loss == ends[ends["flops"] <= cost]["ap_plus"].min()]
    assert list(front.get_xdata()) == sorted(best) and front.get_drawstyle() == "steps-post"
    for row, end in ends.iterrows():
        np.testing.assert_allclose(points[str(row)], end)
    [block] = synthetic.load("forgetting_cost_table").build(study).blocks
    shown = {row.stub[0]: row.cells for row in block.rows}
    for row, (cost, loss) in ends.iterrows():
        assert (shown[row][0].mean, shown[row][-2].mean) == pytest.approx((loss, cost / ends["flops"].min()))
        assert shown[row][-1].text == ("flops" if cost in best else "")


def test_no_label_is_cut_off(study):
    """Oracle: the extents that the renderer reports, with perplexities of four digits, lie inside the figure."""
    for run in study.runs:
        for stage in run.stages:
            for line in stage:
                if isinstance(line, EvaluationLine):
                    line.perplexity = {name: 300 * value for name, value in line.perplexity.items()}
    for name in KINDS:
        figure = figures.drawn(partial(paper_tables.load(name).render, study))
        figure.draw_without_rendering()
        for axis in figure.axes:
            extent = axis.get_tightbbox()
            assert extent.x0 >= 0 and extent.y0 >= 0 and extent.x1 <= figure.bbox.x1 and extent.y1 <= figure.bbox.y1


def test_a_performance_profile_counts_stages(study, drawn):
    """Oracle: by definition, on the means over seeds; the best row of each stage starts it."""
    paper_tables.load("performance_profile").render(study)
    ends = study.ends[study.ends["stage"] > 0].groupby(["stage", "row"])["ap"].mean().unstack()
    lines = {line.get_label(): line for line in drawn[0].axes[0].lines if line.get_label()[0] != "_"}
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
    lines = {line.get_label(): line.get_color() for line in drawn[0].axes[0].lines if line.get_label()[0] != "_"}
    assert lines == {row: style["color"] for row, style in styles(study.runs).items() if row != "ER"}


def test_a_profile_judges_a_row_on_the_suites_that_have_it(tmp_path, drawn):
    """Oracle: PNN, the only row of a second suite, is the best of its four later stages, and so of half its eight."""
    for suite, rows in (("one", ["ER", "PNN", "ELLE"]), ("two", ["PNN"])):
        synthetic.write(
            tmp_path, suite, seeds=1, scores=False, rows=[(row, synthetic.METHODS[row][0], {}) for row in rows]
        )
    study = Study("one+two", [run for suite in ("one", "two") for run in load_runs(tmp_path, suite)])
    paper_tables.load("performance_profile").render(study)
    shares = {line.get_label(): line.get_ydata() for line in drawn[0].axes[0].lines}
    assert shares["PNN"][0] == 0.5 and shares["ELLE"][0] == shares["ELLE"][-1] == 1.0
    assert "of suites that have the row: ER, ELLE" in drawn[0].texts[0].get_text().replace("\n", " ")


@pytest.mark.parametrize("name", one_in(3, KINDS))
def test_a_figure_is_the_same_bytes_on_another_day_and_embeds_its_fonts(study, monkeypatch, name):
    """Oracle: byte equality under another clock, and another matplotlibrc; PDF font dictionaries of TrueType (Type 42)
    with an embedded file."""
    first = paper_tables.load(name).render(study)
    monkeypatch.setattr("time.time", lambda: 2e9)
    of_user: Any = {"text.usetex": True, "lines.linewidth": 9, "axes.facecolor": "red", "axes.grid": True}
    with matplotlib.rc_context(of_user):
        assert paper_tables.load(name).render(study) == first
    assert b"/FontFile2" in first["pdf"] and b"/Type3" not in first["pdf"]
    assert b"/CreationDate" not in first["pdf"]


@pytest.mark.parametrize("name", one_in(3, KINDS))
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
