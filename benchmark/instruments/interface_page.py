"""What a method is given, as a page: docs/method_interface.md, rendered from the code's own words.

python -m benchmark.instruments.interface_page > docs/method_interface.md
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator

from benchmark.models import LanguageModel
from benchmark.settings.schedules import Piece, Schedule
from benchmark.training.learner import Batch, Elapsed, Learner
from benchmark.training.method import LifelongMethod, Outlook, Phase, Source, Stage

INTRODUCTION = """\
# What a method is given

<!-- rendered by `python -m benchmark.instruments.interface_page`; change the code's comments, not this page -->

docs/adding_a_method.md says what to do with it. Shapes: B rows, N text tokens a row, K predicted positions a row, T
columns of a row as the network sees it, D hidden size, V_text the vocabulary without prompts."""

OFFERED = (LifelongMethod, Stage, Outlook, Phase, Source, Schedule, Piece, Batch, Learner, Elapsed, LanguageModel)


def render() -> str:
    """The page, in Markdown."""
    return "\n\n".join([INTRODUCTION, *(_section(kind) for kind in OFFERED)]) + "\n"


def _section(kind: type) -> str:
    source = textwrap.dedent(inspect.getsource(kind))
    [declared] = ast.parse(source).body
    assert isinstance(declared, ast.ClassDef)
    table = ["| name | what it is |", "| :-- | :-- |", *_rows(declared, source.splitlines())]
    return f"## {kind.__name__}\n\n{inspect.getdoc(kind)}\n\n" + "\n".join(table)


def _rows(declared: ast.ClassDef, lines: list[str]) -> Iterator[str]:
    for part in declared.body:
        if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name):
            if not part.target.id.startswith("_"):
                comment = lines[(part.end_lineno or part.lineno) - 1].partition("  # ")[2]
                yield _row(f"{part.target.id}: {ast.unparse(part.annotation)}", comment)
        elif isinstance(part, ast.FunctionDef) and not part.name.startswith("_") and part.name != "forward":
            paragraph = (ast.get_docstring(part) or "").partition("\n\n")[0]
            is_property = any(ast.unparse(one) == "property" for one in part.decorator_list)
            given = ", ".join(one.arg for one in part.args.args[1:] + part.args.kwonlyargs)
            returns = f" -> {ast.unparse(part.returns)}" if part.returns else ""
            yield _row(f"{part.name}{'' if is_property else f'({given})'}{returns}", " ".join(paragraph.split()))


def _row(name: str, meaning: str) -> str:
    name, meaning = (text.replace("|", "\\|") for text in (name, meaning))
    return f"| `{name}` | {meaning} |".replace("|  |", "| |")


if __name__ == "__main__":
    print(render(), end="")
