"""Tables of downstream scores: numbers against records written by hand."""

import copy

import numpy as np
import pytest
from msgspec.structs import replace

from analysis.report import load_study
from analysis.study import Study
from analysis.verdicts import Key, collect_measurements
from benchmark.downstream.tasks import IN_WINDOW
from benchmark.ledger import records
from benchmark.ledger.runs import load_runs
from benchmark.ledger.store import Store
from benchmark.settings.load import load_suite
from tests.support import synthetic
from tests.support.synthetic import load, study


def scores_by_definition(data, row: str, stage: int, domain: str, prompt: str) -> list[float]:
    """Every fine-tuning seed of every pre-training seed, in percent, from the score files."""
    runs = [run for run in data.runs if run.row == row]
    lines = [line for run in runs for line in run.scores[stage]]
    return [100 * line.test for line in lines if (line.domain, line.prompt) == (domain, prompt)]


def list_rows_by_ap(data: Study) -> list[str]:
    """The rows in the order of the table of perplexities."""
    rows = load("main_pretraining").build(data).blocks[0].rows
    return [row.label for row in rows if row.competes]


def test_downstream_table_holds_every_score_of_the_final_models(tmp_path):
    """Oracle: the score records. The average is the mean of the row's means, for each pre-training
    seed. The rows have the order of the table of perplexities.
    """
    data = study(tmp_path, seeds=3)
    table = load("main_downstream").build(data)
    (block,) = table.blocks
    assert [row.label for row in block.rows if row.competes] == list_rows_by_ap(data)
    for row in block.rows:
        if row.competes:
            prompt = "right" if row.label == "ELLE" else "none"
            scores = [
                scores_by_definition(data, row.label, 4, d, prompt) for d, _ in synthetic.DOMAINS
            ]
            expected = [np.array(values).reshape(3, 2).mean(axis=1) for values in scores]
            for cell, values in zip(row.cells, expected, strict=False):
                assert cell.values == pytest.approx(values)
            by_seed = np.mean(expected, axis=0)
            assert row.cells[-1].values == pytest.approx(by_seed)
            assert row.cells[-1].mean == pytest.approx(
                np.mean([cell.mean for cell in row.cells[:-1]])
            )
    baselines = {row.label: row.cells[0].mean for row in block.rows if not row.competes}
    assert baselines == {
        f"Baseline: {name}": 100 * value for name, value in synthetic.BASELINES.items()
    }


def test_word_counts_of_a_window_stand_beside_models_that_read_it(tmp_path):
    """Oracle: by hand: of two baselines with a window, the table shows the one that has the models'
    window, though the other was recorded later.
    """
    words = [
        line for line in study(tmp_path, seeds=1).runs[0].baselines if line.name == "bag of words"
    ]
    for window, test in (("w", 0.4), ("of another suite's model", 0.2)):
        for of_task in words:
            own = replace(of_task, name=IN_WINDOW, window=window, test=test)
            records.append(Store(tmp_path).scores_file("baselines"), own)
    data = Study("demo", load_runs(tmp_path, "demo"))
    for run in data.runs:
        for line in run.scores[4]:
            line.window = "w"
    rows = load("main_downstream").build(Study("demo", data.runs)).blocks[0].rows
    assert {row.label: row.cells[5].mean for row in rows if not row.competes} == pytest.approx(
        {"Baseline: majority": 30, "Baseline: bag of words": 55, f"Baseline: {IN_WINDOW}": 40}
    )


def test_linear_probes_have_a_block_of_their_own_beside_fine_tuning_and_its_place_without_it(
    tmp_path,
):
    """Oracle: by hand: each score of the first fine-tuning seed again as a probe's, 0.1 higher.
    Probes judge no claim of the paper, and no number of the paper stands beside them.
    """
    data = study(tmp_path, seeds=2)
    before, prompts = (load(name).build(data) for name in ("main_downstream", "prompt_finetuning"))
    for run in data.runs:
        for stage in run.scores:
            probes = [
                replace(line, protocol="linear_probe", test=line.test + 0.1)
                for line in stage
                if not line.seed
            ]
            stage += probes
    printed = {"demo": "bert_base"}
    both = Study("demo", [copy.copy(run) for run in data.runs], printed=printed)
    fine_tuned, probed = load("main_downstream").build(both).blocks
    assert (fine_tuned,) == before.blocks and load("prompt_finetuning").build(
        both
    ).blocks == prompts.blocks
    for row, name in zip(probed.rows, list_rows_by_ap(both), strict=True):
        scores = [
            scores_by_definition(data, name, 4, "bio", "right" if name == "ELLE" else "none")[i]
            for i in (2, 5)
        ]
        assert (row.label, row.competes) == (f"{name}, linear probe", True)
        assert row.cells[3].values == pytest.approx(scores)
    for run in data.runs:
        run.scores = [
            [line for line in stage if line.protocol == "linear_probe"] for stage in run.scores
        ]
    alone = Study("demo", data.runs, printed=printed)
    (block,) = load("main_downstream").build(alone).blocks
    assert [row.cells for row in block.rows if row.competes] == [row.cells for row in probed.rows]
    assert not collect_measurements(alone).get(Key("score", "naive", 4, "AVG"))
    for of_suite, are_printed in ((both, True), (alone, False)):
        rows = load("main_downstream").build(of_suite, "both").blocks[0].rows
        assert any(cell.printed for row in rows for cell in row.cells) == are_printed


def test_a_task_of_no_domain_has_a_column_that_is_in_no_average(tmp_path):
    """Oracle: by hand: probes' scores of 0.4 in the task's column. Other columns stay the same."""
    data = study(tmp_path, seeds=1)
    before = load("main_downstream").build(data)
    of_all = {"task": "which", "domain": "", "protocol": "linear_probe", "metric": "accuracy"}
    for run in data.runs:
        run.line.tasks = [*run.line.tasks, {"name": "which", "title": "Domain", "domain": ""}]
        for stage in run.scores:
            stage += [replace(line, **of_all, test=0.4) for line in stage if line.domain == "bio"]
    table = load("main_downstream").build(Study("demo", data.runs))
    assert [column.name for column in table.columns][-2:] == ["AVG", "Domain"]
    fine_tuned, probed = table.blocks
    for row, other in zip(fine_tuned.rows, before.blocks[0].rows, strict=True):
        assert row.cells[:-1] == other.cells and not (row.cells[-1].values or row.cells[-1].missing)
    assert all(row.cells[-1].values == pytest.approx([40.0]) for row in probed.rows)
    rows = [
        row.label
        for row in load("prompt_finetuning").build(Study("demo", data.runs)).blocks[0].rows
    ]
    assert rows == [row.label for row in load("prompt_finetuning").build(data).blocks[0].rows]
    assert any(", Domain: which (accuracy)" in note for note in table.notes)
    assert load("f1_by_stage").draw(Study("demo", data.runs))


def test_prompt_table_and_stage_table_pick_their_scores(tmp_path):
    """Oracle: the score records."""
    data = study(tmp_path, seeds=1)
    (block,) = load("prompt_finetuning").build(data).blocks
    for row, prompt in zip(block.rows, ["none", "wrong", "right", "picked"], strict=True):
        assert row.cells[1].values == pytest.approx(
            [np.mean(scores_by_definition(data, "ELLE", 4, "ns", prompt))]
        )
    blocks = {block.title: block for block in load("downstream_by_stage").build(data).blocks}
    assert list(blocks) == list(synthetic.METHODS)
    for stage, row in enumerate(blocks["ER"].rows):
        assert row.cells[2].values == pytest.approx(
            [np.mean(scores_by_definition(data, "ER", stage, "rev", "none"))]
        )


def test_models_that_are_never_scored_have_no_line(tmp_path):
    """Oracle: by hand: one suite scores only its last models, of which only ER's is there. Another
    suite scores all models.
    """
    data = study(tmp_path, seeds=1)
    for run in data.runs:
        run.scores = [[] for _ in run.scores[:-1]] + [run.scores[-1] if run.row == "ER" else []]
    alone = Study("demo", data.runs, only_last=frozenset(["demo"]))
    for of_suite, names in ((alone, ["M5"]), (data, ["M1", "M2", "M3", "M4", "M5"])):
        blocks = {
            block.title: block for block in load("downstream_by_stage").build(of_suite).blocks
        }
        for title, last in (("ER", False), ("Naive", True)):
            *earlier, final = blocks[title].rows
            assert [row.label for row in (*earlier, final)] == names
            assert all(cell.missing for row in earlier for cell in row.cells)
            assert [cell.missing for cell in final.cells] == [last] * 6
    suites = [load_suite("demo", {"finetuning.stages": stages}) for stages in ("last", "every")]
    assert [len(load_study([(suite, [])], tmp_path).only_last) for suite in suites] == [1, 0]


def test_a_domain_without_a_task_has_no_column_and_no_part_in_the_average(tmp_path):
    """Oracle: the scores of the four other domains. No table, figure or claim calls a score "not
    measured yet". A suite without tasks has only the average's column.
    """
    data = study(tmp_path, seeds=2)
    for run in data.runs:
        run.line.tasks = [task for task in run.line.tasks if task["domain"] != "bio"]
        run.scores = [[line for line in stage if line.domain != "bio"] for stage in run.scores]
    for name in ("main_downstream", "downstream_by_stage", "prompt_finetuning"):
        table = load(name).build(data)
        assert [column.name for column in table.columns] == ["WB", "Ns", "Rev", "CS", "AVG"]
        assert not [note for note in table.notes if "not measured yet" in note]
        *cells, average = table.blocks[0].rows[0].cells
        assert average.values == pytest.approx(np.mean([cell.values for cell in cells], axis=0))
    assert collect_measurements(data).get(Key("score", "naive", 4, "AVG")).keys() == {0, 1}
    assert len([axis for axis in load("f1_by_stage").draw(data).axes if axis.get_title()]) == 5
    for run in data.runs:
        run.line.tasks, run.scores = [], [[]] * 5
    table = load("main_downstream").build(Study("demo", data.runs))
    assert [column.name for column in table.columns] == ["AVG"]
    assert not [note for note in table.notes if "not measured yet" in note]
