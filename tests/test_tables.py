"""Tables: numbers against records written by hand, renderings against what reads them."""

import csv
import dataclasses
import io
import math
import re
import subprocess

import numpy as np
import pytest
from msgspec import structs

from analysis import catalogue, report
from analysis.exhibits import TableExhibit
from analysis.study import Study
from analysis.tables import (
    Block,
    Cell,
    Column,
    Table,
    TableRow,
    format_number,
    mark_best,
    to_csv,
    to_latex,
    to_markdown,
    to_text,
)
from benchmark.ledger import records
from benchmark.ledger.records import EvaluationLine, FailedLine, StageDone, Titled, select_kind
from benchmark.ledger.runs import load_runs
from benchmark.settings.base import ConfigError
from benchmark.settings.load import load_suite
from tests.support import synthetic
from tests.support.synthetic import load, study
from tests.support.thorough import program


def by_definition(runs, row: str, stage: int) -> tuple[list[float], list[float]]:
    """AP and AP+ of each seed after a stage, from the records, as the paper writes them."""
    ap, ap_plus = [], []
    for run in runs:
        if run.row == row:
            last = [select_kind(lines, EvaluationLine)[-1].perplexity for lines in run.stages]
            names = [domain.name for domain in run.domains[: stage + 1]]
            ap.append(
                np.prod([float(last[stage][name] or 0.0) for name in names]) ** (1 / (stage + 1))
            )
            rises = [last[stage][name] - last[i][name] for i, name in enumerate(names[:-1])]
            ap_plus.append(sum(rises) / max(len(rises), 1))
    return ap, ap_plus


def test_main_table_holds_ap_and_ap_plus_of_every_seed(tmp_path):
    """Oracle: the paper's definitions, evaluated one run at a time."""
    data = study(tmp_path, seeds=3)
    table = load("main_pretraining").build(data)
    (block,) = table.blocks
    assert {row.label for row in block.rows[:-1]} == {*synthetic.METHODS}
    finals = [row.cells[-2].mean for row in block.rows[:-1]]
    assert finals == sorted(finals), "the best first"
    for row in block.rows[:-1]:
        for column, cell in zip(table.columns, row.cells, strict=True):
            stage = ["WB", "Ns", "Rev", "Bio", "CS"].index(column.group)
            expected = by_definition(data.runs, row.label, stage)[column.name != "AP"]
            assert cell.values == pytest.approx(expected)
            assert cell.sd == pytest.approx(np.std(expected, ddof=1))


def test_equal_numbers_do_not_deviate_on_any_cpu():
    """Oracle: the definition of a standard deviation: three floats that differ in their last bit
    are one number.
    """
    assert Cell((48.3, math.nextafter(48.3, 49), 48.3)).sd == 0
    assert Cell((1.0, 1.0 + 1e-9)).sd == pytest.approx(1e-9 / math.sqrt(2))


def test_missing_cells_say_which_command_fills_them(tmp_path):
    """Oracle: the last row stopped after two of five stages, so its later cells and no others are
    missing.
    """
    table = load("main_pretraining").build(study(tmp_path, finished=2))
    (block,) = table.blocks
    assert [[cell.missing for cell in row.cells] for row in block.rows] == [
        [False] * 9 if row.label != "ELLE" else [False] * 3 + [True] * 6 for row in block.rows
    ]
    assert "| -- |" in to_markdown(table)
    assert any("`python run_all.py run demo`" in note for note in table.notes)


def test_stages_that_train_nothing_leave_their_cells_empty(tmp_path):
    """Oracle: by hand: one row trains only in its last two stages, so three stages have no AP, and
    every AP+ lacks a value that it needs.
    """
    data = study(tmp_path)
    for run in data.runs:
        if run.row == "ER":
            run.stages[:3] = [
                [line for line in stage if not isinstance(line, EvaluationLine)]
                for stage in run.stages[:3]
            ]
    (block,) = load("main_pretraining").build(data).blocks
    cells = next(row.cells for row in block.rows if row.label == "ER")
    assert not any(cell.missing for cell in cells)
    assert [bool(cell.number) for cell in cells] == [False] * 5 + [True, False] * 2
    (block,) = load("lifelong_metrics").build(Study("demo", data.runs)).blocks
    late = next(row.cells for row in block.rows if row.label == "ER")
    assert late[0].values and not late[5].values, "what the last stage decides, and no transfer"


@pytest.mark.parametrize("name", ["main_pretraining", "main_downstream"])
def test_a_number_of_few_seeds_is_marked_where_it_stands(tmp_path, name):
    """Oracle: by hand: two of ER's three seeds and one of MAS's are taken away, so ER's numbers are
    of one seed, MAS's of two, and no others are marked. Fine-tuning seeds do not count, nor rows
    that do not compete.
    """
    left = {"ER": 1, "MAS": 2}
    runs = [run for run in study(tmp_path, seeds=3).runs if run.seed < left.get(run.row, 3)]
    table = load(name).build(Study("demo", runs))
    for row in table.blocks[0].rows:
        few = left.get(row.label, 0)
        assert all(cell.few_seeds == few * bool(cell.values) for cell in row.cells)
    lines = {
        line.split("|")[1].strip(): line
        for line in to_markdown(table).splitlines()
        if line.startswith("| ")
    }
    assert "†" in lines["ER"] and "±" not in lines["ER"] and "$^\\dagger$" in to_latex(table)
    assert "(n = 2)" in lines["MAS"] and "±" in lines["MAS"] and "(n = 2)" in to_latex(table)
    assert "n =" not in lines["EWC"]
    assert " 3 seeds" in table.notes[0] and table.notes[1].startswith("† ")


def notes_of(tmp_path, change, table: str = "main_pretraining") -> list[str]:
    synthetic.write(tmp_path, "demo", seeds=1)
    runs = load_runs(tmp_path, "demo")
    for run in runs:
        if run.row == "ER":
            change(run)
    return list(load(table).build(Study("demo", runs)).notes)


def test_unequal_hardware_budgets_and_failures_are_noted(tmp_path):
    """Oracle: equal runs have no such note; a changed CPU, 5% more seconds and a failure are named
    with their row.
    """

    def move(run):
        header = run.stages[1][0]
        machine = structs.replace(header.provenance.hardware, cpu="Other CPU")
        provenance = structs.replace(header.provenance, hardware=machine)
        run.stages[1][0] = structs.replace(header, provenance=provenance)
        done = run.stages[2][-1]
        run.stages[2][-1] = structs.replace(done, charged={**done.charged, "seconds": 63.0})
        run.failure = FailedLine(stage=1, error="loss is not finite")

    assert not notes_of(tmp_path / "equal", lambda run: None)
    notes = notes_of(tmp_path / "moved", move)
    assert any(re.search(r"Hardware differs: .*Other CPU.*\(ER\)", note) for note in notes)
    assert any("Budgets differ in stage Rev" in note and "ER" in note for note in notes)
    assert any("ER, seed 0, failed in stage Ns: loss is not finite" in note for note in notes)


def test_a_row_that_spends_the_same_in_other_stages_has_one_note(tmp_path):
    """Oracle: by hand, the sum of charged seconds: the last stage spends the budget of four stages,
    so that the sum stays the same, or of five, so that it is larger.
    """

    def spend_late(times):
        def change(run):
            for stage, share in zip(run.stages[1:], (0.0, 0.0, 0.0, times), strict=True):
                phases = [{**phase, "share": share * phase["share"]} for phase in stage[0].phases]
                stage[0] = structs.replace(stage[0], phases=phases)
                charged = {**stage[-1].charged, "seconds": share * stage[-1].charged["seconds"]}
                stage[-1] = structs.replace(stage[-1], charged=charged)

        return change

    same, more = (notes_of(tmp_path / str(times), spend_late(times)) for times in (4, 5))
    [told] = (note for note in same if "udget" in note)
    assert "ER" in told and "differ" not in told
    assert sum("Budgets differ in stage" in note for note in more) == 4


def test_one_note_tells_of_kept_near_copies(tmp_path):
    """Oracle: by hand: 3 validation documents, and 15 test examples of one task and 3 of another.
    Without near copies there is no note.
    """
    data = study(tmp_path, seeds=2)
    names = ("main_pretraining", "lifelong_metrics", "units", "main_downstream")

    def find_notes(name: str) -> list[str]:
        notes = load(name).build(data).notes
        return [note for note in notes if note.startswith("Near copies")]

    assert [find_notes(name) for name in names] == [[]] * len(names)
    for run in data.runs:
        for stage in run.stages:
            stage[0].data["ns"] = {"near_copies": 3}
        for line in (line for stage in run.scores for line in stage):
            line.leaks = 15 * (line.task == "chem")
            line.in_stream = 3 * (line.task == "hyper")
    for name in names:
        [note] = find_notes(name)
        assert note.endswith("Validation documents: 3. Test examples: 18.")


def test_architecture_table_shows_what_was_built_and_how_long_it_trained(tmp_path):
    """Oracle: the synthetic ladder, 60 s per stage, and a fifth of 100 steps in recovery. What was
    measured with one seed is marked.
    """
    (block,) = load("architectures").build(study(tmp_path)).blocks
    assert [[cell.text for cell in row.cells[:5]] for row in block.rows] == [
        [f"{parameters / 1e6:.3g}M", str(layers), str(hidden), str(hidden // 64), str(4 * hidden)]
        for layers, hidden, parameters in synthetic.LADDER
    ]
    assert [cell.text for cell in block.rows[2].cells[5:]] == ["5.0e-4", "20", "80", "8%", "6.0e1"]
    assert not any(cell.missing for row in block.rows for cell in row.cells), (
        "M1 has no recovery to miss"
    )
    assert not any(cell.few_seeds for row in block.rows for cell in row.cells)
    (block,) = load("architectures").build(study(tmp_path / "one", seeds=1)).blocks
    assert [cell.few_seeds for cell in block.rows[2].cells] == [0] * 6 + [1, 1, 0, 1]


def test_lifelong_metrics_of_a_run(tmp_path):
    """Oracle: by hand from the records of one run; ER reaches its own final AP with its last
    evaluation.
    """
    data = study(tmp_path, seeds=1)
    for trained in data.runs:
        trained.line.probes = [Titled("wiki", "Wiki")]
        for line in synthetic.list_lines(trained, EvaluationLine):
            line.perplexity["wiki"] = 55.0
            line.bits_per_byte = {
                name: math.log2(value or 1.0) / 4 for name, value in line.perplexity.items()
            }
    table = load("lifelong_metrics").build(data)
    (block,) = table.blocks
    columns = ["ap", "plus", "log", "forget", "bits", "forward", "mean", "s", "t", "probe"]
    rows = {row.label: dict(zip(columns, row.cells, strict=True)) for row in block.rows}
    run = next(run for run in data.runs if run.row == "ER")
    last = [select_kind(lines, EvaluationLine)[-1].perplexity for lines in run.stages]
    names = [domain.name for domain in run.domains]
    log_rise = np.mean([np.log(last[4][name] / last[i][name]) for i, name in enumerate(names[:4])])
    forward = np.mean(
        [np.log(synthetic.UNIGRAM / last[i][name]) for i, name in enumerate(names[1:])]
    )
    assert rows["ER"]["log"].mean == pytest.approx(log_rise)
    best = [min(float(after[name] or 0) for after in last[:4]) for name in names[:4]]
    worse = [
        math.log(float(last[4][name] or 0) / low) for name, low in zip(names, best, strict=False)
    ]
    assert rows["ER"]["forget"].mean == pytest.approx(np.mean(worse))
    assert rows["ER"]["bits"].mean == pytest.approx(
        np.mean([math.log2(last[4][name] or 1.0) / 4 for name in names])
    )
    assert (table.columns[-1].name, table.columns[-1].group) == ("Wiki", "Probe perplexity")
    assert rows["ER"]["probe"].mean == 55.0
    assert rows["ER"]["forward"].mean == pytest.approx(forward)
    assert rows["ER"]["s"].mean == pytest.approx(
        records.find_last(run.stages[4], StageDone).charged["seconds"]
    )
    assert rows["ER"]["t"].mean == pytest.approx(10_000)
    assert rows["Naive"]["s"].number == "never" and rows["ELLE"]["s"].mean < rows["ER"]["s"].mean
    unfinished = study(tmp_path / "unfinished", seeds=1, finished=2)
    (block,) = load("lifelong_metrics").build(unfinished).blocks
    assert all(cell.missing for cell in block.rows[-1].cells)


@pytest.mark.parametrize(
    ("content", "printed"),
    [
        ('extends = "copied_layer"', "bert_base"),
        ('extends = "gpt_base"', "gpt_base"),
        ('extends = "demo"', ""),
    ],
)
def test_a_suite_that_extends_one_of_the_papers_is_held_against_that(content, printed, tmp_path):
    """Oracle: by hand: the nearest extended suite for which the paper prints numbers, whatever the
    file's own name.
    """
    (tmp_path / "bert_base.toml").write_text(f"{content}\n")
    suite = load_suite(str(tmp_path / "bert_base.toml"))
    assert report.load_study([(suite, [])], tmp_path).printed == {"bert_base": printed}


def test_what_is_printed_is_shown_and_corrections_are_marked_in_the_cell(tmp_path):
    """Oracle: the transcription: every cell has what the paper prints, and beside it its correction
    if it has one.
    """
    synthetic.write(tmp_path, "bert_base", seeds=1)
    exhibit = load("downstream_by_stage")
    table = exhibit.build(Study("bert_base", load_runs(tmp_path, "bert_base")), "both")
    cells = {
        (block.title, row.label[1:], column.name): cell
        for block in table.blocks
        for row in block.rows
        for column, cell in zip(table.columns, row.cells, strict=True)
    }
    values = {(value.row, value.stage, value.column): value for value in exhibit.printed}
    assert {place: cell.printed for place, cell in cells.items()} == {
        at: value.printed for at, value in values.items()
    }
    assert {place: cell.corrected for place, cell in cells.items()} == {
        at: value.corrected for at, value in values.items()
    }
    lines = list(csv.DictReader(io.StringIO(to_csv(table))))
    assert sum(bool(line["paper_corrected"]) for line in lines) == sum(
        bool(value.corrected) for value in values.values()
    )
    for text in (to_markdown(table), to_latex(table)):
        assert (
            "[71.50, corrected 70.39]" in text
            and text.count("Naive’s average".replace("’", "'")) == 1
        )
    assert sum("second heading MAS" in note for note in table.notes) == 1


def small_table(text: str = "Naive") -> Table:
    rows = (
        TableRow(text, (Cell((1.0, 3.0), printed="2.50"), Cell())),
        TableRow("b", (Cell((4.0,)), Cell(missing=True))),
    )
    columns = (Column("AP", "WB", lower=True), Column("F1", "WB", lower=False))
    block = Block("One", rows)
    mark_best(block, columns)
    return Table(
        "t",
        "table:t",
        "A caption",
        "Method",
        columns,
        (block,),
        ("A note",),
    )


@pytest.mark.parametrize(
    ("seeds", "lower", "expected"),
    [
        ([(3, 4), (1, 2), (5, 6)], True, 1),
        ([(3, 4), (1, 2), (5, 6)], False, 2),
        ([(3, 4), (1, 3), (5, 6)], True, None),  # one seed is no better than one of another row
        ([(3,), (1,), (5,)], True, None),  # one seed decides nothing
        ([(3, 4), (1, 1), (5, 6)], True, None),  # equal for all seeds, by construction
        ([(1, 2), (1, 2)], True, None),  # equal rows
        ([(-1, -2), (3, 4), (5, 6)], True, 1),  # negative: does not compete, is worse
        ([(-6, -7), (3, 4), (1, 2)], False, None),  # negative: does not compete, is better
    ],
)
def test_a_row_is_the_best_where_its_seeds_decide(seeds, lower, expected):
    """Oracle: by hand: each seed of the best row is better than each seed of every other row."""
    rows = []
    for values in seeds:
        competes = min(values) > 0
        cell = Cell(tuple(9.0 if lower and not competes else abs(value) for value in values))
        rows.append(TableRow("", (cell,), competes=competes))
    block = Block("", tuple(rows))
    mark_best(block, [Column("", lower=lower)])
    marks = [place for place, row in enumerate(block.rows) if row.cells[0].best]
    assert marks == ([] if expected is None else [expected])


def test_numbers_as_shown():
    """Oracle: two decimals, a true minus, no negative zero, no false precision, thousands apart."""
    values = 1.005, -0.2, -0.001, 1234.5, -1300480.0, np.inf, np.nan
    shown = "1.00 −0.20 0.00 1,234 −1,300,480 ∞ diverged"
    assert [format_number(value, 2) for value in values] == shown.split()


def test_csv_reads_back():
    """Oracle: Python's csv reader."""
    lines = list(csv.DictReader(io.StringIO(to_csv(small_table('a "quoted", name')))))
    assert [line["Method"] for line in lines] == ['a "quoted", name'] * 2 + ["b"] * 2
    assert [line["mean"] for line in lines] == ["2", "", "4", ""]
    assert [(line["sd"], line["n_seeds"], line["paper_value"]) for line in lines[:1]] == [
        ("1.41421", "2", "2.50")
    ]


def test_markdown_escapes_what_a_user_gave():
    """Oracle: no unescaped pipe, star or angle bracket of the name survives."""
    (line,) = (
        line for line in to_markdown(small_table("a|b*c<script>")).splitlines() if "script" in line
    )
    assert line == r"| a\|b\*c\<script\> | **2.00** ± 1.41 [2.50] |  |"


NASTY = "50% & $x_1^2$ #{a}~\\ <é> „ü“ 漢字 A--B \"q\" 'p' `t` λ±×→"


def test_latex_compiles_whatever_a_user_gave(tmp_path):
    """Oracle: pdflatex, with the packages that the module names and no others."""
    program("pdflatex", package="texlive-latex-recommended")
    synthetic.write(tmp_path, "demo", rows=[(NASTY, "er", {}), ("ELLE", "elle", {})], finished=1)
    body = to_latex(small_table(NASTY))
    for name in catalogue.list_exhibits():
        exhibit = load(name)
        if isinstance(exhibit, TableExhibit):
            body += (
                to_latex(exhibit.build(Study("demo", load_runs(tmp_path, "demo")), "both"))
                + "\\clearpage\n"
            )
    packages = "\\usepackage[T1]{fontenc}\\usepackage{booktabs,amssymb,graphicx}"
    source = (
        "\\documentclass{article}\n"
        + packages
        + "\n\\begin{document}\n"
        + body
        + "\\end{document}\n"
    )
    (tmp_path / "t.tex").write_text(source, encoding="utf-8")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "-draftmode", "t.tex"]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, errors="replace", timeout=120
    )
    assert done.returncode == 0, done.stdout[-2000:]
    assert "Missing character" not in done.stdout and "Overfull" not in done.stdout, done.stdout[
        -3000:
    ]


def test_an_unknown_entry_is_refused_with_the_nearest(monkeypatch):
    """Oracle: by hand: the message names the bad and the nearest name, and stays short though there
    are a hundred others.
    """
    monkeypatch.setattr(
        catalogue,
        "list_exhibits",
        lambda: ["main_pretraining", *map("another_{}".format, range(100))],
    )
    with pytest.raises(
        ConfigError, match=r"'main_pretrainig'.* such as main_pretraining, "
    ) as error:
        load("main_pretrainig")
    assert len(str(error.value)) < 700  # characters of a line that somebody still reads


def test_entries_have_what_a_reader_needs():
    """Oracle: every file in paper_tables is an exhibit with a caption and a label of its own."""
    exhibits = [load(name) for name in catalogue.list_exhibits()]
    assert len({exhibit.label for exhibit in exhibits}) == len(exhibits)
    assert all(exhibit.caption.endswith(".") for exhibit in exhibits)
    assert all(exhibit.suites for exhibit in exhibits if exhibit.printed)


def test_a_terminal_shows_a_table_as_it_is(capsys) -> None:
    """Oracle: the cells of the Markdown without its escapes, in plain columns that are at least two
    blanks apart.
    """
    table = small_table("L1_D16 *x* [bold]")
    columns = tuple(
        dataclasses.replace(column, name=f"[/x] {column.name}") for column in table.columns
    )
    table = dataclasses.replace(table, columns=columns)
    text = to_text(table)
    assert "[/x] AP" in text
    expected = [
        [cell.strip().replace("\\", "").replace("**", "") for cell in line.strip("|").split("|")]
        for line in to_markdown(table).splitlines()
        if line.startswith("| ") and "--:" not in line
    ]
    lines = [re.split(r"\s{2,}", line.strip()) for line in text.splitlines()]
    for cells in expected[1:]:
        assert [cell.strip("*") for cell in cells if cell] in lines
    assert "\x1b" not in text and all(note in text for note in table.notes)


def test_other_tables_and_figures_are_named_on_one_line(tmp_path, capsys):
    """Oracle: their files' names, in the suite's order, without titles."""
    exhibits = [load(name) for name in ("main_pretraining", "units", "trend_ap")]
    report._print_exhibits(study(tmp_path), exhibits, tmp_path)
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if str(tmp_path) in line] == [
        f"in {tmp_path}: units, trend_ap",
        f"{tmp_path}/main_pretraining.md, printed without its notes:",
    ]


@pytest.mark.parametrize("name", ["=1+1", "+cmd|' /C calc'!A0", "-2+3", "@SUM(A1)", "\tx"])
def test_no_cell_of_a_csv_is_a_formula(name):
    """Oracle: OWASP's list of what spreadsheets compute, in names and texts. Numbers stay."""
    column = Column(name, name)
    rows = (
        TableRow(name, (Cell(text=name),)),
        TableRow("x", (Cell(text="+1.2%"),)),
        TableRow("y", (Cell(text="-3.0% to +0.5%", printed="-0.49"),)),
        TableRow("z", (Cell((-1.5,)),)),
    )
    table = Table("t", "t", "c", name, (column,), (Block(name, rows),))
    lines = list(csv.reader(io.StringIO(to_csv(table))))
    assert lines[0][2] == f"'{name}"
    assert lines[1][1:5] == [f"'{name}"] * 4 and lines[1][-3] == f"'{name}"
    assert lines[2][-3] == "+1.2%" and lines[3][-3:-1] == ["-3.0% to +0.5%", "-0.49"]
    assert lines[4][5] == "-1.5"


def test_suites_with_equal_models_are_told_apart(tmp_path):
    """Oracle: by hand: two suites have the same models and rows, so their names stand in headings,
    panels and CSV. Their budgets differ, which the caption says.
    """
    synthetic.write(tmp_path, "one", seeds=1)
    synthetic.write(tmp_path, "two", seeds=1, unit="steps")
    runs = [*load_runs(tmp_path, "one"), *load_runs(tmp_path, "two")]
    table = load("main_pretraining").build(Study("both", runs))
    titles = [block.title for block in table.blocks]
    assert [title.rpartition(" ")[2] for title in titles] == ["(one)", "(two)"]
    assert table.caption.endswith("under the same budget per suite.")
    assert len({*to_csv(table).splitlines()}) == len(to_csv(table).splitlines())
    panels = load("stage_domain_matrix").draw(Study("both", runs)).axes
    assert {"ELLE (one)", "ELLE (two)"} < {axis.get_title() for axis in panels}
    trends = [axis.get_title("left") for axis in load("trend_main").draw(Study("both", runs)).axes]
    assert [*filter(None, trends)] == titles
    alone = load("main_pretraining").build(Study("one", runs).select_suites(["one"]))
    assert alone.caption.endswith("under the same budget.")
