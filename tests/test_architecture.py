"""The rooms, which of them may import which, and how long files and functions may be. Oracle: the
tables below, as in CONTRIBUTING.md.

A room is a part of the project: a package in `benchmark`, a package beside it, or `run_all`.
"""

from __future__ import annotations

import ast
import configparser
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache

import pytest

from tests.support.source_tree import FILES, ROOT, TREES

BASE = "benchmark"  # the files in benchmark/ itself
ROOMS = ("settings", "ledger", "data", "models", "training", "downstream", "instruments", "jobs")
FLOORS = (BASE, *(f"benchmark.{room}" for room in ROOMS))
MAY_IMPORT = {room: {*FLOORS[:floor]} for floor, room in enumerate(FLOORS)} | {
    "methods": {*FLOORS[: FLOORS.index("benchmark.training") + 1]},
    "analysis": {BASE, "benchmark.settings", "benchmark.ledger"},
    "paper_tables": {"analysis"},
    "run_all": {*FLOORS, "methods", "analysis", "paper_tables"},
}
MAY_IMPORT_MORE = {
    # analysis works from records, and only this module loads models
    "analysis.model_similarity": {*FLOORS[: FLOORS.index("benchmark.jobs")]},
    # needs what identifies a run, and which scores belong to it
    "analysis.report": {"benchmark.training", "benchmark.downstream", "methods"},
}
TORCH = {"torch", "transformers", "tokenizers", "safetensors"}
LOOKS_INTO_MODELS = "analysis.model_similarity"
WITHOUT_TORCH = (
    *(
        "benchmark.settings.suite",
        "benchmark.settings.load",
        "benchmark.ledger.records",
        "benchmark.ledger.store",
    ),
    *("benchmark.settings.command_line", "benchmark.jobs.executors"),
    *("analysis.page", "analysis.report", "run_all"),
)
READS_A_CLOCK = {f"benchmark.training.{name}" for name in ("clock", "progress", "processes")}
READS_A_CLOCK.add("benchmark.devices")  # which times bf16 on a CPU if precision is "auto"
MOST_NODES = 5_200  # syntax nodes per file, a size that formatting does not change
MOST_LINES = 75  # lines per function, so that it fits on one screen


def room_of(module: str) -> str:
    """The room of a module, or an empty text for a module from outside the project."""
    top, _, rest = module.partition(".")
    if top != "benchmark":
        return top if top in MAY_IMPORT else ""
    room = f"benchmark.{rest.partition('.')[0]}"
    return room if room in MAY_IMPORT else BASE


def imported(module: str, for_types: bool = True) -> Iterator[str]:
    """Yield each module that a file imports: at the top, in functions, and for types if
    `for_types`. Imports in a string do not count.
    """
    left: list[ast.AST] = [TREES[module]]
    while left:
        node = left.pop()
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING" and not for_types:
            continue
        left += ast.iter_child_nodes(node)
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}: relative import"
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if inner in FILES else str(node.module)


@cache
def arrows(for_types: bool = True) -> dict[str, set[str]]:
    """Module of the project -> the project's modules that it imports."""
    inside = {
        module: {name for name in imported(module, for_types) if room_of(name)} - {module}
        for module in FILES
    }
    return inside


@pytest.mark.parametrize("module", FILES)
def test_imports_go_one_way(module: str) -> None:
    rooms = {room_of(name) for name in arrows()[module]} - {room_of(module)}
    may = MAY_IMPORT[room_of(module)] | MAY_IMPORT_MORE.get(module, set())
    assert rooms <= may, f"{module} imports {rooms - may}"
    if room_of(module) in ("analysis", "paper_tables") and module != LOOKS_INTO_MODELS:
        packages = {name.partition(".")[0] for name in imported(module)}
        assert not packages & TORCH, f"{module} imports torch"


def test_no_two_files_import_each_other() -> None:
    """Oracle: an order in which each module comes after those that it imports. A cycle of any
    length has no such order. Imports for types do not count.
    """
    left = dict(arrows(for_types=False))
    while ready := [module for module, names in left.items() if not names & left.keys()]:
        for module in ready:
            del left[module]
    assert not left, f"circles among {sorted(left)}"


def test_every_package_is_installed() -> None:
    """Oracle: the folders with `__init__.py`. Outside the project's folder, Python does not find a
    package that setup.cfg does not name.
    """
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    packages = {module for module, path in FILES.items() if path.name == "__init__.py"}
    assert set(setup["options"]["packages"].split()) == packages


def test_these_are_imported_without_torch() -> None:
    code = "import importlib, sys\nfor name in sys.argv[1:]: importlib.import_module(name)"
    code += "; assert not {'torch', 'transformers'} & {*sys.modules}, name"
    subprocess.run([sys.executable, "-c", code, *WITHOUT_TORCH], cwd=ROOT, check=True)


def test_files_and_functions_fit_on_few_screens() -> None:
    """Oracle: the limits above; docstrings and comments count in a function's lines."""
    for path in [*FILES.values(), *(ROOT / "tests").rglob("*.py")]:
        nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
        assert len(nodes) <= MOST_NODES, path
        for node in nodes:
            if isinstance(node, ast.FunctionDef):
                lines = (node.end_lineno or 0) - node.lineno + 1
                assert lines <= MOST_LINES, f"{path}: {node.name} has {lines} lines"


def test_the_step_is_read_at_a_glance() -> None:
    """The loop, the warm-up and `speed` share `Stepper.step`, so whoever compares methods reads it
    first. Oracle: 30 lines of 100 columns.
    """
    nodes = [
        node
        for node in ast.walk(TREES["benchmark.training.step"])
        if isinstance(node, ast.ClassDef)
    ]
    (stepper,) = (node for node in nodes if node.name == "Stepper")
    (step,) = (
        node for node in stepper.body if isinstance(node, ast.FunctionDef) and node.name == "step"
    )
    assert (step.end_lineno or 0) - step.lineno < 30


def test_what_trains_reads_no_clock() -> None:
    """The clock charges a budget, and nothing else may depend on how fast a machine is. Oracle:
    only READS_A_CLOCK may import `time` or `datetime`.
    """
    trains = ("methods", "benchmark.models", "benchmark.training")
    read = {
        module
        for module in FILES
        if room_of(module) in trains and {"time", "datetime"} & set(imported(module))
    }
    assert read <= READS_A_CLOCK


def test_only_its_executor_names_a_cluster() -> None:
    """Oracle: no file outside Slurm's folder contains `slurm`, `scancel` or `squeue`."""
    for path in FILES.values():
        if "slurm" not in path.parts:
            assert not re.search(r"slurm|scancel|squeue", path.read_text(), re.I), path


def test_no_test_file_imports_another() -> None:
    """Code that tests share belongs in tests/support. Programs in a test's strings count, too."""
    for path in (ROOT / "tests").rglob("*.py"):
        imports = re.findall(
            r"^ *(?:from|import) tests(?:\.| import )test_.*",
            path.read_text(encoding="utf-8"),
            re.M,
        )
        assert not imports, f"{path}: {imports}"
