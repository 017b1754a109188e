"""Commands, examples and links of the pages are valid, and the pages are short and current."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from benchmark.data.sampling import weigh
from benchmark.settings.command_line import OPTIONS, parse
from benchmark.settings.load import load_suite
from docs import reference, suite_keys

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
COMMANDS = [
    (page.name, line)
    for page in PAGES
    for line in re.findall(r"^python run_all\.py (.+)$", page.read_text(encoding="utf-8"), re.M)
]
# The most words of a page, without blocks of code and output. Pages without a limit are rendered,
# or appendices, or show programs.
MOST_WORDS = {
    "README.md": 450,
    "first_run.md": 600,
    "your_own_text.md": 1100,
    "adding_a_method.md": 800,
    "reproduce.md": 1000,
    "study.md": 500,
    "concepts.md": 900,
    "models.md": 900,
    "tasks.md": 700,
    "slurm_and_gpus.md": 900,
    "statistics.md": 600,
    "troubleshooting.md": 500,
    "CONTRIBUTING.md": 600,
}
WRITTEN = [page for page in [*PAGES, ROOT / "CONTRIBUTING.md"] if page.name in MOST_WORDS]
OWN_TEXT = (ROOT / "docs" / "your_own_text.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(("page", "line"), COMMANDS)
def test_commands_are_understood(page: str, line: str) -> None:
    """Oracle: the parser of the command line, which accepts each command."""
    parse(shlex.split(line, comments=True), "")


@pytest.mark.parametrize("option", OPTIONS)
def test_an_option_that_takes_a_value_has_an_example(option: str) -> None:
    """Oracle: the type that converts the option's value, which accepts the example in its help."""
    settings = OPTIONS[option]
    if settings.get("action") == "store_true" or "choices" in settings:
        return  # its help lists all values
    example = re.search(r"such as ([\w/.=,-]*\w)", settings["help"])
    assert example, "no example"
    settings.get("type", str)(example[1])


def test_a_mixture_has_the_shares_that_its_page_says(tmp_path: Path) -> None:
    """Oracle: by hand: 0.9 / (0.9 + 0.3) is 75%."""
    blocks = re.findall(r"```toml\n(.*?)```", OWN_TEXT, re.S)
    (tmp_path / "mine.toml").write_text(blocks[0])
    [mixture] = [block for block in blocks if "weight = " in block]
    (tmp_path / "mixed.toml").write_text(mixture)
    sources = load_suite(str(tmp_path / "mixed.toml")).domains[2].sources
    assert weigh(sources)[0] == pytest.approx(0.75)
    assert "75% of its sequences are books" in OWN_TEXT


def leave_out_code(text: str) -> str:
    """The prose of a page: no blocks, no code in a line, no HTML."""
    return re.sub(r"^```\w*\n.*?^```$|`[^`\n]*`|<[^>\n]*>", "", text, flags=re.M | re.S)


@pytest.mark.parametrize("page", WRITTEN, ids=lambda page: page.name)
def test_a_page_is_short_and_simple(page: Path) -> None:
    """Oracle: the rules of CONTRIBUTING.md, and the table of limits above."""
    text = page.read_text(encoding="utf-8")
    prose = re.sub(r"^```\w*\n.*?^```$", "", text, flags=re.M | re.S)
    words = re.findall(r"\S*\w\S*", prose)
    assert len(words) <= MOST_WORDS[page.name]
    assert ";" not in leave_out_code(text)


@pytest.mark.parametrize("page", WRITTEN, ids=lambda page: page.name)
def test_pages_are_linked_where_they_are_named(page: Path) -> None:
    """Oracle: the files of the project and their headings, as GitHub resolves a link. The name of a
    page in text without a link is refused.
    """
    text = leave_out_code(page.read_text(encoding="utf-8"))
    assert not re.search(r"(?<![/(])docs/\w+\.md", text), "a page without a link"
    for target in re.findall(r"\]\((?!http)(.*?)\)", text):
        name, _, heading = target.partition("#")
        file = page.parent / name if name else page
        assert file.exists(), target
        if heading:
            titles = re.findall(r"^#+ (.*)", file.read_text(encoding="utf-8"), re.M)
            slugs = [re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles]
            assert heading in slugs, target


@pytest.mark.parametrize("name", reference.PAGES)
def test_a_page_of_reference_is_current(name: str) -> None:
    """Oracle: the page as rendered from the code's comments, docstrings and help."""
    page = (ROOT / "docs" / name).read_text(encoding="utf-8")
    assert page == reference.PAGES[name](), "run `python -m docs.reference`"


@pytest.mark.parametrize("section", suite_keys.EXAMPLES)
def test_the_example_of_a_section_is_a_suites(section: str, tmp_path: Path) -> None:
    """Oracle: `load_suite`, which refuses unknown keys and values."""
    suite = tmp_path / "mine.toml"
    suite.write_text(f'extends = "demo"\n{suite_keys.EXAMPLES[section]}\n')
    load_suite(str(suite))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_pages_can_be_looked_through(page: Path) -> None:
    """Oracle: a limit of 500 lines."""
    assert len(page.read_text(encoding="utf-8").splitlines()) <= 500


def test_a_first_submission_takes_five_commands() -> None:
    """Oracle: by hand: the commands of "Slurm in five commands", in this order, and no other."""
    text = (ROOT / "docs" / "reproduce.md").read_text(encoding="utf-8")
    section = text.partition("## Slurm in five commands")[2].partition("\n## ")[0]
    commands = re.findall(r"^python run_all\.py (\w+)", section, re.M)
    assert commands == ["doctor", "prepare", "run", "run", "status"]
