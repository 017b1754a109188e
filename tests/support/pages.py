"""The code blocks of README.md, CONTRIBUTING.md and docs/, and a copy of the project for them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.support import tiny_suite

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.M | re.S)
FOLDERS = (
    "benchmark",
    "methods",
    "analysis",
    "paper_tables",
    "results/demo",
    "results/open_text/report/main",
)
FILES = ("run_all.py", "Makefile", "setup.cfg", "pyproject.toml", "constraints.txt")


@dataclass(frozen=True)
class Block:
    page: str
    language: str
    before: str  # the paragraph before it
    text: str


def list_blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    return [
        Block(page.name, match[1], text[: match.start()].rstrip().rpartition("\n\n")[2], match[2])
        for match in BLOCK.finditer(text)
        if match[1] != "text"
    ]


def copy_project(project: Path) -> Path:
    """Copy what the pages use into a new folder, except `.venv`.

    In the copy, `bert_base` and `SUITE` are small, with two of the paper's domains.
    """
    for name in FOLDERS:
        shutil.copytree(ROOT / name, project / name)
    for name in FILES:
        shutil.copy(ROOT / name, project)
    small = tiny_suite.write(project).read_text()
    for name, domain in {"a": "wb", "b": "bio"}.items():
        small = small.replace(f'{{ name = "{name}",', f'{{ name = "{domain}",')
    (project / "benchmark/suites/bert_base.toml").write_text(small)
    (project / "SUITE.toml").write_text(small)
    return project


def run_in_shell(command: str, project: Path) -> str:
    """Run a command in a shell in this folder, and return what it prints.

    The command must succeed. `python` is the one in the folder's `.venv`.
    """
    environment = {
        **os.environ,
        "PATH": f"{project}/.venv/bin:{os.environ['PATH']}",
        "HF_HUB_OFFLINE": "1",
    }
    shell = ["bash", "-o", "pipefail", "-ec", command]
    done = subprocess.run(
        shell,
        cwd=project,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}"
    return done.stdout
