"""Names of suites, architectures, executors and rows: all that `--help` needs to know of them.

No torch and no pydantic here.
"""

from __future__ import annotations

import ast
import pkgutil
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]  # of the project
SUITES = ROOT / "benchmark" / "suites"
STUDIES = ROOT / "results"


def list_suite_names() -> list[str]:
    """The names of the suites that come with the project, in alphabetical order."""
    return sorted(path.stem for path in SUITES.glob("*.toml"))


ARCHITECTURE_FOLDERS = [str(Path(__file__).parents[1] / "models" / "architectures")]
"""Where the files are. Append a folder to add architectures from outside of the project."""


def list_architecture_names() -> list[str]:
    """Names of all architectures."""
    return sorted(module.name for module in pkgutil.iter_modules(ARCHITECTURE_FOLDERS))


EXECUTOR_FOLDERS = [str(Path(__file__).parents[1] / "jobs" / "executors")]
"""Where the files are. Append a folder to add executors from outside of the project."""


def list_executor_names() -> list[str]:
    """Names of all executors, in alphabetical order."""
    return sorted(module.name for module in pkgutil.iter_modules(EXECUTOR_FOLDERS))


def check_architecture(name: str) -> str:
    """Return the name, or raise ValueError with the choices if there is no such architecture."""
    if name not in list_architecture_names():
        raise ValueError(
            f"unknown architecture {name!r}; choose from {', '.join(list_architecture_names())}"
        )
    return name


@cache
def make_slug(label: str) -> str:
    """A form of a label that is equal for all labels that name the same row.

    It ignores case, spaces, hyphens, underscores and the ways to write a character in Unicode.
    """
    normal = unicodedata.normalize("NFKC", label)
    return re.sub(r"[\s_-]", "", normal).casefold()


def find_equal_labels(labels: Iterable[str]) -> list[str]:
    """The labels that share their slug, so that a table could not tell them apart."""
    all_labels = list(labels)
    counts = Counter(map(make_slug, all_labels))
    return sorted({label for label in all_labels if counts[make_slug(label)] > 1})


def make_row_slug(row: str) -> str:
    """A row's name as file names have it."""
    return re.sub(r"[^a-z0-9]+", "-", row.lower()).strip("-")


def read_first_line(file: Path | None) -> str:
    """The first line of a module's docstring, or the title of a suite or a page.

    It is empty if there is no file. For a module that is not valid Python, it says why.
    """
    text = file.read_text(encoding="utf-8") if file else ""
    if file and file.suffix == ".md":
        return text.partition("\n")[0].removeprefix("# ")
    if file and file.suffix == ".toml":
        title = re.search(r"""^title\s*=\s*["'](.*)["']""", text, re.MULTILINE)
        return title[1] if title else ""
    try:
        module = ast.parse(text)
    except SyntaxError as error:
        return f"{error.msg} in line {error.lineno}"
    docstring = ast.get_docstring(module) or ""
    return docstring.partition("\n")[0]


def read_reason(file: Path | None) -> str:
    """The line in which a method, suite, study, table or architecture says why to take it.

    It begins with "Take it". It is empty if the file has none.
    """
    text = file.read_text(encoding="utf-8") if file else ""
    reason = re.search(r"^(?:# )?(Take it .*)$", text, re.MULTILINE)
    return reason[1] if reason else ""
