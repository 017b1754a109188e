"""Characters that do not stand for themselves: they steer a terminal, break a line, or make text look like another."""

from __future__ import annotations

import unicodedata
from typing import Any, TypeVar, cast

T = TypeVar("T")
# Unicode's categories: control, halves of pairs, ends of lines and paragraphs, and format: zero width, directions
BREAKS = ("Cc", "Cs", "Zl", "Zp")
HIDDEN = (*BREAKS, "Cf")
INSTEAD = "?"  # in every font, and no markup
OF_LINES = ("error", "traceback")  # fields whose text has several lines


def first(text: str, categories: tuple[str, ...] = HIDDEN) -> str:
    """The first character of these categories, nothing where there is none."""
    if text.isprintable():
        return ""
    return next((one for one in text if unicodedata.category(one) in categories), "")


def shown(text: str, keep: str = "") -> str:
    """The text as it may be printed and written: with a question mark for each hidden character, but for some."""
    if text.isprintable():
        return text
    hidden = {one for one in set(text) if unicodedata.category(one) in HIDDEN} - set(keep)
    return "".join(INSTEAD if one in hidden else one for one in text)


def all_shown(value: T, keep: str = "") -> T:
    """A value of JSON, with all texts in it, names of fields too, as `shown` makes them."""
    found: Any = value
    if isinstance(found, str):
        found = shown(found, keep)
    elif isinstance(found, list):
        found = [all_shown(one, keep) for one in found]
    elif isinstance(found, dict):
        found = {shown(name): all_shown(one, "\n\t" if name in OF_LINES else "") for name, one in found.items()}
    return cast(T, found)
