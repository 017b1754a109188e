"""The report as one page, which is complete without scripts.

Nothing is loaded from elsewhere, and everything that a user gave is escaped.
"""

from __future__ import annotations

import base64
import gzip
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from analysis import notes
from analysis.exhibits import Exhibit, TableExhibit, describe_growth, to_files
from analysis.figures import CLEAR, COLOURS, FigureExhibit, Picture, assign_colours, shorten_number
from analysis.metrics import PERPLEXITIES
from analysis.study import Study
from analysis.tables import Block, Cell, Column, Table, TableRow
from benchmark.files import replace_file
from benchmark.settings.units import UNITS, list_recorded_units

FOLDER = Path(__file__).parent
TablePair = tuple[Table, Table]  # a table, and the same one with the paper's numbers in it
BESIDE = (
    "In brackets: what the paper prints for the same row and stage, on its own domains and "
    "machines."
)
METRIC_NAMES = {metric.column: metric.name for metric in PERPLEXITIES}


def render_page(
    study: Study,
    scorecard: Table | None,
    tables: Sequence[TablePair] = (),
    pictures: Sequence[tuple[FigureExhibit, Picture]] = (),
) -> str:
    """HTML of the report.

    It has the first table, the curve, the summary, the scorecard if any, the other exhibits, and
    how the runs were made.
    """
    environment = Environment(
        loader=FileSystemLoader(FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["code"] = _mark_code
    environment.filters["drop_shown"] = _make_filter()
    warnings = [*notes.warn_of_counting(study), *notes.warn_of_baselines(study)]
    figures = []
    for exhibit, picture in pictures:
        png = base64.b64encode(picture.png).decode()
        caption = exhibit.describe(exhibit.select(study))
        figures.append((exhibit.name, caption, picture.sentences, png, picture.description))
    return environment.get_template("page.html").render(
        study=study,
        grows=", ".join(describe_growth(part.runs) for part in study.parts),
        done=sum(run.finished == len(run.stages) for run in study.runs),
        failed=sum(run.failure is not None for run in study.runs),
        warnings=warnings,
        summary=[(part.suite, summarize(part)) for part in study.parts],
        scorecard=scorecard,
        undecided=_describe_undecided(scorecard) if scorecard else "",
        tables=tables,
        about_brackets=BESIDE,
        figures=figures,
        audit=notes.note_suites(study, _list_audit_notes),
        made=_build_cost_table(study),
        software=study.stages[["code", "packages"]].drop_duplicates().itertuples(index=False),
        rows=_write_settings(study),
        data=make_chart_data(study),
        library=_pack_library(),
        script=Markup((FOLDER / "explore.js").read_text("utf-8")),
    )


def _write_settings(study: Study) -> dict[tuple[str, str], str]:
    """The settings of each row of a suite as JSON."""
    return {
        (run.suite, run.row): json.dumps(
            {"options": run.line.options, **run.line.config}, indent=2, ensure_ascii=False
        )
        for run in study.runs
    }


def _pack_library() -> str:
    """Vega-Lite with all that it needs (BSD-3-Clause).

    Compressed, it takes 0.4 MB of each page instead of 0.9 MB.
    """
    script = (FOLDER / "vega_lite_bundle.js").read_bytes()
    packed = gzip.compress(script, mtime=0)
    return base64.b64encode(packed).decode()


def summarize(part: Study) -> list[str]:
    """The result in two sentences: the best row, and what was forgotten.

    They are about rows that spend the budget stage by stage, have ended, and are on the texts that
    most rows have.
    """
    excluded = part.never_best | part.pooled
    is_last = part.ends["stage"] == part.last_stage
    ends = part.ends[is_last & ~part.ends["row"].isin(excluded)]
    if ends.empty:
        return []
    ap = ends.groupby("row")["ap"].mean()
    ap_plus = ends.groupby("row")["ap_plus"].mean().dropna()
    seeds = ends.groupby("row")["seed"].nunique()
    best = str(ap.idxmin())
    average = "one seed" if seeds[best] == 1 else f"mean of {seeds[best]} seeds"
    scope = ", of the rows that spend the budget stage by stage" if part.pooled else ""
    title = part.stage_titles[part.last_stage]
    lowest = f"the lowest AP after {title}, {shorten_number(ap[best])} ({average}){scope}"
    if best in set(part.above_unigram["row"]):
        lines = [f"Best: none. {best} has {lowest}, and counting tokens predicts at least as well."]
    else:
        lines = [f"Best: {best} has {lowest}."]
    if len(ap_plus) > 1:
        least = " and ".join(ap_plus.index[ap_plus == ap_plus.min()])
        lines.append(
            f"Forgotten, by AP⁺: {shorten_number(ap_plus[best])} with {best}. Least: {least}, "
            f"{shorten_number(ap_plus.min())}. Most: {ap_plus.idxmax()}, "
            f"{shorten_number(ap_plus.max())}."
        )
    return lines


def _mark_code(text: str) -> Markup:
    """Text as HTML, with code elements in place of backticks."""
    escaped = str(escape(text))  # no Markup, or Python 3.11 would escape the tags, too
    return Markup(re.sub("`([^`]*)`", r"<code>\1</code>", escaped))


def _make_filter() -> Callable[[str], str]:
    """A filter that drops a text that the page has shown before."""
    shown: set[str] = set()

    def drop_shown(text: str) -> str:
        if text in shown:
            return ""
        shown.add(text)
        return text

    return drop_shown


def _describe_undecided(scorecard: Table) -> str:
    """A sentence in place of a scorecard on which nothing is decided, "" if something is."""
    rows = [row for block in scorecard.blocks for row in block.rows]
    if any(row.cells[0].number in ("held", "not held") for row in rows):
        return ""
    if not rows[1:]:
        return rows[0].label
    return f"These runs decide none of the paper's {len(rows)} findings."


def _list_audit_notes(part: Study) -> list[str]:
    """Notes on what differs or went wrong in the runs of a suite."""
    lines = [*notes.note_times(part), *notes.collect_notes(part), *notes.note_passes(part.runs)]
    if not notes.spends_seconds(part):  # then tables do not have these notes
        lines += notes.note_contended_stages(part.stages, part.stage_titles)
    return lines


def _build_cost_table(study: Study) -> Table:
    """The seeds, hardware, size and train wall time of each row.

    The time is a mean over seeds of the sum over stages.
    """
    groups = study.stages.groupby(["suite", "row"], sort=False)
    seeds = groups["seed"].nunique()
    seconds = groups["seconds"].sum() / seeds
    texts = pd.DataFrame(
        {
            "seeds": seeds.map(str),
            "hardware": groups["hardware"].unique().map("; ".join),
            "parameters": groups["parameters"].last().map("{:,.0f}".format),
            "seconds": seconds.map("{:,.1f}".format),
        }
    )
    rows = []
    for (_, row), *values in texts.itertuples():
        cells = tuple(Cell(text=value) for value in values)
        rows.append(TableRow(row, cells))
    names = ("Seeds", "Hardware", "Parameters at the end", UNITS["seconds"].label)
    return Table(
        name="made",
        label="",
        caption="How the runs were made: means over seeds, times summed over stages.",
        stub="Row",
        columns=tuple(map(Column, names)),
        blocks=(Block("", tuple(rows)),),
    )


def make_chart_data(study: Study) -> Markup:
    """JSON for the page's script, in which no text can end its HTML element or begin another."""
    budgets = (run.line.config["budget"] for run in study.runs)
    charged = next((budget["unit"] for budget in budgets), "seconds")
    units = {"charged": UNITS[charged].label}
    for unit in list_recorded_units():
        if unit != charged:
            units[unit] = UNITS[unit].label
    colours = []
    for row, colour in assign_colours(study).items():
        colours.append([row, f"light-dark({colour}, {COLOURS[colour]})"])
    content = {
        "suites": study.suites,
        "rows": list(dict.fromkeys(run.row for run in study.runs)),
        "colours": colours,
        "clear": CLEAR,
        "units": units,
        "metrics": METRIC_NAMES,
        "points": _collect_points(study),
    }
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    text = text.replace("<", "\\u003c")
    return Markup(text.replace("\u2028", "\\u2028").replace("\u2029", "\\u2029"))


def _collect_points(study: Study) -> dict[str, Any]:
    """Each evaluation of a row as a list of values, with the fields' names only once.

    This keeps many evaluations short. Values are means over seeds of what was charged and measured,
    and ranges over seeds of what was measured, with the digits of tables.
    """
    evaluations = study.evaluations.astype({"learned": int})
    groups = evaluations.groupby(["suite", "row_index", "row", "stage", "order"])
    spent = groups[["charged", *list_recorded_units()]].mean()
    spent = spent.map(lambda value: float(f"{value:.5g}"))
    measured = groups[list(METRIC_NAMES)].agg(["mean", "min", "max"])
    measured.columns = [
        f"{metric}{end}" for metric in METRIC_NAMES for end in ("", "_seed_min", "_seed_max")
    ]
    measured = measured.map(lambda value: round(value, 0 if abs(value) >= 1000 else 2))
    table = groups.agg({"seed": "nunique", "learned": "max", "phase": "first"})
    table["is_start"] = (table["phase"] == "start").astype(int)
    table = table.drop(columns="phase").join([spent, measured]).reset_index()
    titles = {part.suite: part.stage_titles for part in study.parts}
    stages = zip(table["suite"], table["stage"], strict=True)
    table["stage"] = [titles[suite][stage] for suite, stage in stages]
    table = table.rename(columns={"seed": "n_seeds"}).drop(columns=["row_index", "order"])
    points: dict[str, Any] = json.loads(table.to_json(orient="split", index=False))
    return points


def render(
    study: Study,
    exhibits: Sequence[Exhibit],
    load: Callable[[str], Exhibit],
    out: Path,
    only_tables: bool = False,
) -> list[Path]:
    """Write the files of each exhibit.

    If the study is compared with the paper, tables are also written with the paper's numbers, if
    any, as NAME.both.tex and so on. There is also a scorecard, for which `load` gives the paper's
    tables by name. A study with runs has index.html. The same records give the same bytes.
    `only_tables`: neither pictures, which take longest, nor index.html.
    """
    tables: list[TablePair] = []
    pictures: list[tuple[FigureExhibit, Picture]] = []
    files: dict[str, bytes] = {}
    for exhibit in exhibits:
        if isinstance(exhibit, TableExhibit):
            table = exhibit.build(study)
            files |= to_files(exhibit.name, table)
            is_beside_paper = study.paper and exhibit.printed
            beside = exhibit.build(study, "both") if is_beside_paper else table
            if beside.has_printed:
                files |= to_files(f"{exhibit.name}.both", beside)
            tables.append((table.shown, beside.shown))
        elif isinstance(exhibit, FigureExhibit) and not only_tables:
            picture = exhibit.render(study)
            caption = exhibit.describe(exhibit.select(study))
            contents = picture.to_files(exhibit.name, exhibit.label, caption)
            files |= {f"{exhibit.name}.{suffix}": data for suffix, data in contents.items()}
            pictures.append((exhibit, picture))
    scorecard = None
    if study.runs and study.paper:
        from analysis.scorecard import build_scorecard

        scorecard = build_scorecard(study, load)
        files |= to_files(scorecard.name, scorecard)
    if study.runs and not only_tables:
        files["index.html"] = render_page(study, scorecard, tables, pictures).encode()
    for name, content in files.items():
        with replace_file(out / name) as file:
            file.write(content)
    return [out / name for name in files]
