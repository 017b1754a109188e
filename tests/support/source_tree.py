"""The project's files as syntax trees, and what tests ask of them: which module a name is, what a call imports."""

from __future__ import annotations

import ast
import importlib.util
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
SOURCES = {FILES[module]: tree for module, tree in TREES.items()} | {
    path: ast.parse(path.read_text(encoding="utf-8")) for path in sorted((ROOT / "tests").rglob("*.py"))
}


def bound(tree: ast.AST) -> dict[str, str]:
    """Each name that an import gives a file -> what it is: `cuda` -> `torch.cuda`, `np` -> `numpy`."""
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                top = alias.name.partition(".")[0]
                found[alias.asname or top] = alias.name if alias.asname else top
        elif isinstance(node, ast.ImportFrom):
            found |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    return found


def imports_by_name(node: ast.AST) -> bool:
    """Whether that is a call that imports what a text names, and whose text `named_by` reads."""
    return isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("import_module", "__import__"))


def named_by(call: ast.Call, place: str) -> set[str]:
    """What `import_module(name, package)` imports, as far as its text says: a module, or all directly in a package.

    `place` is the module where the call stands. Raises AssertionError where the text does not say it.
    """
    unseen = f"{place}: the test cannot see what {ast.unparse(call)} imports"
    given: dict[str | None, ast.expr] = dict(zip(("name", "package"), call.args, strict=False))
    given |= {keyword.arg: keyword.value for keyword in call.keywords}
    assert "name" in given and given.keys() <= {"name", "package"} and len(call.args) <= 2, unseen
    name = given["name"]
    first = name.values[0] if isinstance(name, ast.JoinedStr) else name
    if isinstance(first, ast.Constant) and isinstance(first.value, str):
        package = first.value
        if package.startswith("."):
            anchor = given.get("package")
            assert isinstance(anchor, ast.Constant) and isinstance(anchor.value, str), unseen
            package = importlib.util.resolve_name(package, anchor.value)
    else:
        assert ast.unparse(first) == "{__name__}", unseen
        package = place
    package = package.rstrip(".")
    if first is name:
        return {package}
    return {package} | {module for module in FILES if module.rpartition(".")[0] == package}
