"""Every word has one meaning. Oracle: docs/concepts.md."""

from __future__ import annotations

import importlib
import re
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "concepts.md").read_text(encoding="utf-8")
CODE = sorted(set(re.findall(r"`((?:benchmark|methods|analysis|paper_tables)[\w.]+)`", PAGE)))
WORDS = re.findall(r"^\| (?!word |---)(.+?) \|.*`(?:benchmark|methods|analysis)", PAGE, re.M)


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


def test_every_word_is_defined_once() -> None:
    """Oracle: the first column of the page's tables has no word twice."""
    assert len(WORDS) == len(set(WORDS)) > 15


def test_the_page_is_what_the_test_reads() -> None:
    """If the page had another form, the tests above would find no names and test nothing."""
    assert len(CODE) > 12
