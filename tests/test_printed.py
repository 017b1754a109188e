"""The paper's numbers, as they were transcribed: unchanged, and consistent with each other."""

import csv
import dataclasses
import hashlib

import pytest
import torch

from analysis import catalogue
from analysis.exhibits import PrintedValue, read_printed
from benchmark.data.tokenizer import Vocabulary
from benchmark.models.transformer import build

FOLDER = catalogue.FOLDER / "printed"
NAMES = sorted(path.stem for path in FOLDER.glob("*.csv"))
DOMAINS = ["WB", "Ns", "Rev", "Bio", "CS"]


def values(name: str) -> tuple[PrintedValue, ...]:
    return read_printed(FOLDER / f"{name}.csv")


def numbers(name: str) -> dict[tuple[str, str, str, str], float]:
    """The corrected number of each block, row, stage, and column + metric."""
    return {
        (v.block, v.row, v.stage, v.column + v.metric): v.value
        for v in values(name)
        if v.value is not None
    }


def test_the_transcription_is_as_it_was_held_against_the_paper():
    """Oracle: the hash of all cells, in reading order, from when each cell was compared with the
    paper's LaTeX. Only the table of fine-tuning settings is not here, but in tests/test_tasks.py.
    """
    cells = [
        (name, v.table, v.block, v.row, v.stage, v.column, v.metric, v.printed)
        for name in NAMES
        for v in values(name)
    ]
    assert hashlib.sha256(repr(cells).encode()).hexdigest()[:16] == "3e2c75292712cd84"


@pytest.mark.parametrize("name", NAMES)
def test_files_are_well_formed(name):
    """Oracle: the columns in `analysis.exhibits`. No cell comes twice. Corrections say why."""
    with (FOLDER / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        assert tuple(next(csv.reader(file))) == tuple(
            field.name for field in dataclasses.fields(PrintedValue)
        )
    keys = [(v.block, v.row, v.stage, v.column, v.metric) for v in values(name)]
    assert len(set(keys)) == len(keys)
    for v in values(name):
        assert v.printed and (v.flag or not v.corrected) and v.corrected != v.printed


def close(a: float, b: float, rounding: float) -> bool:
    """Equal up to the rounding of both (half a unit of the last digit each) and of the float
    arithmetic.
    """
    return abs(a - b) <= rounding + 1e-9


@pytest.mark.parametrize(
    "name", [name for name in NAMES if "downstream" in name or name == "prompt_finetuning"]
)
def test_averages_are_the_means_of_their_rows(name):
    """Oracle: the paper's formula of the average F1, within rounding, with the corrections."""
    half = 0.005 if name == "downstream_by_stage" else 0.05
    cells = numbers(name)
    averages = {key: number for key, number in cells.items() if key[3] == "AVGF1"}
    assert averages
    for (block, row, stage, _), average in averages.items():
        # a cell corrected from a table of one decimal, or from the average itself, is known to 0.05
        corrected = [
            value.corrected
            for value in values(name)
            if (value.block, value.row, value.stage) == (block, row, stage)
        ]
        coarse = any(
            number and "." in number and len(number.split(".")[1]) == 1 for number in corrected
        )
        mean = sum(cells[block, row, stage, f"{domain}F1"] for domain in DOMAINS) / 5
        assert close(mean, average, 2 * half + (0.01 if coarse else 0)), (
            block,
            row,
            stage,
            mean,
            average,
        )


@pytest.mark.parametrize("name", ["architectures", "growth_architectures"])
def test_models_of_the_printed_sizes_have_the_printed_number_of_parameters(name):
    """Oracle: the printed counts, all three digits, with the corrected sizes. Those of GPT leave
    out learned positions, which add at most 0.7%.
    """
    cells = numbers(name)
    for (block, row, stage, column), count in cells.items():
        if column == "parameters":
            layers, d = cells[block, row, stage, "layers"], cells[block, row, stage, "hidden size"]
            architecture = "gpt" if block == "gpt_base" else "bert"
            with torch.device("meta"):  # shapes only
                model = build(
                    architecture, int(layers), int(d), Vocabulary(50265), sequence_length=512
                )
            positions = 512 * d if architecture == "gpt" else 0
            counted = model.parameters_count - positions
            assert float(f"{counted:.3g}") == pytest.approx(count, rel=1e-9), (block, row)
            assert positions < 0.007 * counted
            assert cells[block, row, stage, "heads"] * 64 == d
            assert cells[block, row, stage, "feed-forward size"] == 4 * d


def test_printed_notations_are_read():
    """By hand: the number that each notation means."""
    place = dict.fromkeys(("table", "block", "row", "stage", "column", "metric"), "")
    values = [
        PrintedValue(**place, printed=text).value
        for text in ["62.5k", "8%", "30.3M", "5.0e-4", "-0.20"]
    ]
    assert values == pytest.approx([62_500, 0.08, 30.3e6, 5e-4, -0.2])
    assert PrintedValue(**place, printed="Linear").value is None
    assert PrintedValue(**place, printed="77,11", corrected="77.11").value == 77.11
