"""Readers of files: what each kind of file holds as parts of text.

A part is a whole file of source or prose, a description of an interface, a translated message, or
one release of a change log with its date.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

LICENCE = re.compile(r"copyright|licen[cs]e|SPDX", re.I)
COMMENT = re.compile(r"\s*(/\*.*?\*/|(//[^\n]*\n)+|(#(?=[ !\n])[^\n]*\n)+)", re.S)
CODING = re.compile(r"\A(# .*coding[:=].*\n)\s*")
TAG = re.compile(r"<[^>]+>")
MESSAGE = re.compile(r'^msgstr(?:\[\d\])? ((?:".*"\s*)+)', re.M)
STRING = re.compile(r'"(.*)"')
ESCAPES = {"\\n": "\n", "\\t": "\t", '\\"': '"', "\\\\": "\\"}
ESCAPE = re.compile(r'\\[nt"\\]')
DOCSTRING = re.compile(r'"""(.*?)"""', re.S)
# the names of texts in descriptions of an interface, as JSON
DESCRIPTIONS = ("documentation", "description")

MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
MONTH = rf"(?P<month>{'|'.join(MONTHS)})[a-z]*\.?"
YEAR = r"(?P<year>(?:19|20)\d\d)"
DAY = r"(?P<day>\d{1,2})(?:st|nd|rd|th)?"
DATES = (
    re.compile(rf"(?<![\d.-]){YEAR}[-./](?P<month>\d\d)[-./](?P<day>\d\d)(?![\d-])"),
    re.compile(rf"\b{MONTH} {DAY},? {YEAR}\b", re.I),
    re.compile(rf"\b{DAY} {MONTH},? {YEAR}\b", re.I),
)
# what makes a line with a date no heading
NO_HEADING = re.compile(r"^[-*+] |generated|\.$|^\s*(\.\. )?\$|^:Date: \$", re.I)
HEADING = 60  # characters of a heading at most, besides its date and links
LINK = re.compile(r"\]?\(?https?://\S+")
UNDERLINE = re.compile(r"([=~^\"'`#*+-])\1{2,}\s*$")
FIELD = re.compile(r"\s+:(version|released): ")  # of a directive that begins a release
RELEASE = re.compile(r"^  (\S+):\n", re.M)  # of a change log in YAML
RELEASE_DATE = re.compile(r"^    release_date: '(\d{4}-\d\d-\d\d)'\n", re.M)
FRAGMENTS = re.compile(r"^    fragments:\n(    - .*\n)+", re.M)


@dataclass(frozen=True)
class Part:
    text: str
    date: str = ""  # YYYY-MM-DD of a release


@dataclass(frozen=True)
class Reader:
    """`between` stands between two parts of a document; without it each part is a document."""

    read: Callable[[str], Iterable[Part]]
    between: str = ""


def read_source(text: str) -> Iterator[Part]:
    """A source without the comments on its licence at its head."""
    text = CODING.sub("", text)
    while (comment := COMMENT.match(text)) and LICENCE.search(comment[0]):
        text = text[comment.end() :]
    yield Part(text.strip("\n"))


def read_prose(text: str) -> Iterator[Part]:
    yield Part(text.strip("\n"))


def read_descriptions(text: str) -> Iterator[Part]:
    """The descriptions in an interface's JSON, or in the docstrings of its Python, without tags."""
    if text.startswith("{"):
        descriptions = _walk_descriptions(json.loads(text))
    else:
        descriptions = filter(None, map(_read_docstring, DOCSTRING.findall(text)))
    for description in descriptions:
        yield Part(" ".join(TAG.sub(" ", description).split()))


def _read_docstring(text: str) -> str:
    """A docstring without fields of parameters; nothing of one that says what its getter says."""
    lines = [line for line in text.split("\n") if not line.lstrip().startswith(":")]
    return "" if text.lstrip().startswith("Sets the ") else "\n".join(lines)


def _walk_descriptions(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for name, child in value.items():
            if name in DESCRIPTIONS and isinstance(child, str):
                yield child
            else:
                yield from _walk_descriptions(child)
    elif isinstance(value, list):
        for child in value:
            yield from _walk_descriptions(child)


def read_translations(text: str) -> Iterator[Part]:
    """The translated messages of a catalogue of gettext, without its head."""
    for number, message in enumerate(MESSAGE.finditer(text)):
        lines = STRING.findall(message[1])
        if number:
            yield Part(ESCAPE.sub(lambda found: ESCAPES[found[0]], "".join(lines)).strip())


def read_releases(text: str) -> Iterator[Part]:
    """The releases of a change log, each from its heading, which holds its date.

    What stands before the first such heading has no date and is left out.
    """
    lines = text.split("\n")
    starts: list[tuple[int, str]] = []
    for number in range(len(lines)):
        if date := _find_heading_date(lines, number):
            starts.append((_find_title(lines, number), date))
    ends = [start for start, _ in starts[1:]] + [len(lines)]
    for (start, date), end in zip(starts, ends[: len(starts)], strict=True):
        yield Part("\n".join(lines[start:end]).strip("\n"), date)


def _find_heading_date(lines: list[str], number: int) -> str:
    """The date of a line that is a heading, else nothing."""
    line = LINK.sub("", lines[number])
    before = lines[number - 1] if number else ""
    is_field = bool(FIELD.match(line))
    is_apart = not before.strip() or bool(UNDERLINE.match(before))
    if NO_HEADING.search(line) or not (is_field or (is_apart and line[:1].strip())):
        return ""
    for pattern in DATES:
        found = pattern.search(line)
        if found and len(line) - len(found[0]) <= HEADING:
            month = found["month"]
            if not month.isdigit():
                month = str(MONTHS.index(month[:3].lower()) + 1)
            is_date = 1 <= int(month) <= 12 and 1 <= int(found["day"]) <= 31
            return f"{found['year']}-{int(month):02}-{int(found['day']):02}" if is_date else ""
    return ""


def _find_title(lines: list[str], number: int) -> int:
    """The number of the line in which a release begins, as its date may stand below a title."""
    start = number
    for place in range(number - 1, max(-1, number - 6), -1):
        line = lines[place]
        is_title = bool(UNDERLINE.match(lines[place + 1]) and line.strip())
        if is_title or line.startswith((".. changelog::", "# ", "## ")):
            start = place
        elif line.strip() and not (UNDERLINE.match(line) or FIELD.match(line)):
            break
    return start


def read_yaml_releases(text: str) -> Iterator[Part]:
    """The releases of a change log of an Ansible collection."""
    pieces = RELEASE.split(text[text.find("releases:\n") + len("releases:\n") :])
    for version, content in zip(pieces[1::2], pieces[2::2], strict=True):
        date = RELEASE_DATE.search(content)
        if date:
            changes = FRAGMENTS.sub("", content[: date.start()])
            yield Part(f"{version}:\n{changes}".strip("\n"), date[1])


def read_change_log(text: str) -> Iterator[Part]:
    is_yaml = text.startswith("ancestor:") or text.startswith("releases:\n")
    yield from read_yaml_releases(text) if is_yaml else read_releases(text)


READERS = {
    "source": Reader(read_source),
    "prose": Reader(read_prose),
    "descriptions": Reader(read_descriptions, between="\n\n"),
    "translations": Reader(read_translations, between="\n"),
    "releases": Reader(read_change_log, between="\n\n"),
}
