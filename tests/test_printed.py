"""The transcribed numbers of the paper: against its LaTeX where that is at hand, and against each other."""

import csv
import dataclasses
import re
from pathlib import Path

import pytest

import paper_tables
from analysis.exhibits import PrintedValue, read_printed

FOLDER = Path(paper_tables.__file__).parent / "printed"
NAMES = sorted(path.stem for path in FOLDER.glob("*.csv"))
ELLE_TEX = Path(__file__).parents[2] / "shared" / "paper" / "elle.tex"
DOMAINS = ["WB", "Ns", "Rev", "Bio", "CS"]
PERPLEXITY = [(str(i + 1), domain, metric) for i, domain in enumerate(DOMAINS) for metric in ("AP", "AP⁺")]
SCORES = [("5", domain, "F1") for domain in [*DOMAINS, "AVG"]]
SIZE = ["parameters", "layers", "hidden size", "heads", "feed-forward size", "learning rate"]
SCHEDULE = ["recover steps", "adapt steps", "warm-up", "train wall time"]
TASKS = ["MNLI", "HyperPartisan", "Helpfulness", "ChemProt", "ACL-ARC"]


def values(name: str) -> tuple[PrintedValue, ...]:
    return read_printed(FOLDER / f"{name}.csv")


def numbers(name: str) -> dict[tuple[str, str, str, str], float]:
    """The corrected number of each block, row, stage, and column + metric."""
    return {(v.block, v.row, v.stage, v.column + v.metric): v.value for v in values(name) if v.value is not None}


# ------------------------------------------------------------------------------------------ against the paper's LaTeX


def latex_rows(label: str) -> list[list[str]]:
    """The cells of each row of a table, without typesetting; a heading is a row of one cell."""
    text = ELLE_TEX.read_text(encoding="utf-8")
    before = text[: text.index(f"\\label{{{label}}}")]
    start = max(before.rfind("\\begin{tabu}"), before.rfind("\\begin{tabular}"))
    body = before[start : before.index("\\end{tabu", start)]
    body = re.sub(r"(?<!\\)%.*", "", body).partition("\n")[2]
    body = re.sub(r"\\(toprule|midrule|bottomrule|hline)", "", body)
    rows = [[plain(cell) for cell in re.split(r"(?<!\\)&", line)] for line in body.split("\\\\")]
    return [row for row in rows if any(row)]


def plain(cell: str) -> str:
    cell = re.sub(r"\\multicolumn\{\d+\}\{[a-z]+\}", "", cell)
    cell = re.sub(r"\\times\s*10\^\{(-?\d+)\}", r"e\1", cell).replace("\\ourmodel", "ELLE").replace("\\Checkmark", "x")
    cell = re.sub(r"\\(textbf|textsc|textit|text|mathcal)", "", cell)
    return re.sub(r"[${}\\\s]|\(ours\)|\(LowerBound\)", "", cell.replace(" ", ""))


BLOCKS = {
    "GrowingfromBERT_L6_D384toBERT_L12_D768": "bert_base",
    "GrowingfromBERT_L12_D768toBERT_L24_D1024": "bert_large",
    "GrowingfromGPT_L6_D384toGPT_L12_D768": "gpt_base",
    "Halftrainwalltime": "half_time",
    "Smallermemory": "small_memory",
    "Fulltrainwalltime&memory(themainresultsincrefsec:main_exp)": "bert_base",
    "WE+FRW": "width",
    "DE+FRW": "depth",
    "WE+DE+FRW": "both",
}
PROMPTS = {"ELLE-PT_fine-tune": "none", "ELLE+lnotPT_fine-tune": "wrong", "ELLE": "right"}


def row_name(name: str, stub: list[str]) -> str:
    """What the transcription calls the row that the paper's first cells name."""
    if name.startswith("ablation"):
        return " + ".join(part for part, on in zip(["WE", "DE", "FRW", "δN", "PT"], stub, strict=True) if on) or "ER"
    if name == "expand_size":
        return "Expand " + re.findall(r"\d", stub[0])[0]
    if name == "prompt_finetuning":
        return PROMPTS[stub[0]]
    if name == "finetuning_hyperparameters":
        return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", stub[0])
    return stub[0].replace("_", "") if name.endswith("architectures") else stub[0]


def transcribe(name: str, label: str) -> list[tuple[str, str, str, str, str, str]]:
    """Every cell of one of the paper's tables, in reading order: block, row, stage, column, metric, what is printed."""
    block = {"expand_size": "expand_size", "finetuning_hyperparameters": "tasks", "prompt_finetuning": "bert_base"}
    now = "ablation" if name.startswith("ablation") else block.get(name, "")
    columns = {
        "finetuning_hyperparameters": [("", task, "") for task in TASKS],
        "growth_architectures": [("", column, "") for column in SIZE],
        "architectures": [("", column, "") for column in SIZE + SCHEDULE],
        "expand_size": PERPLEXITY[:6],
    }.get(name, PERPLEXITY if "pretraining" in name else SCORES)
    method, printed, seen = "", [], 0
    for row in latex_rows(label):
        if len(row) == 1 and name == "downstream_by_stage":
            seen += row[0] == "MAS"
            method = "EWC" if row[0] == "MAS" and seen == 2 else row[0]
            now = "bert_base"
        elif len(row) == 1:
            now = BLOCKS[row[0]]
        elif len(row) > len(columns) and not {"AP", "WB", "MNLI", "n_params"} & set(row):
            stub, cells = row[: -len(columns)], row[-len(columns) :]
            stage = stub[0][-1] if name in ("downstream_by_stage", "architectures", "growth_architectures") else ""
            label_of_row = method or row_name(name, stub)
            for (own_stage, column, metric), cell in zip(columns, cells, strict=True):
                if cell != "-":
                    printed.append((now, label_of_row, stage or own_stage, column, metric, cell))
    return printed


@pytest.mark.skipif(not ELLE_TEX.exists(), reason="no ../shared/paper/elle.tex beside this checkout")
@pytest.mark.parametrize("name", NAMES)
def test_every_number_of_the_paper_is_transcribed_and_nothing_else(name):
    """Oracle: the paper's LaTeX, cell by cell, in reading order."""
    rows = [v for v in values(name) if v.row != "total"]
    (label,) = {v.table for v in rows}
    ours = [(v.block, v.row, v.stage, v.column, v.metric, v.printed) for v in rows]
    assert ours == transcribe(name, label)


@pytest.mark.skipif(not ELLE_TEX.exists(), reason="no ../shared/paper/elle.tex beside this checkout")
def test_every_table_of_the_paper_is_transcribed():
    """Oracle: the labels of the paper's table environments."""
    text = re.sub(r"(?m)(?<!\\)%.*$", "", ELLE_TEX.read_text(encoding="utf-8"))
    tables = re.findall(r"\\begin\{table\*?\}.*?\\end\{table", text, re.S)
    labels = {re.search(r"\\label\{(.*?)\}", table)[1] for table in tables}
    assert labels == {value.table for name in NAMES for value in values(name)}


# ------------------------------------------------------------------------------------------------ against each other


@pytest.mark.parametrize("name", NAMES)
def test_files_are_well_formed(name):
    """Oracle: the columns that `analysis.exhibits` documents; no cell twice; a correction says why."""
    with (FOLDER / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        assert tuple(next(csv.reader(file))) == tuple(field.name for field in dataclasses.fields(PrintedValue))
    keys = [(v.block, v.row, v.stage, v.column, v.metric) for v in values(name)]
    assert len(set(keys)) == len(keys)
    for v in values(name):
        assert v.printed and (v.flag or not v.corrected) and v.corrected != v.printed


def close(a: float, b: float, rounding: float) -> bool:
    """Equal up to the rounding of both (half a unit of the last digit each) and of the float arithmetic."""
    return abs(a - b) <= rounding + 1e-9


@pytest.mark.parametrize("name", [name for name in NAMES if "downstream" in name or name == "prompt_finetuning"])
def test_averages_are_the_means_of_their_rows(name):
    """Oracle: the paper's formula of the average F1, within rounding, with the corrections."""
    half = 0.005 if name == "downstream_by_stage" else 0.05
    cells = numbers(name)
    averages = {key: number for key, number in cells.items() if key[3] == "AVGF1"}
    assert averages
    for (block, row, stage, _), average in averages.items():
        # a cell corrected from a table of one decimal, or from the average itself, is known to 0.05
        coarse = any(v.corrected and "." in v.corrected and len(v.corrected.split(".")[1]) == 1
                     for v in values(name) if (v.block, v.row, v.stage) == (block, row, stage))  # fmt: skip
        mean = sum(cells[block, row, stage, f"{domain}F1"] for domain in DOMAINS) / 5
        assert close(mean, average, 2 * half + (0.01 if coarse else 0)), (block, row, stage, mean, average)


@pytest.mark.parametrize("name", ["architectures", "growth_architectures"])
def test_sizes_give_the_printed_number_of_parameters(name):
    """Oracle: the number of parameters by formula, to the printed three digits, with the corrected sizes.

    BERT: 50265 tokens, 514 positions, one LayerNorm there, 12 d^2 + 13 d a layer, a tied head with a dense layer,
    a LayerNorm and a bias. GPT: the tokens, the layers and a final LayerNorm.
    """
    cells = numbers(name)
    for (block, row, stage, column), count in cells.items():
        if column == "parameters":
            layers, d = cells[block, row, stage, "layers"], cells[block, row, stage, "hidden size"]
            body = 50265 * d + layers * (12 * d**2 + 13 * d) + 2 * d
            head = 0 if block == "gpt_base" else 514 * d + d**2 + d + 2 * d + 50265
            digits = 0.05e6 if count < 1e8 else 0.5e6
            assert close(body + head, count, digits * 1.2), (block, row, (body + head) / 1e6, count)
            assert cells[block, row, stage, "heads"] * 64 == d
            assert cells[block, row, stage, "feed-forward size"] == 4 * d


def test_printed_notations_are_read():
    """Oracle: by hand."""
    place = dict.fromkeys(("table", "block", "row", "stage", "column", "metric"), "")
    values = [PrintedValue(**place, printed=text).value for text in ["62.5k", "8%", "30.3M", "5.0e-4", "-0.20"]]
    assert values == pytest.approx([62_500, 0.08, 30.3e6, 5e-4, -0.2])
    assert PrintedValue(**place, printed="Linear").value is None
    assert PrintedValue(**place, printed="77,11", corrected="77.11").value == 77.11
