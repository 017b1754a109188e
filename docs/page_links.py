"""Hooks of mkdocs that make links of the names in pages, and add files to the site.

Pages name other pages as docs/NAME.md, and figures and pages of studies as ../results/... The site
begins with README.md. It also has each study's reports, of which the repository keeps only tables.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shutil
import tempfile
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

import methods
from analysis import report
from benchmark.ledger.archive import lay_out, read_archives
from benchmark.ledger.runs import load_runs

ROOT = Path(__file__).parent.parent
LINKED_FILE = re.compile(
    r"(?<=[(\"])(?:\.\./)?((?:results|benchmark|analysis)/[\w/]+\.(?:png|md|json|toml|py))(?=[)\"#])"
)
OUTSIDE = {
    "README.md": "index.md",
    "results/README.md": "results.md",
    "CONTRIBUTING.md": "contributing.md",
    "tests/TRIALS.md": "trials.md",
}
OUTSIDE |= {
    "results/small_models_begun_well/details.md": "study_details.md",
    "results/small_models_begun_well/plan.md": "study_plan.md",
    "results/open_text/README.md": "open_text.md",
    "results/open_text/plan.md": "open_text_plan.md",
}
REPORTS = tempfile.TemporaryDirectory()


def on_files(files: Any, config: Any) -> Any:
    """Called by mkdocs once: add pages, figures and reports that lie outside its folder."""
    for source, page in OUTSIDE.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        text = re.sub(r"\]\((\.\./)*docs/", "](", text)
        text = re.sub(r"\]\((?=open_text/report/)", "](results/", text)
        for name, target in OUTSIDE.items():
            link = os.path.relpath(name, Path(source).parent)
            text = re.sub(rf"\]\({link}(?=[)#])", f"]({target}", text)
        files.append(File.generated(config, page, content=text))
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    files.append(File.generated(config, "CITATION.cff", content=citation))
    named = {
        name
        for page in files.documentation_pages()
        for name in LINKED_FILE.findall(page.content_string)
    }
    for name in sorted(named - OUTSIDE.keys()):
        files.append(File.generated(config, name, abs_src_path=str(ROOT / name)))
    lines = ["# All tables and figures", "", "Rendered from the records in `results/`."]
    for study, pages in render_reports().items():
        lines += ["", f"## {study.replace('_', ' ').capitalize()}", ""]
        for title, page in pages.items():
            name = page.relative_to(REPORTS.name).as_posix()
            files.append(File.generated(config, name, abs_src_path=str(page)))
            lines.append(f"- [{title}]({name})")
    files.append(File.generated(config, "reports.md", content="\n".join(lines)))
    return files


def on_post_build(config: Any) -> None:
    """Called by mkdocs at the end: copy the tables and figures that reports' pages link to."""
    shutil.copytree(REPORTS.name, config.site_dir, dirs_exist_ok=True)


def render_reports() -> dict[str, dict[str, Path]]:
    """Render each study in results/: study -> title of a suite with records -> page of its report.

    If only links are checked (CI), it renders only the demo.
    """
    studies = "demo" if os.environ.get("CI") == "true" else "*"
    reports: dict[str, dict[str, Path]] = {}
    for study in sorted(path.parent for path in (ROOT / "results").glob(f"{studies}/records")):
        out = Path(REPORTS.name, "results", study.name)
        archives = read_archives(study)
        pages = reports[study.name] = {}
        for suite, configs in methods.load_study_runs(study):
            with (
                tempfile.TemporaryDirectory() as scratch,
                contextlib.redirect_stdout(io.StringIO()),
            ):
                records = lay_out(archives, Path(scratch), [suite.name]).root
                if load_runs(records, suite.name):
                    report.write_report([(suite, configs)], records, out)
                    pages[suite.title] = out / suite.name / "index.html"
    return reports


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Called by mkdocs for each page: make links of the names in it."""
    for name, target in OUTSIDE.items():
        markdown = markdown.replace(f"](../{name}", f"]({target}")
    parts = re.split(r"(```.*?```|`[^`\n]*`)", LINKED_FILE.sub(r"\1", markdown), flags=re.S)
    linked = [
        re.sub(r"(?<![\w/\[])(?<!\]\()docs/(\w+)\.md", r"[docs/\1.md](\1.md)", part)
        for part in parts[::2]
    ]
    parts[::2] = linked
    # GitHub wants a bar in a table's code escaped, mkdocs shows the escape
    parts[1::2] = [part if "\n" in part else part.replace(r"\|", "|") for part in parts[1::2]]
    return "".join(parts)
