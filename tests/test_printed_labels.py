"""Labels beside numbers follow what was trained: brackets, headings, and names of scores."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

import methods
from analysis import catalogue, report
from analysis.exhibits import TableExhibit
from analysis.page import render_page
from analysis.paper_suites import read_models
from analysis.study import Study
from analysis.tables import Table
from benchmark.ledger.records import StageLine, Titled
from benchmark.ledger.runs import RunRecords, load_runs
from benchmark.settings.load import expand, load_suite
from benchmark.settings.names import make_slug
from tests.support import synthetic

NAMES = sorted(path.stem for path in catalogue.FOLDER.glob("printed/*.csv"))
ROWS: list[tuple[str, str, dict[str, Any]]] = [
    (label, "elle", {}) for label in ("ELLE", "WE + FRW", "Expand 0")
]
Ladder = Sequence[tuple[int, int]]


def load(name: str) -> TableExhibit:
    exhibit = catalogue.load(name)
    assert isinstance(exhibit, TableExhibit)
    return exhibit


def brackets(table: Table) -> list[str]:
    """The paper's numbers beside a table's cells. Its caption explains them if there are any."""
    cells = [cell for block in table.blocks for row in block.rows for cell in row.cells]
    printed = [cell.printed for cell in cells if cell.printed]
    assert ("In brackets: printed in the paper." in table.caption) == bool(printed)
    return printed


def set_ladder(run: RunRecords, ladder: Ladder) -> None:
    """Change a run's records as if it had trained these numbers of layers and hidden sizes."""
    rungs = [{"layers": layers, "hidden_size": hidden} for layers, hidden in ladder]
    run.line.config["model"]["ladder"] = rungs
    for stage, (layers, hidden) in zip(run.stages, ladder, strict=False):
        head = stage[0]
        assert isinstance(head, StageLine)
        stage[0] = structs.replace(head, layers=layers, hidden_size=hidden)


def write_as_printed(folder: Path, name: str) -> tuple[str, list[RunRecords]]:
    """The first suite that a table shows, and its runs with the sizes and tasks of the paper."""
    suite = load(name).suites[0]
    paper = load_suite(suite)
    synthetic.write(folder, suite, seeds=1, rows=ROWS, stages=len(paper.domains))
    runs = load_runs(folder, suite)
    for run in runs:
        model = read_models(suite).get(make_slug(run.row), paper.model)
        set_ladder(run, [(size.layers, size.hidden_size) for size in model.ladder])
        run.line.config["model"]["architecture"] = model.architecture
        own_tasks = load_suite("bert_base").tasks
        run.line.tasks = [task.model_dump(mode="json") for task in own_tasks]
    return suite, runs


@pytest.mark.parametrize("name", NAMES)
def test_brackets_stand_beside_the_papers_suites_rows_and_domains_alone(name, tmp_path):
    """Oracle: by hand: no bracket for another suite, in a table of other suites of the paper, or if
    a domain differs. Only the table of fine-tuning settings then keeps its brackets, because they
    belong to tasks.
    """
    suite, runs = write_as_printed(tmp_path, name)
    assert brackets(load(name).build(Study(suite, runs), "both"))
    assert not brackets(load(name).build(Study(suite, runs, printed={suite: ""}), "both"))
    other = min(catalogue.list_printed_blocks() - {*load(name).suites})
    assert not brackets(load(name).build(Study(suite, runs, printed={suite: other}), "both"))
    for run in runs:
        run.line.domains[2] = Titled("rev", "Python")
    has_marks = bool(brackets(load(name).build(Study(suite, runs), "both")))
    assert has_marks == (name == "finetuning_hyperparameters"), "which are of tasks"


OTHER_TEXTS = {
    "packages": {"packages": ["stdlib"]},
    "files": {"train": ["own.jsonl"], "datasets": []},
    "data set": {"datasets": [{"path": "someone/sonnets"}]},
    "configuration": {"datasets": [{"path": "allenai/c4", "name": "de"}]},
}


CHANGES = ["architecture", "third rung", "recorded size", *OTHER_TEXTS]
# each table with one change, and each change in one table: all tables ask the same function
CHANGED = sorted(
    {(name, "files") for name in NAMES if name != "finetuning_hyperparameters"}
    | {("main_pretraining", change) for change in CHANGES}
)


@pytest.mark.parametrize(("name", "change"), CHANGED)
def test_no_bracket_stands_beside_another_model_or_text(name, change, tmp_path):
    """Oracle: by hand: the paper trained no Llama, no model of another third size, none that does
    not grow, and none on docstrings, own files or another data set. So there is no bracket,
    although the suite extends the paper's and domains have its titles.
    """
    suite, runs = write_as_printed(tmp_path, name)
    domains = load_suite(suite).model_dump(mode="json")["domains"]
    for run in runs:
        run.line.config["domains"] = domains
    study = Study("mine", runs, printed={suite: suite})
    assert brackets(load(name).build(study, "both"))
    for run in runs:
        config = run.line.config
        ladder = config["model"]["ladder"]
        sizes = [(size["layers"], size["hidden_size"]) for size in ladder]
        if change == "architecture":
            config["model"]["architecture"] = "llama"
        elif change == "third rung":
            set_ladder(run, [*sizes[:2], (6, 640), *sizes[3:]])
        elif change == "recorded size":
            set_ladder(run, sizes[:1] * len(sizes))
            config["model"]["ladder"] = ladder
        else:
            config["domains"] = [OTHER_TEXTS[change] for _ in run.domains]
    study = Study("mine", runs, printed={suite: suite})
    assert not brackets(load(name).build(study, "both"))


OTHER_EXAMPLES = (
    {"dataset": None, "train": "a.jsonl", "dev": "b.jsonl", "test": "c.jsonl"},
    {"dataset": {"path": "someone/claims"}},
    {"dataset": {"path": "nyu-mll/glue", "name": "rte"}},
)
OF_TASKS = [name for name in NAMES if "downstream" in name or "finetuning" in name]


@pytest.mark.parametrize(
    ("name", "source"),
    [
        *((name, OTHER_EXAMPLES[0]) for name in OF_TASKS),
        *(("main_downstream", source) for source in OTHER_EXAMPLES[1:]),
    ],
)
def test_no_bracket_stands_beside_a_task_of_other_examples(name, source, tmp_path):
    """Oracle: by hand: the first domain's task has the paper's title but other examples, so its
    column and the average have no bracket. The other columns keep theirs.
    """
    suite, runs = write_as_printed(tmp_path, name)
    before = load(name).build(Study(suite, runs), "both")
    for run in runs:
        run.line.tasks[0] |= source
    after = load(name).build(Study(suite, runs), "both")
    assert brackets(before)
    for block, other in zip(before.blocks, after.blocks, strict=True):
        for row, row_of_other in zip(block.rows, other.rows, strict=True):
            expected = [cell.printed for cell in row.cells]
            expected[0] = ""
            if name != "finetuning_hyperparameters":
                expected[5] = ""
            assert [cell.printed for cell in row_of_other.cells] == expected


def test_no_bracket_stands_beside_a_mean_with_another_task(tmp_path):
    """Oracle: by hand: the first domain has a task of the suite's own too, so neither the mean of
    both nor the average has a bracket.
    """
    suite, runs = write_as_printed(tmp_path, "main_downstream")
    for run in runs:
        run.line.tasks.append(run.line.tasks[0] | OTHER_EXAMPLES[0] | {"title": "Own"})
    table = load("main_downstream").build(Study(suite, runs), "both")
    cells = [row.cells for block in table.blocks for row in block.rows]
    assert brackets(table)
    assert not any(row[0].printed or row[5].printed for row in cells)


@pytest.mark.parametrize("name", ["budgets_pretraining", "budgets_downstream"])
def test_a_suite_without_the_row_that_a_table_selects_has_its_own_rows(name, tmp_path):
    """Oracle: by hand: the suite's only row."""
    synthetic.write(tmp_path, "bert_base", rows=[("Naive", "naive", {})], seeds=1)
    table = load(name).build(Study("bert_base", load_runs(tmp_path, "bert_base")))
    assert [row.label for block in table.blocks for row in block.rows] == ["Naive"]


def test_another_budget_beside_brackets_is_told(tmp_path):
    """Oracle: the amounts: 60 seconds here, 60,000 in the first stage of the paper. Only the last
    row has another memory, so only it is named with its memory.
    """
    suite, runs = write_as_printed(tmp_path, "main_pretraining")
    *others, last = runs
    last.line.config["data"] = {"memory_tokens": 7}
    [note] = (
        note
        for note in load("main_pretraining").build(Study(suite, runs), "both").notes
        if "paper's numbers" in note
    )
    assert "budget.amount is 60.0, the paper's [60000.0, 24000.0" in note
    own = note.partition("memory_tokens is 7, ")[2]
    assert f"({last.row})" in own
    assert not any(run.row in own for run in others)
    del last.line.config["data"]
    budget = {"unit": "seconds", "amount": [60_000.0, 24_000.0, 50_000.0, 58_000.0, 68_000.0]}
    for run in runs:
        run.line.config["budget"] = budget
    notes = load("main_pretraining").build(Study(suite, runs), "both").notes
    assert not any("paper's numbers" in note for note in notes)


def test_a_blocks_heading_tells_the_budget_and_the_memory(tmp_path):
    """Oracle: by hand, from the suite's file and a changed setting."""
    (tmp_path / "runs").mkdir()
    read = load_suite("half_time", {"data.memory_tokens": 900_000_000})
    configs = expand(read, methods.list_rows(read), [0])
    table = load("budgets_pretraining").build(
        report.load_study([(read, configs)], tmp_path / "runs")
    )
    assert table.blocks[0].title == (
        "BERT from L6_D384 to L12_D768, 60,000, 12,000, 25,000, 29,000, 34,000 measured seconds "
        "per stage, a memory of 900,000,000 tokens per domain"
    )


def test_scores_are_called_by_their_metric(tmp_path):
    """Oracle: the metric of each score: all F1, all accuracy, or both."""
    data = synthetic.study(tmp_path, seeds=1)
    captions = []
    for metrics in (["macro_f1"], ["accuracy"], ["accuracy", "micro_f1"]):
        for run in data.runs:
            run.scores = [
                [
                    structs.replace(line, metric=metrics[place % len(metrics)])
                    for place, line in enumerate(stage)
                ]
                for stage in run.scores
            ]
        captions.append(load("main_downstream").build(Study("demo", data.runs)).caption)
    assert ["(F1, %)" in captions[0], "(accuracy, %)" in captions[1]] == [True, True]
    assert "(F1 or accuracy, %)" in captions[2]


SMALL = [(1, 16), (1, 24), (2, 24), (2, 32), (3, 32)]
LARGE = [(4, 64)] * 5
SPAN = "from L1_D16 to L3_D32"


@pytest.mark.parametrize(
    ("ladder", "architecture", "heading"),
    [
        (SMALL, "gpt", f"GPT {SPAN}"),
        (SMALL, "llama", f"GPT and LLAMA {SPAN}"),
        (LARGE, "gpt", "GPT, sizes differ by row"),
        (LARGE, "llama", "GPT and LLAMA, sizes differ by row"),
    ],
)
def test_a_blocks_heading_is_of_all_its_rows(ladder, architecture, heading, tmp_path):
    """Oracle: by hand: row Naive is a GPT from L1_D16 to L3_D32, and the other row as given."""
    rows: list[tuple[str, str, dict[str, Any]]] = [("Naive", "naive", {}), ("Other", "naive", {})]
    data = synthetic.study(tmp_path, seeds=1, rows=rows, architecture="gpt")
    for run, sizes in zip(data.runs, (SMALL, ladder), strict=True):
        run.stages = [[*stage] for stage in run.stages]
        set_ladder(run, [sizes[0]] * 5)
        model = run.line.config["model"]
        model["ladder"] = [{"layers": layers, "hidden_size": width} for layers, width in sizes]
    data.runs[1].line.config["model"]["architecture"] = architecture
    table = load("main_pretraining").build(Study("demo", data.runs))
    assert table.blocks[0].title == heading
    assert "L1_D16: 1 layer, hidden size 16." in table.reading
    page = render_page(Study("demo", data.runs), None, [])
    assert f"</code>: {heading}." in page


@pytest.mark.parametrize(
    ("name", "suite", "budget", "words"),
    [
        ("budgets_pretraining", "half_time", {"unit": "seconds", "amount": 7}, "budgets"),
        ("budgets_downstream", "small_memory", None, "memories"),
    ],
)
def test_what_a_heading_tells_besides_sizes_is_of_all_rows(name, suite, budget, words, tmp_path):
    """Oracle: by hand: one of two rows has another budget, or another memory."""
    synthetic.write(tmp_path, suite, seeds=1, rows=ROWS[:2])
    runs = load_runs(tmp_path, suite)
    for index, run in enumerate(runs):
        run.line.config["data"] = {"memory_tokens": 34_000_000 + (budget is None) * index}
    if budget:
        runs[1].line.config["budget"] = budget
    title = load(name).build(Study(suite, runs)).blocks[0].title
    assert f"{words} differ by row" in title
