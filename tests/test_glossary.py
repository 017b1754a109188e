"""Every word has one meaning. Oracle: docs/glossary.md."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
CODE = sorted(set(re.findall(r"`((?:benchmark|methods|analysis|paper_tables)[\w.]+)`", PAGE)))
RETIRED = re.search(r"said nothing: (.+)\.", PAGE)[1].split(", ")
NO_FILE = re.search(r"name of a file: (.+)\.", PAGE)[1].split(", ")
WORDS = re.findall(r"^\| (?!word |---)(.+?) \|", PAGE, re.M)
PACKAGES = ("benchmark", "methods", "analysis", "paper_tables")
FILES = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]


def resolve(name: str) -> Any:
    """The module, class, function or field of that dotted name."""
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        try:
            thing: Any = importlib.import_module(".".join(parts[:end]))
        except ModuleNotFoundError:
            continue
        for attribute in parts[end:]:
            declared = getattr(thing, "model_fields", {}) | getattr(thing, "__annotations__", {})
            if is_dataclass(thing):
                declared |= {field.name: field for field in fields(thing)}
            thing = declared[attribute] if attribute in declared else _attribute(thing, attribute)
        return thing
    raise ModuleNotFoundError(name)


def _attribute(thing: Any, name: str) -> Any:
    if isinstance(thing, type) and f"{name}: " in (thing.__doc__ or ""):
        return thing  # an attribute that its class's docstring names
    return getattr(thing, name)


@pytest.mark.parametrize("name", CODE)
def test_what_the_page_names_exists(name: str) -> None:
    resolve(name)


def definitions() -> Iterator[tuple[str, str]]:
    """The name of every public class, function and file, and its file."""
    for path in FILES:
        place = path.relative_to(ROOT).as_posix()
        yield path.stem, place
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for statement in tree.body:  # names of types are as good as classes
            if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
                name = statement.targets[0].id
                if re.fullmatch(r"[A-Z][a-z]\w+", name):
                    yield name, place
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_"):
                yield node.name, place


def variables() -> Iterator[tuple[str, str]]:
    """The name of every variable and parameter, and its file."""
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.arg):
                yield node.arg, path.relative_to(ROOT).as_posix()
            elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
                yield (
                    node.id if isinstance(node, ast.Name) else node.attr,
                    path.relative_to(ROOT).as_posix(),
                )


def test_words_with_several_meanings_are_in_no_name() -> None:
    """Oracle: the last section. What a library calls its own is the library's."""
    for name, place in (*definitions(), *variables()):
        words = re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)
        assert not {word.lower() for word in words} & set(RETIRED), f"{place}: {name}"


def test_files_are_called_what_they_hold() -> None:
    """Oracle: the last section, for what tests share too."""
    support = sorted((ROOT / "tests" / "support").rglob("*.py"))
    assert not [path for path in (*FILES, *support) if path.stem in NO_FILE]


def test_every_word_is_defined_once() -> None:
    """One that has several uses is defined with what it is of. Oracle: the first column."""
    assert len(WORDS) == len(set(WORDS)) > 50
    assert {"row of a suite", "row of a table", "row of a batch", "row of the vocabulary"} <= {
        *WORDS
    } - {"row"}


def test_the_page_is_what_the_test_reads() -> None:
    """A page in another form would test nothing."""
    assert len(CODE) > 40 and "chain" in RETIRED and "watch" in NO_FILE
