"""The messages of all errors that a user can meet, as docs/troubleshooting.md lists them, gathered from the code.

    python -m tests.tools.list_errors

writes them into the page. What a message puts in for a case stands as an ellipsis.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tests.support.source_tree import ROOT, TREES

PAGE = ROOT / "docs" / "troubleshooting.md"
HEADING = "## Every message"
INTRODUCTION = f"""{HEADING}

<!-- written by `python -m tests.tools.list_errors`; change the messages in the code, not here -->

Each message says what is wrong, where, and after a colon or a semicolon the cure. Search this page for the words of
yours: below its kind stands what that kind means. `…` is what differs from case to case.
"""
OTHERS = {"NonFiniteLoss"}  # kinds that a run's record names, and that are no UserError
FEWEST = 12  # letters of a message's own; one with fewer passes on another's
Message = tuple[str, str]  # kind, text


def kinds() -> dict[str, str]:
    """Each class of errors that a user can meet, and the first paragraph of its docstring."""
    classes = [node for tree in TREES.values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    found = {"UserError"} | OTHERS
    while more := {one.name for one in classes if {ast.unparse(base) for base in one.bases} & found} - found:
        found |= more
    told = {one.name: (ast.get_docstring(one) or "").partition("\n\n")[0].replace("\n", " ") for one in classes}
    return {name: told[name] for name in sorted(found)}


def messages() -> set[Message]:
    """The kind and the text of each error that is raised, or that pydantic makes of a setting's ValueError."""
    known = kinds()
    found = set()
    for module, tree in TREES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and node.exc.args:
                name = ast.unparse(node.exc.func).rpartition(".")[2]
                if name == "ValueError" and module.startswith("benchmark.settings"):
                    name = "ConfigError"
                if name in known:
                    found |= {(name, text) for text in _texts(node.exc.args[0])}
    return {(kind, text) for kind, text in found if len(re.sub(r"[^a-z]", "", text.lower())) >= FEWEST}


def _texts(node: ast.expr) -> Iterator[str]:
    """What an expression of a text says; of a choice each."""
    if isinstance(node, ast.IfExp):
        yield from (*_texts(node.body), *_texts(node.orelse))
    elif isinstance(node, ast.Constant):
        yield str(node.value)
    elif isinstance(node, ast.JoinedStr):
        yield "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values)
    elif isinstance(node, ast.BinOp):
        yield from (left + right for left in _texts(node.left) for right in _texts(node.right))
    else:
        yield "…"


def render() -> str:
    """The section of the page."""
    parts = [INTRODUCTION]
    for kind, told in kinds().items():
        mine = sorted(text for name, text in messages() if name == kind)
        parts.append(f"### {kind}\n\n{told}\n\n" + "\n".join(f"- {_escaped(text)}" for text in mine) + "\n")
    return "\n".join(parts)


def _escaped(text: str) -> str:
    return re.sub(r"([\\`*_<>|\[\]$])", r"\\\1", text.replace("\n", " "))


if __name__ == "__main__":
    before = PAGE.read_text(encoding="utf-8").partition(HEADING)[0]
    PAGE.write_text(f"{before.rstrip()}\n\n{render()}", encoding="utf-8")
