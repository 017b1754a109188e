"""The report as one page: nothing loaded from elsewhere, everything that a user gave escaped, whole
without scripts.
"""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from analysis import notes
from analysis.exhibits import Exhibit, TableExhibit, View, describe_growth, to_files
from analysis.figures import CLEAR, COLOURS, FigureExhibit, Picture, assign_colours, shorten_number
from analysis.inference import show_mean
from analysis.metrics import AP, PERPLEXITIES
from analysis.study import Study
from analysis.tables import Block, Cell, Column, Table, TableRow
from benchmark.files import replace_file
from benchmark.settings.units import UNITS, list_recorded_units

FOLDER = Path(__file__).parent
GROWN = 1.05  # times the parameters: prompts and adapters are less
METRIC_NAMES = {metric.column: metric.name for metric in PERPLEXITIES}


def render_page(
    study: Study, scorecard: Table | None, exhibits: Sequence[tuple[Exhibit, Table | Picture]]
) -> str:
    """HTML of the report: first table, curve, summary, scorecard if any, the other exhibits, how
    the runs were made.
    """
    environment = Environment(
        loader=FileSystemLoader(FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["code"] = _mark_code
    audit = _list_audit_notes(study)
    said = {f"{where}{note}" for where, note in audit}
    warnings = [*notes.warn_of_counting(study), *notes.warn_of_baselines(study)]
    said.update(warnings)
    tables = []
    for exhibit, content in exhibits:
        if isinstance(exhibit, TableExhibit) and isinstance(content, Table):
            both = exhibit.build(study, "both").shown if study.paper and exhibit.printed else None
            tables.append((content, both if both and both.has_printed else None))
    first = [tuple(_say_once(table, said) for table in pair) for pair in tables[:1]]
    card = _say_once(scorecard, said)
    return environment.get_template("page.html").render(
        study=study,
        grows=", ".join(describe_growth(part.runs[0]) for part in study.parts),
        done=sum(run.finished == len(run.stages) for run in study.runs),
        failed=sum(run.failure is not None for run in study.runs),
        warnings=warnings,
        summary=[(part.suite, summarize(part)) for part in study.parts],
        scorecard=card,
        undecided=_describe_undecided(scorecard) if scorecard else "",
        tables=first + [tuple(_say_once(table, said) for table in pair) for pair in tables[1:]],
        figures=[
            (exhibit, base64.b64encode(content.png).decode(), content.description)
            for exhibit, content in exhibits
            if isinstance(content, Picture)
        ],
        audit=audit,
        made=_build_cost_table(study),
        software=study.stages[["code", "packages"]].drop_duplicates().itertuples(index=False),
        rows={
            (run.suite, run.row): json.dumps(
                {"options": run.line.options, **run.line.config}, indent=2, ensure_ascii=False
            )
            for run in study.runs
        },
        data=make_chart_data(study),
        # Vega-Lite with all that it needs (BSD-3-Clause): packed it is 0.4 MB of each page, else
        # 0.9 MB
        library=base64.b64encode(
            gzip.compress((FOLDER / "vega_lite_bundle.js").read_bytes(), mtime=0)
        ).decode(),
        script=Markup((FOLDER / "explore.js").read_text("utf-8")),
    )


def summarize(part: Study) -> list[str]:
    """The result in three sentences: the best row, what growth gained, what was forgotten.

    They are on the rows that spend the budget stage by stage, have ended, and had the text of most.

    Growth is the best row that grows beside the best that begins as small and stays so, paired by
    seed.
    """
    last, apart = len(part.runs[0].domains) - 1, part.never_best | part.pooled
    ends = part.ends[(part.ends["stage"] == last) & ~part.ends["row"].isin(apart)]
    if ends.empty:
        return []
    ap, lost = ends.groupby("row")["ap"].mean(), ends.groupby("row")["ap_plus"].mean().dropna()
    best, seeds = str(ap.idxmin()), ends.groupby("row")["seed"].nunique()
    over = "one seed" if seeds[best] == 1 else f"mean of {seeds[best]} seeds"
    of = ", of the rows that spend the budget stage by stage" if part.pooled else ""
    title = part.stage_titles[last]
    lowest = f"the lowest AP after {title}, {shorten_number(ap[best])} ({over}){of}"
    if best in set(part.above_unigram["row"]):
        said = [f"Best: none. {best} has {lowest}, and counting tokens predicts at least as well."]
    else:
        said = [f"Best: {best} has {lowest}."]
    sizes = part.stages.groupby("row")["parameters"].agg(["min", "max"]).loc[ap.index]
    grows = sizes["max"] > GROWN * sizes["min"]
    if grows.any():
        row = ap[grows].idxmin()
        small = ap[~grows & (sizes["max"] < GROWN * sizes["min"][row])]
        if len(small):
            pairs = ends.pivot_table(index="seed", columns="row", values="ap")[
                [row, small.idxmin()]
            ].dropna()
            ratios = np.log(pairs[row] / pairs[small.idxmin()]).to_numpy()
            if len(ratios):
                shared = part.compute_text_variance(part.suite, row, small.idxmin(), last)
                change, between = show_mean(ratios, AP.show, shared)
                within = f" (95% interval {between})" if between else ""
                said.append(
                    f"Growth: {row}, the best row that grows, ends with {change} AP{within} "
                    f"against {small.idxmin()}, "
                    "the best that stays small."
                )
    if len(lost) > 1:
        least = " and ".join(lost.index[lost == lost.min()])
        said.append(
            f"Forgotten, by AP⁺: {shorten_number(lost[best])} with {best}; least with {least}, "
            f"{shorten_number(lost.min())}, and most with {lost.idxmax()}, "
            f"{shorten_number(lost.max())}."
        )
    return said


def _mark_code(text: str) -> Markup:
    """`code` between backticks."""
    parts = [
        Markup("<code>{}</code>").format(part) if i % 2 else escape(part)
        for i, part in enumerate(text.split("`"))
    ]
    return Markup("").join(parts)


def _say_once(table: Table | None, said: set[str]) -> Table | None:
    """A table without the notes that the page has already `said`, which its own join."""
    if table is None:
        return None
    kept = tuple(note for note in table.notes if note not in said)
    warnings = tuple(warning for warning in table.warnings if warning not in said)
    said.update(kept, warnings)
    return replace(table, notes=kept, warnings=warnings)


def _describe_undecided(scorecard: Table) -> str:
    """A sentence in place of a scorecard on which nothing is decided; empty where something is."""
    rows = [row for block in scorecard.blocks for row in block.rows]
    if any(row.cells[0].number in ("held", "not held") for row in rows):
        return ""
    return (
        f"These runs decide none of the paper's {len(rows)} findings."
        if rows[1:]
        else rows[0].label
    )


def _list_audit_notes(study: Study) -> list[tuple[str, str]]:
    """Notes on what is not equal, or not well, in the runs of each suite, which is named where
    there are several.
    """
    lines = []
    for part in study.parts:
        where = f"{part.suite}: " if len(study.parts) > 1 else ""
        code = notes.note_differences(part.stages, "Code or packages differ", ["code", "packages"])
        lines += [
            (where, note) for note in (*notes.collect_notes(part), *notes.note_leaks(part), *code)
        ]
    return lines


def _build_cost_table(study: Study) -> Table:
    """A line a row: hardware, size, and its train wall time, a mean over seeds of the sum over
    stages.
    """
    groups = study.stages.groupby(["suite", "row"], sort=False)
    rows = [
        TableRow(row, tuple(Cell(text=text) for text in texts))
        for (_, row), *texts in pd.DataFrame(
            {
                "seeds": groups["seed"].nunique().map(str),
                "hardware": groups["hardware"].unique().map("; ".join),
                "parameters": groups["parameters"].last().map("{:,.0f}".format),
                "seconds": (groups["seconds"].sum() / groups["seed"].nunique()).map(
                    "{:,.1f}".format
                ),
            }
        ).itertuples()
    ]
    caption = "How the runs were made: means over seeds, times summed over stages."
    columns = tuple(
        map(Column, ("Seeds", "Hardware", "Parameters at the end", UNITS["seconds"].label))
    )
    return Table("made", "", caption, "Row", columns, (Block("", tuple(rows)),))


def make_chart_data(study: Study) -> Markup:
    """JSON for the script: nothing in it can end its element or begin another."""
    own = next((run.line.config["budget"]["unit"] for run in study.runs), "seconds")
    others = {unit: UNITS[unit].label for unit in list_recorded_units() if unit != own}
    content = {
        "suites": study.suites,
        "rows": list(dict.fromkeys(run.row for run in study.runs)),
        "colours": [
            [row, f"light-dark({colour}, {COLOURS[colour]})"]
            for row, colour in assign_colours(study).items()
        ],
        "clear": CLEAR,
        "units": {"charged": UNITS[own].label, **others},
        "metrics": METRIC_NAMES,
        "points": _collect_points(study),
    }
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return Markup(
        text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
    )


def _collect_points(study: Study) -> dict[str, Any]:
    """Each evaluation of a row, as names of its fields and a list each, which is short where many
    are.

    Means over seeds of what was charged and measured, and the range of the latter, in the digits of
    tables.
    """
    titles = {part.suite: part.stage_titles for part in study.parts}
    evaluations = study.evaluations.astype({"learned": int})
    groups = evaluations.groupby(["suite", "row_index", "row", "stage", "order"])
    spent = (
        groups[["charged", *list_recorded_units()]].mean().map(lambda value: float(f"{value:.5g}"))
    )
    measured = groups[list(METRIC_NAMES)].agg(["mean", "min", "max"])
    measured.columns = [
        f"{metric}{end}" for metric in METRIC_NAMES for end in ("", "_low", "_high")
    ]
    measured = measured.map(lambda value: round(value, 0 if abs(value) >= 1000 else 2))
    table = groups.agg({"seed": "nunique", "learned": "max"}).join([spent, measured]).reset_index()
    table["stage"] = [
        titles[suite][stage] for suite, stage in zip(table["suite"], table["stage"], strict=True)
    ]
    shown = table.rename(columns={"seed": "seeds"}).drop(columns=["row_index", "order"])
    points: dict[str, Any] = json.loads(shown.to_json(orient="split", index=False))
    return points


def render(
    study: Study,
    exhibits: Sequence[Exhibit],
    load: Callable[[str], Exhibit],
    out: Path,
    view: View = "ours",
    only_tables: bool = False,
) -> list[Path]:
    """Write the files of each exhibit, the scorecard's if the study is held against the paper, and
    index.html.

    `load` gives exhibits by name, whose printed numbers the scorecard needs. View "both" is of
    tables alone and has files of its own, NAME.both.tex. The same records give the same bytes.
    `only_tables`: neither pictures, which take longest, nor index.html.
    """
    shown: list[tuple[Exhibit, Table | Picture]] = []
    files: dict[str, bytes] = {}
    for exhibit in exhibits:
        if isinstance(exhibit, TableExhibit):
            table = exhibit.build(study, view)
            shown.append((exhibit, table.shown))
            rendered = to_files(table)
        else:
            rendered = exhibit.write_numbers(study)
            if isinstance(exhibit, FigureExhibit) and not only_tables:
                picture = exhibit.render(study)
                shown.append((exhibit, picture))
                rendered |= {"pdf": picture.pdf, "png": picture.png}
        name = exhibit.name if view == "ours" else f"{exhibit.name}.{view}"
        files |= {f"{name}.{suffix}": content for suffix, content in rendered.items()}
    if view == "ours" and study.runs:
        verdicts = None
        if study.paper:
            from analysis.scorecard import build_scorecard

            verdicts = build_scorecard(study, load)
            files |= {
                f"{verdicts.name}.{suffix}": content
                for suffix, content in to_files(verdicts).items()
            }
        if not only_tables:
            files["index.html"] = render_page(study, verdicts, shown).encode()
    for name, content in files.items():
        with replace_file(out / name) as file:
            file.write(content)
    return [out / name for name in files]
