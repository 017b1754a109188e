"""The report as one page: nothing loaded from elsewhere, everything that a user gave escaped, whole without scripts."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from analysis import explore, notes
from analysis.exhibits import Exhibit, TableExhibit, growth
from analysis.study import Study, end, hardware, header
from analysis.tables import Block, Cell, Column, Table, TableRow
from benchmark.records import RunRecords


def page(
    study: Study,
    scorecard: Table | None,
    exhibits: Sequence[tuple[Exhibit, Table | bytes]],
    same: Mapping[str, Sequence[str]],
) -> str:
    """HTML of the report: scorecard if there is one, tables, figures (PNG bytes), and how the runs were made.

    `same`: of each figure the names of its files, as several exhibits may look the same.
    """
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"code": _code, "base64": _base64}
    audit = _audit(study)
    said = {line for fine, _, line in audit if not fine}
    return environment.get_template("page.html").render(
        name=study.name,
        title=study.title or study.name,
        records=study.records,
        grows=", ".join(growth(study.of(suite)[0]) for suite in study.suites),
        progress=_progress(study),
        scorecard=_noted_once(scorecard, said),
        tables=[
            (_noted_once(content, said), _noted_once(_beside(exhibit, study), said))
            for exhibit, content in exhibits
            if isinstance(content, Table)
        ],
        figures=[(exhibit, content, same[exhibit.name]) for exhibit, content in exhibits if isinstance(content, bytes)],
        audit=audit,
        made=_made(study),
        software=_software(study),
        rows=_settings(study),
        labels={(run.suite, run.row) for run in study.runs},
        several=len(study.suites) > 1,
        data=explore.data(study),
        scripts=explore.scripts(),
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
    """The table with the paper's numbers in it, where they are asked for and the paper has any for these rows."""
    assert isinstance(exhibit, TableExhibit)
    both = exhibit.build(study, "both") if exhibit.printed and study.paper else None
    has_printed = both and any(cell.printed for block in both.blocks for row in block.rows for cell in row.cells)
    return both if has_printed else None


def _noted_once(table: Table | None, said: set[str]) -> Table | None:
    """A table without the notes that the page's audit has, which it names instead: else each table repeats them."""
    kept = [note for note in table.notes if note not in said] if table else []
    if table is None or len(kept) == len(table.notes):
        return table
    return replace(table, notes=(*kept, "These rows are not equal in everything: Audit, below, says in what."))


def _progress(study: Study) -> str:
    done = sum(run.finished == len(run.stages) for run in study.runs)
    failed = sum(run.failure is not None for run in study.runs)
    rows = len({(run.suite, run.row) for run in study.runs})
    seeds = len({run.seed for run in study.runs})
    counted = ", ".join(f"{count} {what}{'s' * (count != 1)}" for count, what in ((rows, "row"), (seeds, "seed")))
    text = f"{len(study.runs)} runs ({counted}), {done} done"
    return text + (f", {failed} failed." if failed else ".")


def _audit(study: Study) -> list[tuple[bool, str, str]]:
    """Is the comparison fair? Of each suite, named where there are several: what is equal, or what is not."""
    lines: list[tuple[bool, str, str]] = []
    for suite in study.suites:
        stages = study.stages[study.stages["suite"] == suite]
        titles = study.stage_titles(suite)
        where = f"{suite}: " if len(study.suites) > 1 else ""
        for problems, fine in (
            (
                notes.unequal_budgets(stages, titles),
                f"All rows spent the same budget in every stage, within {notes.TOLERANCE:.0%}.",
            ),
            (notes.unequal_texts(study, suite), "All rows had the same texts, tokenizer and masks."),
            (notes.unequal_hardware(stages), "All rows ran on the same hardware."),
            (notes.contended(stages, titles), "No stage is known to have lacked cores."),
            (_unequal_code(study.of(suite)), "All rows ran the same code and packages."),
            (notes.failures(study, suite, None, titles), "No run failed."),
        ):
            lines += [(False, where, problem) for problem in problems] or [(True, where, fine)]
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


@dataclass
class _Spent:
    """What one run ran on, and what it spent over its stages, in seconds."""

    hardware: list[str] = field(default_factory=list)
    parameters: float = math.nan
    speeds: list[float] = field(default_factory=list)  # tokens a second at each evaluation
    total: float | None = None
    phases: dict[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, run: RunRecords) -> _Spent:
        spent = cls()
        for stage in filter(None, run.stages):
            head, done = header(stage), end(stage)
            spent.hardware.append(hardware(head["provenance"]))
            spent.parameters = head["parameters"]
            speeds = [line.get("tokens_per_second") for line in stage if line["kind"] == "evaluation"]
            spent.speeds += filter(None, speeds)
            spent.total = (spent.total or 0.0) + (done["charged"]["seconds"] if done else 0.0)
            for phase in done["phases"] if done else []:
                spent.phases[phase["name"]] = spent.phases.get(phase["name"], 0.0) + phase["seconds"]
        return spent


def _made(study: Study) -> Table:
    """One line a row: hardware, size, and where its train wall time went (means over seeds, sums over stages)."""
    lines: dict[tuple[str, str], list[_Spent]] = {}
    for run in study.runs:
        lines.setdefault((run.suite, run.row), []).append(_Spent.of(run))
    phases = list(dict.fromkeys(phase for runs in lines.values() for run in runs for phase in run.phases))
    names = ["Seeds", "Hardware", "Parameters at the end", "Tokens/s", "Charged s", *(f"in {name}" for name in phases)]
    rows = []
    for (_, row), runs in lines.items():
        cells = [
            str(sum(bool(run.hardware) for run in runs)),  # those that have started
            "; ".join(dict.fromkeys(name for run in runs for name in run.hardware)),
            _mean((run.parameters for run in runs), ",.0f"),
            _mean((speed for run in runs for speed in run.speeds), ",.0f"),
            _mean((run.total for run in runs), ",.1f"),
            *(_mean((run.phases.get(phase) for run in runs), ",.1f") for phase in phases),
        ]
        rows.append(TableRow((row,), tuple(Cell(text=cell) for cell in cells)))
    caption = "How the runs were made: means over seeds, times summed over stages."
    return Table("made", "", caption, ("Row",), tuple(map(Column, names)), (Block("", tuple(rows)),))


def _mean(values: Iterable[float | None], form: str) -> str:
    """The mean of those that are there; nothing where none is."""
    found = [value for value in values if value is not None and not math.isnan(value)]
    return format(fmean(found), form) if found else ""


def _software(study: Study) -> list[str]:
    """Every combination of code and packages, once."""
    stages = [stage for run in study.runs for stage in run.stages if stage]
    texts = []
    for stage in stages:
        provenance = header(stage)["provenance"]
        packages = ", ".join(f"{name} {version}" for name, version in provenance["packages"].items())
        texts.append(f"code {provenance['code']}; {packages}")
    return list(dict.fromkeys(texts))


def _settings(study: Study) -> list[tuple[str, str, str]]:
    """The full settings of each row, of its first seed."""
    first = {(run.suite, run.row): run for run in reversed(study.runs)}
    runs = [first[key] for key in dict.fromkeys((run.suite, run.row) for run in study.runs)]
    settings = [{"options": run.line["options"], **run.line["config"]} for run in runs]
    texts = [json.dumps(one, indent=2, ensure_ascii=False) for one in settings]
    return [(run.suite, run.row, text) for run, text in zip(runs, texts, strict=True)]
