"""What pages tell a reader to type is understood."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from benchmark.settings.command_line import command_line
from benchmark.settings.suite_files import load_suite

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
