"""The README's table and the study's write-up: tables are the reports', on whichever page, claims the records'."""

from __future__ import annotations

import csv
import re
import runpy
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from analysis.study import Study
from benchmark.jobs import study
from benchmark.store import load_runs

ROOT = Path(__file__).parent.parent
STUDY = ROOT / "results" / "when_growing_pays"
CLAIMS = STUDY / "claims.py"
# what the write-up calls the rows of the paper's table 3
PARTS = {
    "ER": "ER",
    "width + recovery": "WE + FRW",
    "depth + recovery": "DE + FRW",
    "width + depth + recovery": "WE + DE + FRW",
    "width + depth": "WE + DE",
    "width + depth + recovery + noise": "WE + DE + FRW + δN",
    "ELLE: all of it and prompts": "WE + DE + FRW + δN + PT",
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
    "ELLE, copies the first or last layer": (
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
    """The table of the README or docs/ with these heads: the cells of each line by its first one, without bold."""
    tables = []
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        for text in re.findall(r"(?:^\|.*\n?)+", page.read_text("utf-8"), re.M):
            lines = [[cell.strip().replace("**", "") for cell in line[1:-1].split("|")] for line in text.splitlines()]
            tables += [lines[2:]] if lines[0] == [*heads] else []
    assert len(tables) == 1, f"{len(tables)} tables with the heads {heads}"
    return {name: cells for name, *cells in tables[0]}


def lines_of(suite: str, name: str) -> list[dict[str, str]]:
    return list(csv.DictReader((STUDY / "report" / suite / f"{name}.csv").read_text("utf-8").splitlines()))


def final_ap(suite: str) -> dict[str, Mapping[str, str]]:
    """The cell of each row's AP after the last domain."""
    cells = lines_of(suite, "main_pretraining")
    return {cell["Method"]: cell for cell in cells if (cell["group"], cell["column"]) == ("CS", "AP")}


def spread(cell: Mapping[str, str]) -> str:
    sd = f" ± {float(cell['sd']):.1f}" if cell["sd"] else ""
    return f"{float(cell['mean']):.1f}{sd}"


def test_the_demo() -> None:
    """Oracle: the report of results/demo, to the digits shown, the highest AP first."""
    cells = csv.DictReader((ROOT / "results/demo/report/demo/main_pretraining.csv").read_text("utf-8").splitlines())
    expected: dict[str, list[float]] = {}
    for cell in cells:
        if cell["group"] == "torch" and "Unigram" not in cell["Method"]:
            expected.setdefault(cell["Method"], []).append(float(cell["mean"]))
    shown = table("Method", "AP after the fifth domain", "AP⁺")
    assert shown.keys() == expected.keys()
    assert all(list(map(float, shown[row])) == pytest.approx(expected[row], abs=0.0501) for row in shown)
    assert list(shown) == sorted(shown, key=lambda row: -float(shown[row][0]))


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


def test_steps_of_growth() -> None:
    """Oracle: the report of expand.toml, and the paper's table."""
    printed = csv.DictReader((ROOT / "paper_tables" / "printed" / "expand_size.csv").read_text("utf-8").splitlines())
    papers = {
        line["row"].removeprefix("Expand "): line["printed"]
        for line in printed
        if (line["column"], line["metric"]) == ("Rev", "AP")
    }
    ours: dict[str, list[str]] = {}
    for cell in lines_of("expand", "main_pretraining"):
        if cell["group"] == "Rev" and cell["Method"].startswith("Expand "):
            ours.setdefault(cell["Method"].removeprefix("Expand "), []).append(spread(cell))
    expected = {step: [*cells, *paper] for (step, cells), paper in zip(ours.items(), papers.items(), strict=True)}
    heads = ("layers and heads a domain", "ours", "AP⁺", "the paper's layers and heads", "the paper's AP")
    assert table(*heads) == expected


def ends_of(suite: str, folder: Path) -> pd.DataFrame:
    """AP after the last domain by the records of a suite, a line a seed, a column a row."""
    for archive in (STUDY / "records").glob(f"{suite}-s*.tar.gz"):
        for name, content in study._members(archive).items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content)
    ends = Study(suite, load_runs(folder, suite)).ends.query("stage == 4")
    return ends.pivot(index="seed", columns="row", values="ap")


def test_options_of_the_methods(tmp_path: Path) -> None:
    """Oracle: the report of sweeps.toml; changes are geometric means over seeds of its records, then each of them."""
    by_seed = ends_of("sweeps", tmp_path)
    ours, written = final_ap("sweeps"), table("", "AP after CS", "change, mean (each seed)")
    assert written.keys() == OPTIONS.keys()
    for name, (rows, pairs) in OPTIONS.items():
        ap, change = written[name]
        assert ap == ", ".join(f"{float(ours[row]['mean']):.1f}" for row in rows), name
        expected = []
        for method, reference in pairs:
            logs = np.log(by_seed[method] / by_seed[reference])
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
    expected.pop("ER (final size)")  # withdrawn
    heads = ("MNLI (WB)", "HyperPartisan (Ns)", "Helpfulness (Rev)", "ChemProt (Bio)", "ACL-ARC (CS)", "mean")
    assert table("", *heads) == expected


def test_the_write_up_has_the_claims_as_the_records_decide_them(capsys) -> None:
    """Oracle: the study's own script on its records; claims on a model that is large from the start are withdrawn."""
    runpy.run_path(str(CLAIMS), run_name="__main__")
    said, *sentences = capsys.readouterr().out.split("\n\n")
    head, _, *claims = said.splitlines()
    page = (ROOT / "docs" / "study_details.md").read_text("utf-8")
    kept = [line for line in claims if "final size" not in line]
    assert len(kept) == 8 and "\n".join([head, *said.splitlines()[1:2], *kept]) in page
    assert all(sentence.strip() in " ".join(page.split()) for sentence in sentences)


def test_the_share_of_the_time_that_exact_growth_needs() -> None:
    """Oracle: AP of c t^-a, a straight line of logarithms, which is at ELLE's after (c / ELLE's)^(1/a); a seed that is
    there with 50% counts as 50%. Student's interval is scipy's."""
    script = runpy.run_path(str(CLAIMS))
    wanted, slopes, rows = [0.55, 0.65, 0.9, 0.5], [0.3, 0.5, 0.2, 0.4], [*script["EXACT"].values(), "ELLE"]
    aps = [[46 * share**-a for share in (0.5, 0.7, 1.0, at)] for at, a in zip([*wanted[:3], 0.4], slopes, strict=True)]
    shares = [script["share_needed"]([0.5, 0.7, 1.0], ap[:3], ap[3]) for ap in aps]
    assert shares == pytest.approx(wanted)
    assert script["share_needed"]([0.5, 1.0], [60.0, 50.0], 49.0) == float("inf")
    ap = pd.DataFrame(aps, columns=rows)
    test = stats.ttest_1samp(np.log(wanted), 0.0).confidence_interval(0.95)
    expected = f"with at most {np.exp(test.high):.0%} of its time (upper end of the 95% interval, 4 seeds); "
    expected += "at most 70%: not held."
    assert script["estimate"](ap).endswith(expected)
    assert script["estimate"](ap.assign(ELLE=[values[0] for values in aps])).endswith("at most 70%: held.")
    assert script["estimate"](ap.drop(columns=rows[0])) == ""


def test_the_maps_comparisons() -> None:
    """Oracle: scipy's paired t test on logarithms; the other budget's one comparison doubles the smaller p (Holm)."""
    compare_rows = runpy.run_path(str(ROOT / "results" / "small_models_begun_well" / "compare_rows.py"))["compare_rows"]
    full, sixteenth = "ELLE (exact), to 57k", "ELLE, to 113k"
    ap = pd.DataFrame({full: [50.0, 52.0, 51.0], "ER, 57k from the start": [55.0, 58.0, 55.5]})
    other = pd.DataFrame({sixteenth: [90.0, 95.0], "ER, 113k from the start": [90.0, 94.0]})
    lines = compare_rows({"map_full": ap, "map_sixteenth": other})
    tests = [stats.ttest_1samp(np.log(frame.iloc[:, 0] / frame.iloc[:, 1]), 0.0) for frame in (ap, other)]
    low, high = (f"{np.expm1(end):+.1%}".replace("-", "−") for end in tests[0].confidence_interval(0.95))
    assert lines[0][:3] == ["C", "57k", f"{full} / ER, 57k from the start"]
    assert low in lines[0][4] and high in lines[0][4] and lines[0][3] == "51.0 and 56.2"
    assert lines[0][6] == f"{max(2 * tests[0].pvalue, 4 * 0.25**3):.2g}" and lines[0][7] == ""
    assert lines[1][6] == f"{tests[1].pvalue:.2g}" and len(lines) == 2
