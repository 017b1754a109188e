"""Write the report of a study to a folder: tables, figures, scorecard, and the page that shows them all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from analysis import page, scorecard
from analysis.exhibits import Exhibit, TableExhibit, View
from analysis.study import Study
from analysis.tables import FORMATS, Table
from benchmark.files import LEFT, sweep, whole_file


def render(
    study: Study,
    exhibits: Sequence[Exhibit],
    paper: Mapping[str, Exhibit],
    out: Path,
    view: View = "ours",
) -> list[Path]:
    """Write NAME.tex, .csv and .md of each table, NAME.pdf and .png of each figure, and return the paths.

    `exhibits` are what is shown, `paper` all exhibits by name, whose printed numbers the scorecard needs. After tables
    and figures come the scorecard (verdicts on the paper's claims), if the study is held against the paper, and
    index.html, which shows what looks the same once. Views other than "ours" are of tables only and files of their own,
    NAME.both.tex. Several suites' runs in one call give tables with a block a suite. The same records give the same
    bytes.
    """
    shown: dict[str, Table | bytes] = {}
    files: dict[str, bytes] = {}
    drawn: list[tuple[Exhibit, Exhibit, dict[str, bytes]]] = []
    same: dict[str, list[str]] = {}  # of each figure that is drawn, the names of all that look so
    for exhibit in exhibits:
        if view != "ours" and not exhibit.printed:
            continue  # the paper has nothing like it
        if isinstance(exhibit, TableExhibit):
            shown[exhibit.name] = table = exhibit.build(study, view)
            files |= _files(table, "" if view == "ours" else f".{view}")
        else:
            looks = exhibit.looks(study)
            first, figure = next(((one, old) for one, other, old in drawn if other == looks), (exhibit, None))
            if figure is None:
                figure = exhibit.render(study)
                drawn.append((exhibit, looks, figure))
                shown[exhibit.name] = figure["png"]
            same.setdefault(first.name, []).append(exhibit.name)
            files |= {f"{exhibit.name}.{suffix}": content for suffix, content in figure.items()}
    if view == "ours" and study.runs:
        verdicts = scorecard.scorecard(study, paper) if study.paper else None
        files |= _files(verdicts, "") if verdicts else {}
        files["index.html"] = page.page(
            study, verdicts, [(exhibit, shown[exhibit.name]) for exhibit in exhibits if exhibit.name in shown], same
        ).encode()
    sweep(out, older=LEFT)
    for name, content in files.items():
        with whole_file(out / name) as file:
            file.write(content)
    return [out / name for name in files]


def _files(table: Table, middle: str) -> dict[str, bytes]:
    return {f"{table.name}{middle}.{suffix}": text(table).encode() for suffix, text in FORMATS.items()}
