"""Footnotes of tables."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from analysis.notes import note_contended_stages, note_unequal_budgets, note_unequal_texts
from analysis.study import Study
from analysis.verdicts import Key, collect_measurements
from benchmark.records import DoneLine, EvaluationLine, Titled
from tests.support import synthetic

ROWS: list[tuple[str, str, dict[str, Any]]] = [
    (name, method, {}) for name, method in (("Naive", "naive"), ("EWC", "ewc"), ("ER", "er"), ("ELLE", "elle"))
]


def test_a_note_on_budgets_names_six_rows_in_their_unit():
    """Oracle: by hand; less than 2% are one step at the end; a row that takes next to nothing in a stage says 0."""
    spent = {
        **{f"equal {i}": 40.0 for i in range(8)},
        "a step more": 40.7,
        **{f"other {i}": 10.0 + i for i in range(7)},
        "all at once": 3e-4,
    }
    stages = pd.DataFrame(
        [{"done": True, "stage": 0, "unit": "reference", "row": row, "charged": value} for row, value in spent.items()]
    )
    others = ", ".join(f"other {i} {10 + i}" for i in range(6))
    note = f"Budgets differ in stage WB: typically 40 s, but {others} and 2 other rows."
    assert note_unequal_budgets(stages, ["WB"]) == [note]
    late = stages[~stages["row"].str.startswith("other")]
    assert note_unequal_budgets(late, ["WB"]) == ["Budgets differ in stage WB: typically 40 s, but all at once 0."]


def test_a_note_on_cores_names_the_six_worst_stages():
    """Oracle: by hand: of eight stages that lacked cores the two that lacked least are counted."""
    stages = pd.DataFrame(
        [
            {"row": "ER", "seed": seed, "stage": 0, "unit": "seconds", "cores": 0.9 - seed / 100 if seed < 8 else 0.99}
            for seed in range(9)
        ]
    )
    worst = "; ".join(f"ER, seed {seed}, in stage WB ({90 - seed}%)" for seed in (7, 6, 5, 4, 3, 2))
    note = f"Other programs took cores, so wall times do not compare: {worst} and 2 other stages."
    assert note_contended_stages(stages, ["WB"]) == [note]


def with_texts(tmp_path, changed: dict[str, dict[str, str]]) -> Study:
    """Two domains and a probe, each of its own text; of rows in `changed` some are another."""
    study = synthetic.study(tmp_path, rows=ROWS, stages=2)
    for run in study.runs:
        run.line.probes = [Titled("p", "Probe")]
        run.line.texts = {"wb": "0", "ns": "1", "p": "2"} | changed.get(run.row, {})
        run.line.unigram = {name: 100.0 + len(text) for name, text in run.line.texts.items() if name != "p"}
    return study


def differ(where: str, reference: str = "Naive") -> str:
    return (
        f"Texts differ in {where}. Their text, tokens or masks are not those of {reference} and of a unigram row, so "
        "perplexities do not compare, bits per byte only where each token of a text is predicted, and nothing of "
        "these rows is marked, ranked or judged."
    )


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, []),
        ({"ER": {"ns": "other"}}, [differ("Ns: ER")]),
        (
            {"ER": {"wb": "other", "p": "other"}, "EWC": {"ns": "other"}},
            [differ("Ns: EWC"), differ("WB, Probe: ER")],
        ),
        ({"Naive": {"wb": "other"}}, [differ("WB: Naive", "EWC")]),
        ({"ER": {"wb": "other"}, "ELLE": {"wb": "other"}}, [differ("WB: ER, ELLE")]),
    ],
)
def test_a_note_names_rows_on_other_texts(changed, expected, tmp_path):
    """Oracle: by hand: two seeds of a row are told once, and most rows decide what is other, of equally many the first
    row's."""
    assert note_unequal_texts(with_texts(tmp_path, changed), "demo") == expected


FIGURES = ["trend_main", "f1_by_stage", "representational_similarity"]
FIGURES += ["attention_patterns", "stage_domain_matrix"]


@pytest.mark.parametrize("name", FIGURES)
def test_figures_say_which_rows_are_on_other_texts(name, tmp_path):
    """Oracle: the note of tables, in the texts that are drawn below the panels."""
    row = "ELLE" if name == "attention_patterns" else "ER"  # the one that it shows
    said = []
    for i, changed in enumerate([{}, {row: {"ns": "other"}}]):
        exhibit, study = synthetic.load(name), with_texts(tmp_path / str(i), changed)
        said.append(" ".join(exhibit.figure(study).legends[0].get_title().get_text().split()))
    assert [differ(f"Ns: {row}") in text for text in said] == [False, True]


@pytest.mark.parametrize(
    ("names", "expected"), [(["wb"], []), (["a", "b"], [differ("WB, Ns: ER")]), (["wb", "b"], [differ("Ns: ER")])]
)
def test_a_row_of_other_domains_is_on_other_texts(names, expected, tmp_path):
    """Oracle: by hand; a stream that just ends earlier has the texts of the others."""
    study = with_texts(tmp_path, {})
    for run in study.runs:
        if run.row == "ER":
            run.line.domains = [
                Titled(name, domain.title) for domain, name in zip(run.line.domains, names, strict=False)
            ]
            run.line.texts, run.line.unigram = dict.fromkeys(names, "0"), dict.fromkeys(names, 100.0)
    assert note_unequal_texts(study, "demo") == expected


def test_a_row_that_other_code_trained_is_named(tmp_path):
    """Oracle: by hand: one seed of ER has a stage of another code; tables say so once, and name no other row."""
    study = synthetic.study(tmp_path, rows=ROWS, stages=2)
    next(run for run in study.runs if run.row == "ER").other_code = True
    for name in ("main_pretraining", "main_downstream", "units"):
        [note] = (note for note in synthetic.load(name).build(study).notes if "code" in note)
        assert note == "Methods' code has changed since, their `version` has not: ER. Their numbers are of the old one."


def test_a_row_on_other_texts_is_not_marked_ranked_or_judged(tmp_path):
    """Oracle: of the row with the lowest perplexities every mark, rank and verdict goes once its
    texts are others, and comes back when they are the same; what it measured stays."""
    same, other = (with_texts(tmp_path / str(i), {"ELLE": {"ns": "other"}} if i else {}) for i in range(2))
    for study, marked in ((same, True), (other, False)):
        for name in ("main_pretraining", "units", "lifelong_metrics"):
            table = synthetic.load(name).build(study)
            (row,) = (row for row in table.blocks[0].rows if row.stub == ("ELLE",))
            assert any(cell.best for cell in row.cells) == marked and any(cell.values for cell in row.cells), name
            assert name != "units" or bool(row.cells[1].text) == marked
            assert marked or any(cell.best for row in table.blocks[0].rows for cell in row.cells)
        ours = collect_measurements(study, "demo")
        assert bool(ours.get(Key("AP", "elle", 1))) == bool(ours.get(Key("area", "elle", 1))) == marked


def test_a_row_on_other_texts_sets_no_cost_of_the_others(tmp_path):
    """Oracle: the tables while the row spent what all did: with a hundredth of it all other lines stay as they were.

    Of its own it then has no number at their length, which it did not reach.
    """
    plain, cheap = (with_texts(tmp_path / str(i), {"ELLE": {"ns": "other"}}) for i in range(2))
    for line in (line for run in cheap.runs if run.row == "ELLE" for stage in run.stages for line in stage):
        if isinstance(line, EvaluationLine | DoneLine):
            line.charged = {unit: amount / 100 for unit, amount in line.charged.items()}
    before, after = (synthetic.load("units").build(study).blocks[0].rows for study in (plain, cheap))
    assert before[:-1] == after[:-1] and before[-1].stub == ("ELLE",)
    assert any(cell.values for cell in before[-1].cells) and not any(cell.values for cell in after[-1].cells)


@pytest.mark.parametrize("odd", ["Naive", "ELLE"])
def test_unigrams_are_those_of_most_rows_and_transfer_takes_a_runs_own(odd, tmp_path):
    """Oracle: the first or the last row is on text whose unigram perplexity is e times the others': the unigram row is
    that of the three others, the geometric mean of the domains so far as AP is, and the odd row predicts its second
    domain one nat better against its own."""
    plain, changed = (with_texts(tmp_path / str(i), {odd: {"ns": "other"}} if i else {}) for i in range(2))
    for study in (plain, changed):
        for run in study.runs:
            run.line.unigram = {"wb": 101.0, "ns": 404.0 * (np.e if study is changed and run.row == odd else 1)}
    (block,) = synthetic.load("main_pretraining").build(changed).blocks
    unigram = [cell.values for cell in block.rows[-1].cells if cell.values]
    assert unigram == [(pytest.approx(101.0),), (pytest.approx(202.0),)]
    table = synthetic.load("lifelong_metrics").build(changed)
    (place,) = (i for i, column in enumerate(table.columns) if column.name == "Forward transfer")
    before = synthetic.load("lifelong_metrics").build(plain).blocks[0].rows
    for row, other in zip(table.blocks[0].rows, before, strict=True):
        gained = np.subtract(row.cells[place].values, other.cells[place].values)
        assert gained == pytest.approx(1.0 if row.stub[0] == odd else 0.0)
