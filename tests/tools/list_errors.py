"""The messages of all errors that a user can meet, as docs/troubleshooting.md lists them, gathered from the code.

    python -m tests.tools.list_errors

writes them into the page. What a message puts in for a case stands as an ellipsis. Where a message has few words of
its own, names and calls of functions are followed to the texts that they stand for.
"""

from __future__ import annotations

import ast
import functools
import itertools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from tests.support.source_tree import ROOT, TREES, bound

PAGE = ROOT / "docs" / "troubleshooting.md"
HEADING = "## Every message"
INTRODUCTION = f"""{HEADING}

<!-- written by `python -m tests.tools.list_errors`; change the messages in the code, not here -->

Each message says what is wrong, where, and after a colon or a semicolon the cure. Search this page for the words of
yours; kinds are in bold. `…` differs from case to case, ` / ` parts messages that end alike.
"""
# Kinds that are no UserError: a run's record or the log names them
OTHERS = {
    "NonFiniteLoss": "",
    "NotScored": "",
    "OSError": "The disk did not do what it was asked to.",
    "RuntimeError": "Processes of one run do not see the same.",
}
CONFIG_ERRORS = ("benchmark.settings", "methods")  # whose ValueErrors are ConfigErrors, as argparse's are
# Raised with words that no user meets, and why
INNER = {
    "AssertionError": "conformance tells of a check that fails",
    "AttributeError": "Python asks for it, of a module",
    "BadZipFile": "checkpoint.load tells it as a DamagedFile",
    "EOFError": "files.chunks tells it as a DataError",
    "LookupError": "results tells it as a ResultsError",
    "OverflowError": "results tells it as a ResultsError",
    "TarError": "results tells it as a ResultsError",
    "TypeError": "asks a stage that is only planned for text, by mistake of ours",
    "ValueError": "is caught where it is raised, or a caller's mistake; for others see CONFIG_ERRORS",
    "error": "zlib's, which files.chunks tells as a DataError",
}
FEWEST = 12  # letters of its own that a message needs, lest it pass on another's
LONG = 21  # letters of an end that messages share
DEPTH = 4  # how often a text that is put in may itself put one in
ANOTHER = "another message, which the page has too"
# Messages with fewer letters, by module, and what is put in
FILLED = {
    ("benchmark.files", "…: …"): "what the operating system says, after the file's name",
    ("benchmark.locks", "…: …"): "what the operating system says, after the file's name",
    ("benchmark.files", "… is damaged: …"): "how to get the file back",
    ("benchmark.files", "… is missing: …"): "how to get the file back",
    ("benchmark.training.checkpoint", "… is damaged (in …): …"): "how to get the file back",
    ("benchmark.downstream.examples", "task …, …"): ANOTHER,
    ("benchmark.instruments.checkpoints", "--push …: …"): "what the Hub says of the name",
    ("benchmark.models.architectures", "…"): ANOTHER,
    ("benchmark.models.start_model", "model.start: …"): ANOTHER,
    ("benchmark.models.start_model", "model.start: …: …"): ANOTHER,
    ("benchmark.models.transformer", "…: …"): ANOTHER,
    ("benchmark.settings.load", "…: …"): "a key, what it may be, and what was given",
    ("benchmark.training.keys", "row …, … of phase …: …"): ANOTHER,
    ("methods", "…: …"): "a key, what it may be, and what was given; or another message",
}
Message = tuple[str, str]  # kind, text


@functools.cache
def kinds() -> dict[str, str]:
    """Each class of errors that a user can meet, and the first paragraph of its docstring."""
    classes = [node for tree in TREES.values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    found = {"UserError", *OTHERS}
    while more := {one.name for one in classes if {ast.unparse(base) for base in one.bases} & found} - found:
        found |= more
    told = {one.name: (ast.get_docstring(one) or "").partition("\n\n")[0].replace("\n", " ") for one in classes}
    return {name: OTHERS.get(name) or told[name] for name in sorted(found)}


@functools.cache
def messages() -> set[Message]:
    """The kind and the text of each error that a user can meet, but of those that only tell another one."""
    found = {(kind, text) for module, kind, text in raised(TREES) if FILLED.get((module, text)) != ANOTHER}
    return {(kind, text) for kind, text in found if kind not in INNER and re.search("[a-z]", text)}


def raised(trees: Mapping[str, ast.Module]) -> set[tuple[str, str, str]]:
    """Module, kind and text of each error that is raised with words."""
    found = set()
    for module, tree in trees.items():
        for call, function in _raises(tree, tree):
            kind = ast.unparse(call.func).rpartition(".")[2]
            if kind == "ArgumentTypeError" or (kind == "ValueError" and module.startswith(CONFIG_ERRORS)):
                kind = "ConfigError"
            kind = "OSError" if kind == "Refused" else kind  # it names a cure, and reads the same
            place = _Place(trees, module, function, 0)
            words, file = call.args[0], ""
            if kind == "OSError" and len(call.args) == 3:  # errno, words, file, told in another order
                words, file = call.args[1], "…: "
            told = set(place.texts(words))
            if any(map(says_little, told)):
                told = set(replace(place, left=DEPTH).texts(words))
            found |= {(module, kind, file + text) for text in told}
    return found


def _raises(node: ast.AST, function: ast.AST) -> Iterator[tuple[ast.Call, ast.AST]]:
    """The calls that make what is raised, each with the function that it stands in."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Raise) and isinstance(child.exc, ast.Call) and child.exc.args:
            yield child.exc, function
        yield from _raises(child, child if isinstance(child, ast.FunctionDef) else function)


def says_little(text: str) -> bool:
    return len(re.sub(r"[^a-z]", "", text.lower())) < FEWEST


@dataclass(frozen=True)
class _Place:
    """Where an expression stands, and how far its names are still followed."""

    trees: Mapping[str, ast.Module]
    module: str
    function: ast.AST  # the module outside of all functions
    left: int

    def texts(self, node: ast.expr) -> Iterator[str]:
        """What an expression of a text says; of a choice each."""
        if isinstance(node, ast.IfExp):
            yield from (*self.texts(node.body), *self.texts(node.orelse))
        elif isinstance(node, ast.Constant):
            yield str(node.value)
        elif isinstance(node, ast.JoinedStr):
            yield from map("".join, itertools.product(*(set(self.texts(part)) for part in node.values)))
        elif isinstance(node, ast.FormattedValue):
            is_plain = node.conversion == -1 and node.format_spec is None
            yield from (text if " " in text else "…" for text in (self.texts(node.value) if is_plain else [""]))
        elif isinstance(node, ast.BinOp):
            yield from map("".join, itertools.product(set(self.texts(node.left)), set(self.texts(node.right))))
        elif isinstance(node, ast.Call | ast.Name | ast.Attribute) and self.left:
            yield from {text for place, value in self._behind(node) for text in place.texts(value)} - {""} or ["…"]
        else:
            yield "…"

    def _behind(self, node: ast.Call | ast.Name | ast.Attribute) -> list[tuple[_Place, ast.expr]]:
        """What a name was given in its function or module, or what a function returns, and where that stands."""
        name = node.func if isinstance(node, ast.Call) else node
        here = replace(self, left=self.left - 1)
        if isinstance(name, ast.Name) and (given := _given(self.function, name.id)):
            return [(here, value) for value in given]
        module, _, inner = _full_name(name, self.module, self.trees[self.module]).rpartition(".")
        if module not in self.trees:
            return []
        tree = self.trees[module]
        if not isinstance(node, ast.Call):
            return [(replace(here, module=module, function=tree), value) for value in _given(tree, inner)]
        made = [one for one in tree.body if isinstance(one, ast.FunctionDef) and one.name == inner]
        return [
            (replace(here, module=module, function=one), back.value)
            for one in made
            for back in ast.walk(one)
            if isinstance(back, ast.Return) and back.value
        ]


def _given(scope: ast.AST, name: str) -> list[ast.expr]:
    """What is assigned to a name in a function, or in a module outside of all."""
    inside = scope.body if isinstance(scope, ast.Module) else ast.walk(scope)
    values = []
    for node in inside:
        if isinstance(node, ast.Assign | ast.AnnAssign | ast.NamedExpr) and node.value:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            values += [node.value for target in targets if ast.unparse(target) == name]
    return values


def _full_name(name: ast.expr, module: str, tree: ast.Module) -> str:
    first, *rest = ast.unparse(name).split(".")
    return ".".join([bound(tree).get(first, f"{module}.{first}"), *rest])


def render() -> str:
    """The section of the page. Messages that end alike, with the same cure, share a line."""
    put_in = {text: f" ({told})" for (_, text), told in FILLED.items()}
    parts = [INTRODUCTION]
    for kind, told in kinds().items():
        heads: dict[str, list[str]] = {}
        for text in sorted(text for name, text in messages() if name == kind):
            parting = "; " if "; " in text else ": "
            head, _, end = text.rpartition(parting)
            end = f"{parting}{end}" if head and len(end) > LONG else ""
            heads.setdefault(end or text, []).append(head if end else "")
        lines = [" / ".join(begin) + end for end, begin in heads.items()]
        mine = "".join(f"- {_escaped(line)}{put_in.get(line, '')}\n" for line in lines)
        parts += [f"**{kind}.** {told}\n\n{mine}"] * bool(mine)
    return "\n".join(parts)


def _escaped(text: str) -> str:
    return re.sub(r"([\\`*_<>|\[\]$])", r"\\\1", text.replace("\n", " "))


if __name__ == "__main__":
    before = PAGE.read_text(encoding="utf-8").partition(HEADING)[0]
    PAGE.write_text(f"{before.rstrip()}\n\n{render()}", encoding="utf-8")
