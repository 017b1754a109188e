"""The pages that are rendered from the code: the method interface, commands, methods and suites.

python -m docs.reference
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from analysis import catalogue
from benchmark.settings import names
from benchmark.settings.command_line import COMMANDS, OPTIONS
from benchmark.settings.optimizers import OPTIMIZERS

ROOT = Path(__file__).parent.parent
NOTE = "<!-- rendered by `python -m docs.reference`: change the code, not this page -->"
INTERFACE = {
    "benchmark/training/method.py": ("LifelongMethod", "Phase", "Source", "Stage", "StreamInfo"),
    "benchmark/training/learner.py": ("Learner", "Batch", "Elapsed"),
    "benchmark/settings/optimizers.py": ("Optimizer", "Part"),
}
LISTS = {
    "Methods": (ROOT / "methods", "*.py"),
    "Suites": (names.SUITES, "*.toml"),
    "Tables and figures": (catalogue.FOLDER, "*.py"),
    "Architectures": (Path(names.ARCHITECTURE_FOLDERS[0]), "*.py"),
}


def link_pages(text: str) -> str:
    """The text with links for the pages that descriptions name, such as docs/models.md."""
    return re.sub(r"\bdocs/(\w+\.md)\b", r"[\1](\1)", text)


def render_interface() -> str:
    """The page of the classes that a method uses: fields with comments, functions with docs."""
    parts = ["# Method interface", NOTE]
    parts.append(
        "These are the classes of [a method](adding_a_method.md): what it overrides, and what it "
        "is given. Each table lists fields, with their type and default."
    )
    for file, classes in INTERFACE.items():
        source = (ROOT / file).read_text(encoding="utf-8")
        found = {node.name: node for node in ast.parse(source).body if hasattr(node, "name")}
        for name in classes:
            node = found[name]
            assert isinstance(node, ast.ClassDef)
            parts.append(f"## {name}")
            parts.append(f"In `{file}`. {_read_docs(node)}")
            parts += _write_class(node, source.splitlines())
    return link_pages("\n\n".join(parts) + "\n")


def _write_class(node: ast.ClassDef, lines: list[str]) -> Iterator[str]:
    """The table of a class's fields, then its public functions with their docstrings."""
    rows = []
    for member in node.body:
        if isinstance(member, ast.AnnAssign):
            name = ast.unparse(member.target)
            kind = ast.unparse(member.annotation)
            default = f" = {ast.unparse(member.value)}" if member.value else ""
            code = f"{kind}{default}".replace("|", "\\|")
            rows.append(f"| `{name}` | `{code}` | {_find_comment(member, lines)} |")
    if rows:
        yield "\n".join(["| field | type, default | meaning |", "| :-- | :-- | :-- |", *rows])
    for member in node.body:
        if isinstance(member, ast.FunctionDef) and not member.name.startswith("_"):
            result = f" -> {ast.unparse(member.returns)}" if member.returns else ""
            arguments = ast.unparse(member.args).removeprefix("self, ").removeprefix("self")
            is_property = any(ast.unparse(mark) == "property" for mark in member.decorator_list)
            call = member.name if is_property else f"{member.name}({arguments})"
            yield f"**`{call}{result}`** {_read_docs(member)}".rstrip()


def _find_comment(member: ast.AnnAssign, lines: list[str]) -> str:
    """The comment behind a field, or else the lines of comments before it."""
    assert member.end_lineno and member.end_col_offset
    behind = lines[member.end_lineno - 1][member.end_col_offset :].strip()
    if behind.startswith("#"):
        return behind.lstrip("# ")
    before: list[str] = []
    number = member.lineno - 2
    while lines[number].strip().startswith("#"):
        before.insert(0, lines[number].strip().lstrip("# "))
        number -= 1
    return " ".join(before)


def _read_docs(node: ast.ClassDef | ast.FunctionDef) -> str:
    """A docstring as one paragraph, with its list of attributes as a list."""
    text, _, attributes = (ast.get_docstring(node) or "").partition("\n\nAttributes:\n")
    text = re.sub(r"\s*\n\s*", " ", text)
    items = re.sub(r"\n {5,}", " ", attributes).splitlines()
    shown = [re.sub(r"^ *([\w, ]+): ", r"- `\1`: ", item) for item in items]
    return "\n".join([text, "", *shown]) if shown else text


def render_commands() -> str:
    """Each command of run_all.py: an example, what it does, and its options."""
    parts = ["# Commands", NOTE]
    parts.append("`python run_all.py COMMAND --help` prints the same in a terminal.")
    for purpose, commands in COMMANDS.items():
        parts.append(f"## {purpose.rstrip(':').capitalize()}")
        for example, (meaning, options) in commands.items():
            command, *_ = example.split()
            parts.append(f"### {command}")
            parts.append(f"{meaning[0].upper()}{meaning[1:]}. Example: `run_all.py {example}`")
            rows = []
            for option in options:
                settings = OPTIONS[option]
                value = _name_value(settings)
                name = f"{option.split()[0]} {value}".strip()
                rows.append(
                    f"| `{name}` | {settings.get('help', '')} |".replace("N|all", "N\\|all")
                )
            parts.append("\n".join(["| argument | meaning |", "| :-- | :-- |", *rows]))
    return "\n\n".join(parts) + "\n"


def _name_value(settings: dict[str, object]) -> str:
    """What stands behind an option in an example, empty for a switch."""
    if settings.get("action") == "store_true":
        return ""
    choices = settings.get("choices")
    if isinstance(choices, tuple):
        return "{" + ",".join(choices) + "}"
    return str(settings.get("metavar") or "")


def render_lists() -> str:
    """All that `list` names: what it is, and why one would take it."""
    parts = ["# Methods and suites", NOTE]
    parts.append("```bash\npython run_all.py list methods\n```")
    parts.append("This prints the first of these lists.")
    tables = {}
    for title, (folder, pattern) in LISTS.items():
        files = sorted(file for file in folder.glob(pattern) if not file.stem.startswith("_"))
        tables[title] = [
            f"| `{file.stem}` | {_read_title(file)} | {names.read_reason(file)} |" for file in files
        ]
    tables["Optimizers"] = [
        f"| `{kind.name}` | {kind.described} | {kind.reason} |" for kind in OPTIMIZERS.values()
    ]
    header = ["| name | what it is | when to take it |", "| :-- | :-- | :-- |"]
    for title, rows in tables.items():
        parts += [f"## {title}", "\n".join([*header, *rows])]
    return link_pages("\n\n".join(parts) + "\n")


def _read_title(file: Path) -> str:
    """The title of a suite's file, or the first line of a module's docstring."""
    text = file.read_text(encoding="utf-8")
    if file.suffix == ".toml":
        title, *_ = re.findall(r'^title = "(.*)"', text, re.M)
        return str(title)
    return (ast.get_docstring(ast.parse(text)) or "").partition("\n\n")[0].replace("\n", " ")


PAGES = {
    "method_interface.md": render_interface,
    "commands.md": render_commands,
    "methods_and_suites.md": render_lists,
}

if __name__ == "__main__":
    for name, render in PAGES.items():
        (ROOT / "docs" / name).write_text(render(), encoding="utf-8")
