"""What pages tell a reader to type is understood."""

from __future__ import annotations

import ast
import csv
import re
import shlex
from pathlib import Path

import pytest

from benchmark.records import CURE
from benchmark.settings.command_line import command_line
from benchmark.settings.load import load_suite
from tests.support.source_tree import TREES
from tests.tools import list_errors

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
COMMANDS = [
    (page.name, line)
    for page in PAGES
    for line in re.findall(r"^    python run_all\.py (.+)$", page.read_text(encoding="utf-8"), re.M)
]
WALK = (ROOT / "docs" / "starting_from_a_model.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(("page", "line"), COMMANDS)
def test_commands_are_understood(page: str, line: str) -> None:
    """Oracle: the parser of the command line."""
    command_line("", ["local", "slurm"]).parse_args(shlex.split(line, comments=True))


@pytest.mark.parametrize("page", ["README.md", "docs/study.md"])
def test_the_studys_table_is_that_of_its_report(page: str) -> None:
    """Oracle: the committed report, which is rendered from the records."""
    report = ROOT / "results" / "when_growing_pays" / "report" / "small" / "main_pretraining.csv"
    expected: dict[str, list[str]] = {}
    for cell in csv.DictReader(report.read_text(encoding="utf-8").splitlines()):
        if cell["group"] == "CS" and cell["sd"] and cell["table"] == "main_pretraining":
            text = f"{float(cell['mean']):.2f} ± {float(cell['sd']):.2f}".replace("-", "−")
            expected[cell["Method"]] = [*expected.get(cell["Method"], [cell["n"]]), text]
    expected = {row: numbers for row, numbers in expected.items() if not row.startswith("Unigram")}
    [table] = re.findall(r"^\| Method \| AP after CS .*\n\|.*\n((?:\|.*\n)+)", (ROOT / page).read_text("utf-8"), re.M)
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]
    assert {name: [n, *filter(None, numbers)] for name, *numbers, n in rows} == expected


@pytest.mark.parametrize("name", ["base", "mine"])
def test_the_walk_through_has_suites(name: str, tmp_path: Path) -> None:
    """Oracle: the validation of suites, which names what is wrong."""
    [text] = re.findall(rf"`{name}\.toml`.*?```toml\n(.*?)```", WALK, re.S)
    (tmp_path / f"{name}.toml").write_text(text)
    suite = load_suite(str(tmp_path / f"{name}.toml"))
    assert suite.name == name and suite.budget.unit == "seconds"


def test_the_walk_throughs_programs_compile() -> None:
    programs = re.findall(r"```python\n(.*?)```", WALK, re.S)
    assert len(programs) == 2
    for program in programs:
        compile(program, "docs/starting_from_a_model.md", "exec")


def test_the_page_on_troubles_lists_every_message() -> None:
    """Oracle: the `raise` statements of the code. `python -m tests.tools.list_errors` writes the page anew."""
    page = list_errors.PAGE.read_text(encoding="utf-8")
    assert page.partition(list_errors.HEADING)[1:] == list_errors.render().partition(list_errors.HEADING)[1:]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_pages_can_be_looked_through(page: Path) -> None:
    """Oracle: 400 lines, as of files of code."""
    assert len(page.read_text(encoding="utf-8").splitlines()) <= 400


CURES = re.compile(
    r"\b(add|ask|begin|cancel|change|choose|collect|compare|compute|convert|copy|correct|delete|do|draws|export|fetch|"
    r"free|give|grow|install|is made|keep|leave|let|look|lower|makes?|made by|measure|mends|move|name|open|pass|put|"
    r"raise|reduce|remove|rename|render|repair|restore|run|save|say|see|set|shorten|spell|submit|take|train|try|tune|use|wait|widen|write)\b"
)
CHOICES = re.compile(
    r"\b(there (are|is)|it has|known are|can grow:|must|needs?|multiples of|export that|give|says why)\b", re.IGNORECASE
)


def test_every_message_says_what_to_do() -> None:
    """Oracle: the words of cures, which follow what is wrong; or the choices there are. An ellipsis at the end is what
    the place puts in, and Slurm's or a library's own words."""
    for _, text in list_errors.messages():
        last = re.split(r"[:;]| or ", text, maxsplit=1)[-1].lower()
        has_cure = CURES.search(last) or CHOICES.search(text)
        assert has_cure or text.endswith("…"), text


def test_messages_of_every_kind_are_found() -> None:
    """Oracle: one of each kind, copied from where it is raised: an f-string, a choice of two, a setting's, one that
    stands in a variable, one that a function of another file returns, an option's."""
    assert {
        ("ConfigError", "--out … exists already: name a new folder"),
        ("ConfigError", "grow and revision go with start: name a model to start from, or leave them out"),
        ("DataError", "task …: train is empty; every split needs examples".replace("train", "…")),
        ("RecordsError", "… is a folder, a pipe or a device, not a file of records: move it away"),
        ("UserError", "… is there already: take another name"),  # a plain one
        ("ConfigError", "blocks … must be at least 1"),  # of a method
        ("DataError", "…: the folder holds no file that ends in …: put some there, or correct the path"),
        ("RecordsError", f"…: the evaluation at the stage's end is missing; {CURE}"),
        ("ConfigError", "… is no whole number from … to …: give one"),
        ("OSError", "…: a record was cut short: free room on the disk, and try again"),
    } <= list_errors.messages()
    assert {"SlurmError", "ResultsError", "SideEffect", "NonFiniteLoss", "DamagedFile"} <= set(list_errors.kinds())


def test_every_error_that_is_raised_with_words_is_listed_or_known_to_meet_nobody() -> None:
    """Oracle: the `raise` statements; each reason to leave a class out is needed."""
    raised = {kind for _, kind, _ in list_errors.raised(TREES)}
    assert raised - list_errors.kinds().keys() == list_errors.INNER.keys()


def test_no_message_hides_behind_a_variable() -> None:
    """Oracle: a message says something itself, or what it puts in is listed by hand; nothing else is in the list."""
    few = {
        (module, text)
        for module, kind, text in list_errors.raised(TREES)
        if kind in list_errors.kinds() and list_errors.says_little(text)
    }
    assert few == list_errors.FILLED.keys()


PLANTED = {
    "a": """
from b import wrong, CURE
def one(place):
    problem = "the folder holds nothing" if place else f"no file of {place}"
    raise DataError(f"{place}: {problem}")
def two(place):
    if found := wrong(place):
        raise DataError(f"{place}: {found}; {CURE}")
def three(place, why):
    raise DataError(f"{place}: {why}")
""",
    "b": """
CURE = "call it again"
def wrong(line):
    if line:
        return f"{line} was moved here"
    return ""
""",
}


def test_texts_in_variables_and_of_helpers_are_read() -> None:
    """Oracle: by hand, from the planted code; only what a caller hands in is not known, and says next to nothing."""
    found = {text for _, _, text in list_errors.raised({name: ast.parse(code) for name, code in PLANTED.items()})}
    known = {"…: the folder holds nothing", "…: no file of …", "…: … was moved here; call it again"}
    assert found == known | {"…: …"}
    assert [text for text in sorted(found) if list_errors.says_little(text)] == ["…: no file of …", "…: …"]
