"""The rooms and the direction of their imports. Oracle: the table below, which docs/how_it_works.md explains."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ROOMS = ("benchmark", "methods", "analysis", "paper_tables")
MAY_IMPORT = {
    "benchmark": set(),
    "methods": {"benchmark"},
    "analysis": {"benchmark"},
    "paper_tables": {"analysis", "benchmark"},
}
TORCH = {"torch", "transformers", "tokenizers", "safetensors"}
# analysis works from records; only these two look into models
LOOKS_INTO_MODELS = {"analysis/similarity.py", "analysis/attention.py"}
ANALYSIS_USES = {"benchmark.records", "benchmark.config", "benchmark.errors", "benchmark.atomic"}
WITHOUT_TORCH = ("benchmark.config", "benchmark.records", "analysis.render", "paper_tables", "run_all")


def imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found |= {f"{node.module}.{alias.name}" for alias in node.names} | {str(node.module)}
    return found


@pytest.mark.parametrize("path", [p for room in ROOMS for p in sorted((ROOT / room).rglob("*.py"))], ids=str)
def test_imports_go_one_way(path: Path) -> None:
    name = path.relative_to(ROOT).as_posix()
    room = name.split("/")[0]
    used = imports(path)
    rooms = {module.split(".")[0] for module in used} & {*ROOMS, "run_all", "tests"}
    assert rooms <= MAY_IMPORT[room] | {room}, f"{name} imports {rooms}"
    if room in ("analysis", "paper_tables") and name not in LOOKS_INTO_MODELS:
        assert not {module.split(".")[0] for module in used} & TORCH, f"{name} imports torch"
        of_benchmark = {".".join(m.split(".")[:2]) for m in used if m.startswith("benchmark.")}
        assert of_benchmark <= ANALYSIS_USES, f"{name} imports {of_benchmark}"


@pytest.mark.parametrize("module", WITHOUT_TORCH)
def test_is_imported_without_torch(module: str) -> None:
    code = f"import sys, {module}; sys.exit(bool({{'torch', 'transformers'}} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


def test_time_is_measured_in_one_place() -> None:
    """Only the clock charges a budget, so only it may read a high-resolution timer."""
    readers = [p.name for p in (ROOT / "benchmark").rglob("*.py") if "perf_counter" in p.read_text(encoding="utf-8")]
    assert set(readers) <= {"clock.py", "speed.py"}
