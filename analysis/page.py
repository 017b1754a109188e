"""The report as one page: no script, nothing loaded from elsewhere, everything that a user gave escaped."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from analysis import notes
from analysis.exhibits import Exhibit, TableExhibit, growth
from analysis.study import Study, end, hardware, header
from analysis.tables import Block, Cell, Column, Table, TableRow
from benchmark.records import RunRecords


def page(study: Study, scorecard: Table, exhibits: Sequence[tuple[Exhibit, Table | bytes]]) -> str:
    """HTML of the report: scorecard, tables, figures (PNG bytes), and how the runs were made."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"code": _code, "base64": _base64}
    return environment.get_template("page.html").render(
        name=study.name,
        title=", ".join(growth(study.of(suite)[0]) for suite in study.suites),
        progress=_progress(study),
        scorecard=scorecard,
        tables=[(content, _beside(exhibit, study)) for exhibit, content in exhibits if isinstance(content, Table)],
        figures=[(exhibit, content) for exhibit, content in exhibits if isinstance(content, bytes)],
        audit=_audit(study),
        made=_made(study),
        software=_software(study),
        rows=_settings(study),
    )


def _code(text: str) -> Markup:
    """`code` between backticks."""
    parts = [
        Markup("<code>{}</code>").format(part) if i % 2 else escape(part) for i, part in enumerate(text.split("`"))
    ]
    return Markup("").join(parts)


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode()


def _beside(exhibit: Exhibit, study: Study) -> Table | None:
    """The table with the paper's numbers in it, where the paper has any for these rows."""
    assert isinstance(exhibit, TableExhibit)
    both = exhibit.build(study, "both") if exhibit.printed else None
    has_printed = both and any(cell.printed for block in both.blocks for row in block.rows for cell in row.cells)
    return both if has_printed else None


def _progress(study: Study) -> str:
    done = sum(run.finished == len(run.stages) for run in study.runs)
    failed = sum(run.failure is not None for run in study.runs)
    rows = len({(run.suite, run.row) for run in study.runs})
    seeds = len({run.seed for run in study.runs})
    text = f"{len(study.runs)} runs ({rows} rows, {seeds} seeds), {done} done"
    return text + (f", {failed} failed." if failed else ".")


def _audit(study: Study) -> list[tuple[bool, str]]:
    """Is the comparison fair? Each line says what is equal, or what is not."""
    lines: list[tuple[bool, str]] = []
    for suite in study.suites:
        stages = study.stages[study.stages["suite"] == suite]
        titles = study.stage_titles(suite)
        where = f"{suite}: " if len(study.suites) > 1 else ""
        for problems, fine in (
            (
                notes.unequal_budgets(stages, titles),
                f"All rows spent the same budget in every stage, within {notes.TOLERANCE:.0%}.",
            ),
            (notes.unequal_hardware(stages), "All rows ran on the same hardware."),
            (notes.contended(stages, titles), "No stage is known to have lacked cores."),
            (_unequal_code(study.of(suite)), "All rows ran the same code and packages."),
            (notes.failures(study, suite, None, titles), "No run failed."),
        ):
            lines += [(False, where + problem) for problem in problems] or [(True, where + fine)]
    return lines


def _unequal_code(runs: Sequence[RunRecords]) -> list[str]:
    versions: dict[str, list[str]] = {}
    for run in runs:
        for stage in filter(None, run.stages):
            provenance = header(stage)["provenance"]
            versions.setdefault(json.dumps([provenance["code"], provenance["packages"]], sort_keys=True), []).append(
                run.row
            )
    if len(versions) < 2:
        return []
    parts = (f"{json.loads(version)[0]} ({', '.join(dict.fromkeys(rows))})" for version, rows in versions.items())
    return [f"Code or packages differ: {'; '.join(parts)}."]


def _made(study: Study) -> Table:
    """One line a row: hardware, size, and where its train wall time went (means over seeds, sums over stages)."""
    phases: list[str] = []
    lines: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for run in study.runs:
        spent: dict[str, Any] = {"hardware": [], "parameters": float("nan"), "speed": []}
        for stage in filter(None, run.stages):
            head, done = header(stage), end(stage)
            spent["hardware"].append(hardware(head["provenance"]))
            spent["parameters"] = head["parameters"]
            spent["speed"] += [line.get("tokens_per_second") for line in stage if line["kind"] == "evaluation"]
            for phase in done["phases"] if done else []:
                spent[phase["name"]] = spent.get(phase["name"], 0.0) + phase["seconds"]
                phases += [phase["name"]] if phase["name"] not in phases else []
            spent["total"] = spent.get("total", 0.0) + (done["charged"]["seconds"] if done else 0.0)
        lines.setdefault((run.suite, run.row), []).append(spent)
    names = [
        "Seeds",
        "Hardware",
        "Parameters at the end",
        "Tokens/s",
        "Charged s",
        *(f"in {phase}" for phase in phases),
    ]
    rows = []
    for (_, row), runs in lines.items():
        frame = pd.DataFrame(runs)
        speeds = [value for values in frame["speed"] for value in values if value]
        cells = [
            Cell(text=str(len(runs))),
            Cell(text="; ".join(dict.fromkeys(name for names in frame["hardware"] for name in names))),
            Cell(text=f"{frame['parameters'].mean():,.0f}" if frame["parameters"].notna().any() else ""),
            Cell(text=f"{sum(speeds) / len(speeds):,.0f}" if speeds else ""),
            *(
                Cell(text=f"{frame[name].mean():,.1f}" if name in frame and frame[name].notna().any() else "")
                for name in ["total", *phases]
            ),
        ]
        rows.append(TableRow((row,), tuple(cells)))
    caption = "How the runs were made: means over seeds, times summed over stages."
    return Table("made", "", caption, ("Row",), tuple(map(Column, names)), (Block("", tuple(rows)),))


def _software(study: Study) -> list[str]:
    """Every combination of code and packages, once."""
    stages = [stage for run in study.runs for stage in run.stages if stage]
    texts = []
    for stage in stages:
        provenance = header(stage)["provenance"]
        packages = ", ".join(f"{name} {version}" for name, version in provenance["packages"].items())
        texts.append(f"code {provenance['code']}; {packages}")
    return list(dict.fromkeys(texts))


def _settings(study: Study) -> list[tuple[str, str]]:
    """The full settings of each row, of its first seed."""
    first = {(run.suite, run.row): run for run in reversed(study.runs)}
    runs = [first[key] for key in dict.fromkeys((run.suite, run.row) for run in study.runs)]
    return [(run.row, json.dumps({"options": run.options, **run.config}, indent=2, ensure_ascii=False)) for run in runs]
