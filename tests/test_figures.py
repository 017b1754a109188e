"""Figures: what they draw, and that the files embed their fonts and never change on their own."""

import re
from itertools import combinations
from pathlib import Path
from typing import Any
from unittest.mock import patch

import matplotlib
import numpy as np
import pytest
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.text import Text
from msgspec import structs

from analysis import catalogue, figures
from analysis.figures import CaptionedFigure
from analysis.study import Study
from benchmark.ledger.records import EvaluationLine, select_kind
from benchmark.ledger.runs import load_runs
from tests.support import synthetic
from tests.support.thorough import one_in

KINDS = [
    "trend_main",
    "f1_by_stage",
    "representational_similarity",
    "attention_patterns",
    "stage_domain_matrix",
]  # one exhibit of each kind of figure


@pytest.fixture
def study(tmp_path) -> Study:
    synthetic.write(tmp_path / "runs", "demo")
    return Study("demo", load_runs(tmp_path / "runs", "demo"))


def find_overlaps(figure: Figure) -> tuple[int, list[tuple[str, str]]]:
    """How many texts are drawn, and which pairs overlap by more than a pixel."""
    drawn: dict[Text, None] = {}
    draw = Text.draw

    def note_and_draw(text: Text, renderer: Any) -> None:
        drawn[text] = None
        draw(text, renderer)

    with patch.object(Text, "draw", note_and_draw):
        figure.draw_without_rendering()
    boxes = {
        text: Text.get_window_extent(text).padded(-0.5)  # without the arrows of annotations
        for text in drawn
        if text.get_visible() and text.get_text().strip()
    }
    pairs = [
        (first.get_text(), second.get_text())
        for first, second in combinations(boxes, 2)
        if boxes[first].overlaps(boxes[second])
    ]
    return len(boxes), pairs


def said(figure: CaptionedFigure) -> str:
    """The sentences for a figure's caption."""
    return figure.sentences


def test_a_trend_curve_is_the_mean_over_seeds_and_its_band_spans_them(study):
    """Oracle: the evaluations of one row, averaged here with plain numpy."""
    figure = synthetic.load("trend_main").draw(study)
    for axis, metric in zip(figure.axes, ["ap", "ap_plus"], strict=True):
        line = next(line for line in axis.lines if line.get_label() == "_ER")
        of_er = study.evaluations[study.evaluations["row"] == "ER"].dropna(subset=[metric])
        seeds = np.array(
            [of_er[of_er["seed"] == seed][[metric, "charged"]].to_numpy() for seed in (0, 1)]
        )
        np.testing.assert_allclose(line.get_ydata(), seeds.mean(0)[:, 0])
        np.testing.assert_allclose(line.get_xdata(), seeds.mean(0)[:, 1])
        bands = [path.vertices for band in axis.collections for path in band.get_paths()]
        assert any(np.isclose(band[:, 1].max(), seeds[:, :, 0].max()) for band in bands)


def test_a_stage_that_has_not_ended_is_drawn(tmp_path):
    """Oracle: the evaluations of a run in its first stage. AP⁺'s panel, without any, says so."""
    row: list[Any] = [("ER", "er", {})]
    synthetic.write(tmp_path, "demo", rows=row, seeds=1, finished=0)
    study = Study("demo", load_runs(tmp_path, "demo"))
    ap, ap_plus = synthetic.load("trend_main").draw(study).axes[:2]
    line = next(line for line in ap.lines if line.get_label() == "_ER")
    np.testing.assert_allclose(line.get_ydata(), study.evaluations["ap"])
    assert ap_plus.texts[0].get_text() == "no evaluation yet"


@pytest.mark.parametrize("seeds", [1, 3])
@pytest.mark.parametrize("name", ["trend_main", "f1_by_stage", "representational_similarity"])
def test_a_figure_says_what_its_bands_are(tmp_path, name, seeds):
    """By hand: with several seeds the caption says that bands or bars span the lowest to the
    highest, with one seed it does not. It always gives the number of seeds.
    """
    synthetic.write(tmp_path, "demo", seeds=seeds)
    figure = synthetic.load(name).draw(Study("demo", load_runs(tmp_path, "demo")))
    spread = "band" if name == "trend_main" else "bar"
    says = re.search(rf"(?i)\b{spread}: .*\blowest\b.*\bhighest\b", said(figure))
    assert bool(says) == (seeds > 1)
    assert (" 3 seeds" if seeds > 1 else "one seed") in said(figure).lower()


@pytest.mark.parametrize("evaluations", [1, 4])
def test_a_line_joins_the_ends_of_stages_of_which_nothing_else_is_known(tmp_path, evaluations):
    """Oracle: by hand: with one evaluation per stage one line joins five points, with four there
    are five lines of four points. A stage's value before its first step is in no line.
    """
    study = synthetic.study(tmp_path, evaluations=evaluations, seeds=2, scores=False)
    for stage in (stage for run in study.runs for stage in run.stages):
        first = select_kind(stage, EvaluationLine)[0]
        begin = structs.replace(first, step=0, phase="start")
        stage.insert(stage.index(first), begin)
    figure = synthetic.load("trend_main").draw(Study("demo", study.runs))
    axis = figure.axes[0]
    line = next(line for line in axis.lines if line.get_label() == "_ER")
    is_known = np.isfinite(np.asarray(line.get_ydata(), float))
    assert is_known.sum() == 5 * evaluations
    pieces = int(is_known[0]) + np.count_nonzero(np.diff(is_known.astype(int)) == 1)
    assert pieces == (1 if evaluations == 1 else 5)
    assert len(axis.collections[0].get_paths()) == pieces, "the band breaks where the line does"
    assert "hollow circle" in said(figure)


def named(axis: Any) -> list[str]:
    """The names at the ends of a panel's lines, from the top, each with its value, in one line."""
    return [
        " ".join(text.get_text().split())
        for text in sorted(axis.texts, key=lambda text: -text.xyann[1])
    ]


def test_a_row_of_fewer_seeds_says_so_at_its_line(study):
    """By hand: one of ER's two runs is taken away, so ER's name says n = 1 and no other name says
    an n.
    """
    kept = [run for run in study.runs if (run.row, run.seed) != ("ER", 1)]
    figure = synthetic.load("trend_main").draw(Study("demo", kept))
    assert [name.rpartition(" ")[0] for name in named(figure.axes[0]) if "(n =" in name] == [
        "ER (n = 1)"
    ]
    assert re.search(r"\b2 seeds\b.*\bn\b", said(figure))


@pytest.fixture(scope="module")
def crowded(tmp_path_factory) -> Study:
    """Twenty rows, one with a name of ninety letters, over twelve domains, most of long titles."""
    folder = tmp_path_factory.mktemp("crowded")
    rows: list[Any] = [(f"Method {i} (option = {10**i:,})", f"unknown_{i}", {}) for i in range(12)]
    rows += [(name, method, {}) for name, (method, _, _) in list(synthetic.METHODS.items())[:7]]
    rows += [
        (
            "A row whose name says everything that its author knew of it, and somewhat more than "
            "that",
            "elle",
            {},
        )
    ]
    domains = [*synthetic.DOMAINS, *((f"d{i}", f"Domain no. {i} of Biomedicine") for i in range(7))]
    synthetic.write(folder, "demo", rows=rows, seeds=2, stages=12, evaluations=2, domains=domains)
    return Study("demo", load_runs(folder, "demo"))


def test_no_two_rows_share_a_colour_and_each_keeps_its_own(tmp_path):
    """Oracle: the palette. Each colour is given once, first to ER and ELLE, though they end with
    the highest AP here, then to the rows with the lowest final AP. A row has its own colour in any
    figure, but if ten rows or more are shown, all except eight are grey.
    """
    rows: list[Any] = [
        (name, "naive", {}) for name in ("ER", "ELLE", *(f"row {i}" for i in range(18)))
    ]
    study = synthetic.study(tmp_path, rows=rows, seeds=1, stages=2, evaluations=1, scores=False)
    ends = study.ends.query("stage == 1").set_index("row")["ap"]
    ends[["ER", "ELLE"]] = 1e6, 1e5
    study.ends["ap"] = study.ends["row"].map(ends)
    own = figures.assign_colours(study)
    assert list(own.items()) == list(
        zip(["ER", "ELLE", *ends.nsmallest(11).index], figures.COLOURS, strict=True)
    )
    for shown in (
        [*ends.index],
        [*own][:10],
        [*own][2:11],
        [*own][5:8],
        [ends.idxmax(), [*own][-1]],
    ):
        colours = {
            row: style["color"] for row, style in figures.choose_styles(study, shown).items()
        }
        kept = [row for row in own if row in shown][: 8 if len(shown) > 9 else 9]
        assert colours == {row: own[row] if row in kept else figures.GREY for row in shown}


def test_names_stand_at_the_ends_of_lines_in_their_order(crowded):
    """Oracle: each row's mean over seeds of its last AP and AP⁺, from the records, in order. Grey
    rows are named in the caption instead.
    """
    figure = synthetic.load("trend_main").draw(crowded)
    last = crowded.ends[crowded.ends["stage"] == 11].groupby("row")[["ap", "ap_plus"]].mean()
    styles = figures.choose_styles(crowded, dict.fromkeys(run.row for run in crowded.runs))
    grey = [row for row, style in styles.items() if style["color"] == figures.GREY]
    assert len(grey) == 12 and f"Grey: {', '.join(grey)}" in said(figure)
    for axis, metric in zip(figure.axes, last.columns, strict=True):
        ends = last[metric].drop(grey).sort_values(ascending=False)
        assert sorted(named(axis)) == sorted(
            f"{row} {figures.shorten_number(end)}" for row, end in ends.items()
        )
        values = [float(name.rpartition(" ")[2].replace("−", "-")) for name in named(axis)]
        assert values == sorted(values, reverse=True)


def test_what_growth_breaks_does_not_set_the_scale(tmp_path):
    """Oracle: the limits of the figure without spikes: a perplexity of a million before the first
    step of each stage and within the first stage. AP⁺ begins where the second stage does.
    """
    study = synthetic.study(tmp_path, evaluations=4)
    calm = [axis.get_ylim() for axis in synthetic.load("trend_main").draw(study).axes]
    for stage in (stage for run in study.runs for stage in run.stages):
        first = select_kind(stage, EvaluationLine)[0]
        spike = structs.replace(
            first,
            phase="start",
            charged=dict.fromkeys(first.charged, 0.01),
            perplexity=dict.fromkeys(first.perplexity, 1e6),
        )
        stage.insert(stage.index(first), spike)
    for first_stage in (run.stages[0] for run in study.runs):
        early = next(
            place
            for place, line in enumerate(first_stage)
            if getattr(line, "phase", "") not in ("", "start")
        )
        first_stage[early] = structs.replace(first_stage[early], perplexity=spike.perplexity)
    figure = synthetic.load("trend_main").draw(Study("demo", study.runs))
    assert [axis.get_ylim() for axis in figure.axes] == [pytest.approx(limits) for limits in calm]
    assert figure.axes[1].get_xlim()[0] == pytest.approx(60, rel=0.003) and "hollow circle" in said(
        figure
    )


def test_what_forgets_nothing_stands_at_the_bottom_edge(study):
    """Oracle: by hand: the axis has a margin of a twentieth of the range at both ends, so the
    lowest AP⁺, 0, lies at 0.05 / 1.1 of its length.
    """
    study.evaluations.loc[study.evaluations["row"] == "ER", "ap_plus"] = 0.0
    study.evaluations["ap_plus"] = study.evaluations["ap_plus"].clip(lower=0.0)
    axis = synthetic.load("trend_main").draw(study).axes[1]
    low, high = axis.get_ylim()
    assert -low / (high - low) == pytest.approx(0.05 / 1.1) and axis.get_ylabel() == "AP⁺ (linear)"


def test_names_can_be_read_on_white_and_on_the_dark_page():
    """Oracle: WCAG 2.2's formula of contrast, 4.5:1, for rows' colours and the page's soft text."""
    page = (Path(figures.__file__).parent / "page.html").read_text(encoding="utf-8")
    (soft, white), (dark_soft, black) = re.findall(r"--soft: (#\w+);.*--back: (#\w+);", page)[:2]
    for colour, dark in {**figures.COLOURS, soft: dark_soft}.items():
        for pair in ((colour, white), (dark, black)):
            c = np.array([to_rgb(part) for part in pair], float)
            light = (
                np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4)
                @ [0.2126, 0.7152, 0.0722]
                + 0.05
            )
            assert max(light) / min(light) >= 4.5, colour


@pytest.mark.parametrize(
    ("name", "column"), [("stage_domain_matrix", "perplexity"), ("f1_by_stage", "average")]
)
def test_who_cannot_see_a_figure_is_told_its_numbers(study, name, column):
    """Oracle: ER's last perplexities, and the mean of its last scores, averaged over seeds here."""
    ends = study.ends[(study.ends["row"] == "ER") & (study.ends["stage"] == 4)]
    scores = study.scores[
        (study.scores["row"] == "ER") & (study.scores["stage"] == 4) & study.scores["headline"]
    ]
    numbers = (
        np.mean([*ends["perplexity"]], axis=0)
        if column == "perplexity"
        else [100 * scores["test"].mean()]
    )
    told = figures.describe(synthetic.load(name).draw(study))
    assert f"ER {', '.join(map(figures.shorten_number, numbers))}" in told


@pytest.mark.parametrize("name", KINDS)
def test_no_texts_overlap_in_a_crowded_figure(crowded, name):
    """Oracle: the boxes of all texts that matplotlib's renderer draws. Texts may reach beyond the
    figure, because its files keep them.
    """
    few = [
        run for run in crowded.runs if run.line.row_index > 16
    ]  # each has a panel of its own, the same for any number of rows
    study = Study("demo", few) if "matrix" in name else crowded
    count, overlapping = find_overlaps(synthetic.load(name).draw(study))
    assert not overlapping
    assert count > 20 or name == "attention_patterns"


@pytest.mark.parametrize("name", one_in(3, KINDS))
def test_a_figure_is_the_same_bytes_on_another_day_and_embeds_its_fonts(study, monkeypatch, name):
    """Oracle: byte equality under another clock, and another matplotlibrc; PDF font dictionaries of
    TrueType (Type 42) with an embedded file.
    """
    exhibit = catalogue.load(name)
    assert isinstance(exhibit, figures.FigureExhibit)
    first = exhibit.render(study)
    monkeypatch.setattr("time.time", lambda: 2e9)
    of_user: Any = {
        "text.usetex": True,
        "lines.linewidth": 9,
        "axes.facecolor": "red",
        "axes.grid": True,
    }
    with matplotlib.rc_context(of_user):
        assert exhibit.render(study) == first
    assert b"/FontFile2" in first.pdf and b"/Type3" not in first.pdf
    assert b"/CreationDate" not in first.pdf


def test_a_wide_figure_goes_over_both_columns_of_a_paper(study):
    """Oracle: by hand: two panels with names are wider than 4.6 inches, so LaTeX has a `figure*`,
    whose caption ends with the figure's sentences. The width is that of the page of the PDF.
    """
    picture = catalogue.load("trend_main").render(study)  # type: ignore[attr-defined]
    latex = picture.to_files("name", "fig:name", "What it is.")["tex"].decode()
    assert latex.startswith("\\begin{figure*}[t]") and latex.endswith("\\end{figure*}\n")
    assert "What it is. Lower is better. Mean of 2 seeds" in latex
    found = re.search(rb"/MediaBox \[ 0 0 ([\d.]+) ", picture.pdf)
    assert found and picture.width == pytest.approx(float(found[1]) / 72, abs=0.05)


def test_a_figure_of_some_rows_draws_these_and_no_others(tmp_path):
    """Oracle: the exhibit's rows, though the study also has others. No row is grey."""
    exhibit: Any = catalogue.load("trend_ap")
    names = ("EWC", *exhibit.rows, "MAS")
    rows: list[tuple[str, str, dict[str, Any]]] = [(name, "elle", {}) for name in names]
    synthetic.write(tmp_path, "demo", rows=rows, seeds=1, scores=False)
    study = Study("demo", load_runs(tmp_path, "demo"))
    figure = exhibit.draw(study)
    assert sorted(name.rpartition(" ")[0] for name in named(figure.axes[0])) == sorted(exhibit.rows)
    styles = figures.choose_styles(study, exhibit.rows)
    colours = [style["color"] for style in styles.values()]
    assert figures.GREY not in colours
