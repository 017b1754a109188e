"""What commands import before they answer. Oracle: the rule that a command which only asks imports
no package that computes.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.suite_folder import SuiteFolder, write_texts

ROOT = Path(__file__).parent.parent
COMPUTES = {
    "torch",
    "transformers",
    "sklearn",
    "scipy",
    "pandas",
    "matplotlib",
    "joblib",
    "submitit",
}


def heavy(code: str, *arguments: str) -> set[str]:
    """The packages of COMPUTES that a fresh interpreter has imported after running this code."""
    code += "\nimport sys; print('\\n', *sys.modules, file=sys.stderr)"
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], cwd=ROOT, capture_output=True, text=True
    )
    assert not done.returncode, done.stderr
    imported = done.stderr.rpartition("\n ")[2].split()
    assert "sys" in imported
    return COMPUTES & set(imported)


COMMAND = """
import sys, run_all
try: run_all.main()
except SystemExit: pass
"""


def test_help_imports_no_settings() -> None:
    assert not heavy(COMMAND + "assert 'pydantic' not in sys.modules", "--help")


def test_a_python_without_packages_is_told_which_has_them(tmp_path) -> None:
    """Oracle: by hand: Python's -S leaves installed packages out. In a copy that nobody installed,
    the error is one line.
    """
    shutil.copytree(ROOT / "benchmark", tmp_path / "benchmark")
    shutil.copy(ROOT / "run_all.py", tmp_path)
    command = [sys.executable, "-S", "run_all.py", "status"]
    done = subprocess.run(command, cwd=tmp_path, env={}, capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr.startswith(
        f"error: {sys.executable} has no package "
    )
    assert ".venv/bin/python run_all.py" in done.stderr and done.stderr.count("\n") == 1


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> SuiteFolder:
    """Three runs, of which two are trained and share a stage.

    The text is tokenised, so that real keys are needed.
    """
    folder = tmp_path_factory.mktemp("startup")
    write_texts(folder)
    tiny = SuiteFolder(folder / "tiny", folder).write(
        '{ method = "naive" }', '{ method = "er" }', '{ method = "elle" }'
    )
    assert tiny.call("run", "--methods", "naive,er") == 0
    return tiny


@pytest.mark.parametrize(
    "command",
    [["status"], ["run", "--dry-run"], ["run", "--dry-run", "--executor", "slurm"]],
    ids=" ".join,
)
def test_plans_wait_for_nothing(tiny: SuiteFolder, command: list[str]) -> None:
    tables = 'tables=["representational_similarity", "main_downstream"]'
    assert not heavy(COMMAND, *tiny.arguments(*command), "--set", tables)


def test_methods_import_nothing_before_they_compute() -> None:
    assert not heavy("import methods\nfor name in methods.list_names(): methods.find(name)")


_counts: list[Counter[Path]] = []  # of running tests: an audit hook cannot be removed


def _count(event: str, arguments: tuple[object, ...]) -> None:
    if event == "open" and isinstance(path := arguments[0], str | Path):
        for counts in _counts:
            counts[Path(path)] += 1


sys.addaudithook(_count)


@pytest.fixture
def opened() -> Iterator[Counter[Path]]:
    """How often each file is opened during the test, by whatever function."""
    _counts.append(Counter())
    yield _counts[-1]
    _counts.pop()


def assert_opened_once(opened: Counter[Path], tiny: SuiteFolder, files: int) -> None:
    kept = [path for kind in ("stages", "suites") for path in (tiny.runs / kind).rglob("*.jsonl")]
    assert {path: opened[path] for path in kept} == dict.fromkeys(kept, 1) and len(kept) == files


@pytest.mark.parametrize("command", [["status"], ["run", "--dry-run"], ["report"]], ids=" ".join)
def test_each_file_of_records_is_opened_once(
    tiny: SuiteFolder, command: list[str], opened: Counter[Path]
) -> None:
    """Oracle: a count of the calls that open a file. A shared stage's file is opened once, too."""
    assert tiny.call(*command) == 0
    assert_opened_once(opened, tiny, files=5)
