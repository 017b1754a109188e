"""The project's files as syntax trees."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2]


def _module_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


FILES = {
    _module_of(path): path
    for room in ("benchmark", "methods", "analysis", "paper_tables", "run_all.py")
    for path in sorted((ROOT / room).rglob("*.py") if (ROOT / room).is_dir() else [ROOT / room])
}
TREES = {module: ast.parse(path.read_text(encoding="utf-8")) for module, path in FILES.items()}
