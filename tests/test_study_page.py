"""The numbers in the tables of the study's write-up are those of its reports, on whichever page of docs/ they stand."""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from analysis.study import Study
from benchmark.jobs import results
from benchmark.records import load_runs

ROOT = Path(__file__).parent.parent
STUDY = ROOT / "results" / "when_growing_pays"
# what the write-up calls the rows of the paper's table 3
PARTS = {
    "ER": "ER",
    "width + recovery": "WE + FRW",
    "depth + recovery": "DE + FRW",
    "width + depth + recovery": "WE + DE + FRW",
    "width + depth": "WE + DE",
    "width + depth + recovery + noise": "WE + DE + FRW + δN",
    "width + depth + recovery + noise + prompts (ELLE)": "WE + DE + FRW + δN + PT",
    "ER, a tenth of the memory": "ER, a tenth of the memory",
    "ELLE, a tenth of the memory": "ELLE, a tenth of the memory",
}
# what it calls the options, the suite's rows behind each line, and which of them is compared with which, seed by seed
OPTIONS: dict[str, tuple[list[str], list[tuple[str, str]]]] = {
    "Naive, ER, ELLE": (["Naive", "ER", "ELLE"], []),
    "EWC, λ = 0.1, 1 (default), 10, 100": (
        ["EWC, λ = 0.1", "EWC, λ = 1", "EWC, λ = 10", "EWC, λ = 100"],
        [("EWC, λ = 100", "ER")],
    ),
    "MAS, λ = 1e-7, 1e-6 (default), 1e-5, 1e-4": (
        ["MAS, λ = 1e-7", "MAS, λ = 1e-6", "MAS, λ = 1e-5", "MAS, λ = 1e-4"],
        [("MAS, λ = 1e-4", "ER")],
    ),
    "ELLE, δ = 0, 0.1 (default 0.01)": (["ELLE, δ = 0", "ELLE, δ = 0.1"], [("ELLE, δ = 0.1", "ELLE")]),
    "ELLE, copies the first or last layer (default: new ones)": (
        ["ELLE, copies the first layer", "ELLE, copies the last layer"],
        [],
    ),
    "ELLE, no growth; grows at once": (
        ["ELLE, no growth", "ELLE, grows at once"],
        [("ELLE, no growth", "ELLE"), ("ELLE, grows at once", "ELLE")],
    ),
    "half the time: ER, ELLE, ELLE (exact)": (
        ["ER, half the time", "ELLE, half the time", "ELLE (exact), half the time"],
        [("ELLE (exact), half the time", "ER")],
    ),
}


def table(*heads: str) -> dict[str, list[str]]:
    """The table of docs/ with these heads: the cells of each line by its first one, without bold."""
    found = []
    for page in sorted((ROOT / "docs").glob("*.md")):
        for text in re.findall(r"(?:^\|.*\n?)+", page.read_text("utf-8"), re.M):
            lines = [[cell.strip().replace("**", "") for cell in line[1:-1].split("|")] for line in text.splitlines()]
            found += [lines[2:]] if lines[0] == [*heads] else []
    assert len(found) == 1, f"{len(found)} tables with the heads {heads}"
    return {name: cells for name, *cells in found[0]}


def lines_of(suite: str, name: str) -> list[dict[str, str]]:
    return list(csv.DictReader((STUDY / "report" / suite / f"{name}.csv").read_text("utf-8").splitlines()))


def final_ap(suite: str) -> dict[str, Mapping[str, str]]:
    """The cell of each row's AP after the last domain."""
    cells = lines_of(suite, "main_pretraining")
    return {cell["Method"]: cell for cell in cells if (cell["group"], cell["column"]) == ("CS", "AP")}


def spread(cell: Mapping[str, str]) -> str:
    sd = f" ± {float(cell['sd']):.1f}" if cell["sd"] else ""
    return f"{float(cell['mean']):.1f}{sd}"


def test_the_map() -> None:
    """Oracle: the figure's file of cells."""
    methods = {"er": "ER", "elle": "ELLE", "elle_exact": "ELLE (exact)", "er_large": "ER (final size)"}
    methods |= {"scratch": "From scratch"}
    written = table("", "tokens a parameter at the first growth", "final / compute-optimal size", *methods.values())
    expected = {}
    for cell in lines_of("map", "growth_regimes"):
        place = [f"{float(cell['tokens_per_parameter']):,.0f}", f"{float(cell['relative_size']):#.2g}"]
        aps = [cell[f"ap_{method}"] and f"{float(cell[f'ap_{method}']):.0f}" for method in methods]
        expected[cell["cell"].removeprefix("ELLE, ")] = place + aps
    assert written == expected


def test_elles_parts() -> None:
    """Oracle: the report of parts.toml, and the paper's table 3."""
    printed = (ROOT / "paper_tables" / "printed" / "ablation_pretraining.csv").read_text("utf-8").splitlines()
    papers = {
        line["row"]: line["printed"]
        for line in csv.DictReader(printed)
        if (line["column"], line["metric"]) == ("CS", "AP")
    }
    ours = final_ap("parts")
    expected = {name: [spread(ours[row]), papers.get(row, "")] for name, row in PARTS.items()}
    assert table("", "AP after CS", "the paper's (BERT)") == expected


def test_options_of_the_methods(tmp_path: Path) -> None:
    """Oracle: the report of sweeps.toml; changes are geometric means over seeds of its records, then each of them."""
    for archive in (STUDY / "records").glob("sweeps-s*.tar.gz"):
        for name, content in results._members(archive).items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_bytes(content)
    ends = Study("sweeps", load_runs(tmp_path, "sweeps")).ends.query("stage == 4")
    by_seed = ends.pivot(index="seed", columns="row", values="ap")
    ours, written = final_ap("sweeps"), table("", "AP after CS", "change")
    assert written.keys() == OPTIONS.keys()
    for name, (rows, pairs) in OPTIONS.items():
        ap, change = written[name]
        assert ap == ", ".join(f"{float(ours[row]['mean']):.1f}" for row in rows), name
        expected = []
        for one, other in pairs:
            logs = np.log(by_seed[one] / by_seed[other])
            each = ", ".join(f"{np.expm1(log):.1%}".rstrip("%") for log in logs)
            expected.append(f"{np.expm1(logs.mean()):.1%} ({each})".replace("-", "−"))
        assert re.findall(r"(−?[\d.]+% \([^)]+\))", change) == expected, name


def test_downstream() -> None:
    """Oracle: the report of downstream.toml."""
    names = {"Baseline: majority": "most frequent class", "Baseline: bag of words": "word counts"}
    expected: dict[str, list[str]] = {}
    for cell in lines_of("downstream", "main_downstream"):
        row = names.get(cell["Method"], cell["Method"])
        text = spread(cell)
        expected.setdefault(row, []).append(text.partition(" ")[0] if cell["column"] == "AVG" else text)
    heads = ("MNLI (WB)", "HyperPartisan (Ns)", "Helpfulness (Rev)", "ChemProt (Bio)", "ACL-ARC (CS)", "mean")
    assert table("", *heads) == expected
