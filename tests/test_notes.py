"""Footnotes of tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from msgspec import structs

from analysis.notes import collect_notes, note_contended_stages, note_unequal_texts
from analysis.study import Study
from analysis.verdicts import Key, collect_measurements
from benchmark.ledger.records import (
    CoreShare,
    EvaluationLine,
    FailedLine,
    StageDone,
    Titled,
    select_kind,
)
from benchmark.ledger.runs import load_runs
from tests.support import synthetic

ROWS: list[tuple[str, str, dict[str, Any]]] = [
    (name, method, {})
    for name, method in (("Naive", "naive"), ("EWC", "ewc"), ("ER", "er"), ("ELLE", "elle"))
]


def with_texts(tmp_path, changed: dict[str, dict[str, str]]) -> Study:
    """A study with two domains and a probe. Rows in `changed` have other texts for some of them."""
    study = synthetic.study(tmp_path, rows=ROWS, stages=2)
    for run in study.runs:
        run.line.probes = [Titled("p", "Probe")]
        run.line.texts = {"wb": "0", "ns": "1", "p": "2"} | changed.get(run.row, {})
        run.line.unigram = {
            name: 100.0 + len(text) for name, text in run.line.texts.items() if name != "p"
        }
    return study


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, []),
        ({"ER": {"ns": "other"}}, [("Ns: ER", "Naive")]),
        (
            {"ER": {"wb": "other", "p": "other"}, "EWC": {"ns": "other"}},
            [("Ns: EWC", "Naive"), ("WB, Probe: ER", "Naive")],
        ),
        ({"Naive": {"wb": "other"}}, [("WB: Naive", "EWC")]),
        ({"ER": {"wb": "other"}, "ELLE": {"wb": "other"}}, [("WB: ER, ELLE", "Naive")]),
    ],
)
def test_a_note_names_rows_on_other_texts(changed, expected, tmp_path):
    """Oracle: by hand: a row with two seeds is named once. The texts of most rows count as usual,
    and among ties the first row's.
    """
    notes = note_unequal_texts(with_texts(tmp_path, changed))
    assert len(notes) == len(expected)
    for note, (where, reference) in zip(notes, expected, strict=True):
        assert f"{where}." in note and f" {reference} " in note


def test_a_row_that_other_code_trained_is_named(tmp_path):
    """Oracle: by hand: one seed of ER was trained with other code of its method. Each table says so
    once, and names no other row.
    """
    study = synthetic.study(tmp_path, rows=ROWS, stages=2)
    next(run for run in study.runs if run.row == "ER").other_code = True
    for name in ("main_pretraining", "main_downstream", "units"):
        [note] = (note for note in synthetic.load(name).build(study).notes if "code" in note)
        assert ": ER. " in note


def test_core_code_that_was_edited_in_between_is_noted(tmp_path):
    """Oracle: by hand: seed 1 of ER has another hash of the sources. One note names both hashes.
    Another commit with the same hash has no note.
    """
    study = synthetic.study(tmp_path, rows=ROWS, stages=2)

    def set_code(stages: Sequence[Any], code: str) -> None:
        for stage in stages:
            provenance = structs.replace(stage[0].provenance, code=code)
            stage[0] = structs.replace(stage[0], provenance=provenance)

    for run in study.runs:
        set_code(run.stages, "aaa+sources-11")
    for code, noted in (("bbb+sources-11", False), ("bbb+sources-22", True)):
        for run in study.runs:
            if run.row == "ER" and run.seed == 1:
                set_code(run.stages[1:], code)  # the first is shared
        notes = [note for note in collect_notes(Study("demo", study.runs)) if "sources-" in note]
        assert len(notes) == noted
    assert "sources-11" in notes[0] and "sources-22 (ER)" in notes[0]


def test_rows_that_are_told_domains_are_named(tmp_path):
    """Oracle: by hand: one note in each table names the two rows that are told, if any."""
    study = synthetic.study(tmp_path, rows=ROWS, stages=2)
    assert not any("Told" in note for note in collect_notes(study))
    for run in study.runs:
        run.reads_domain = run.row in ("ER", "ELLE")
    for name in ("main_pretraining", "main_downstream", "units"):
        [note] = (note for note in synthetic.load(name).build(study).notes if "Told" in note)
        assert note.endswith(": ER, ELLE.")


def test_rows_whose_muon_took_fused_maps_whole_are_named(tmp_path):
    """Oracle: by hand: of four rows one has "whole", one is older than the setting, one has
    "apart", and one has another optimizer. The note names the first two.
    """
    study = synthetic.study(tmp_path, rows=ROWS, stages=2)
    training = {
        "Naive": {"optimizer": "muon", "fused_maps": "whole"},
        "EWC": {"optimizer": "muon"},
        "ER": {"optimizer": "muon", "fused_maps": "apart"},
        "ELLE": {"optimizer": "adamw", "fused_maps": "whole"},
    }
    for run in study.runs:
        run.line.config = {**run.line.config, "training": training[run.row]}
    [note] = (note for note in collect_notes(study) if "Muon" in note)
    maps = "matrices of several maps, such as fused query, key and value"
    assert note == f"Muon took {maps}, as one: Naive, EWC."


def test_a_row_on_other_texts_is_not_marked_ranked_or_judged(tmp_path):
    """Oracle: by hand: ELLE has the lowest perplexities, so it has marks, ranks and verdicts. If
    its texts are others, it has none, but keeps its values, except in `units`, which only ranks.
    """
    same, other = (
        with_texts(tmp_path / str(i), {"ELLE": {"ns": "other"}} if i else {}) for i in range(2)
    )
    for study, marked in ((same, True), (other, False)):
        units = synthetic.load("units").build(study)
        labels = [row.label for row in units.blocks[0].rows]
        assert ("ELLE" in labels) == marked
        assert any("ELLE" in note for note in units.notes) != marked
        for name in ("main_pretraining", "lifelong_metrics"):
            table = synthetic.load(name).build(study)
            (row,) = (row for row in table.blocks[0].rows if row.label == "ELLE")
            assert any(cell.best for cell in row.cells) == marked and any(
                cell.values for cell in row.cells
            ), name
            assert marked or any(cell.best for row in table.blocks[0].rows for cell in row.cells)
        ours = collect_measurements(study)
        assert (
            bool(ours.get(Key("AP", "elle", 1))) == bool(ours.get(Key("area", "elle", 1))) == marked
        )


def test_a_row_on_other_texts_sets_no_cost_of_the_others(tmp_path):
    """Oracle: the same table in which ELLE, whose texts are others, spends as much as each other
    row. If it spends a hundredth, no row changes.
    """
    plain, cheap = (with_texts(tmp_path / str(i), {"ELLE": {"ns": "other"}}) for i in range(2))
    for run in cheap.runs:
        for line in synthetic.list_lines(run, EvaluationLine, StageDone):
            if run.row == "ELLE":
                line.charged = {unit: amount / 100 for unit, amount in line.charged.items()}
    before, after = (
        synthetic.load("units").build(study).blocks[0].rows for study in (plain, cheap)
    )
    assert before == after and all(row.cells[0].values for row in before)


def test_notes_on_several_suites_say_whose_they_are(tmp_path):
    """Oracle: by hand: rows of two suites share a name, so a failure's note names the suite."""
    for suite in ("one", "two"):
        synthetic.write(tmp_path, suite, rows=ROWS, stages=2, seeds=1)
    runs = [*load_runs(tmp_path, "one"), *load_runs(tmp_path, "two")]
    runs[0].failure = FailedLine(stage=1, error="lost", traceback="")
    study = Study("one+two", runs)
    assert [note for note in collect_notes(study) if "lost" in note] == [
        "one: Naive, seed 0, failed in stage Ns: lost"
    ]


def test_stages_too_short_to_tell_who_took_cores_are_counted(tmp_path):
    """Oracle: by hand: one of two seeds ends its second stage after four seconds, so one stage is
    counted. A budget in steps has no note, because it does not depend on cores.
    """
    for unit, expected in (("seconds", ["1 stages"]), ("steps", [])):
        synthetic.write(tmp_path / unit, "demo", rows=ROWS[:1], stages=2, unit=unit)
        runs = load_runs(tmp_path / unit, "demo")
        [done] = select_kind(runs[0].stages[1], StageDone)
        done.charged["seconds"], done.cores = 4.0, CoreShare(share=None)
        notes = note_contended_stages(Study("demo", runs).stages, ["WB", "Ns"])
        assert len(notes) == len(expected) and all(
            words in note for words, note in zip(expected, notes, strict=True)
        )
