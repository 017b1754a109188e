"""Make five domains of 55 MB from packages, `python
results/small_models_begun_well/make_large_text.py DIR`.

It writes DIR/stream/NAME/{train,valid}.jsonl.gz, {"text": ...} a line, and prints each file's size,
documents and sha256. It needs a machine with Debian 12, where `apt-get download` finds the named
versions (a superseded one is in Debian's snapshots only), pip, 420 MB of downloads (kept in
DIR/packages), 2 GB of memory and 3 minutes. The same packages give the same bytes. The standard
library is all it imports.

A document is a page, some paragraphs of a source file, or consecutive entries. Repeats, licence
texts, licence comments at the head of sources, menus of pages, and tables of numbers are left out.
A package's files come in the order of the hash of their names, packages in the order below, until
the domain is full; the hash of its text decides whether a document is for validation.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import re
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path

TRAIN_BYTES, VALID_BYTES = 55_000_000, 200_000  # of UTF-8 text
SHORTEST, LONGEST = 200, 50_000  # bytes of a document
SOURCE, ENTRIES = 10_000, 4_000  # bytes of a document of a source's paragraphs, of entries
REPEATED = 40  # characters from which on a line or entry that the domain has already is left out

LICENCE = re.compile(r"copyright|licen[cs]e|SPDX", re.I)
COMMENT = re.compile(r"\s*(/\*.*?\*/|(//[^\n]*\n)+|(#(?=[ !\n])[^\n]*\n)+)", re.S)
LICENCE_TEXT = re.compile(r"WARRANT(Y|IES) OF|Permission is hereby granted|Redistribution and use")
DATED = re.compile(
    r"\d{4}-\d\d?-\d\d?|(Mon|Tue|Wed|Thu|Fri|Sat|Sun) "
)  # how an entry of a ChangeLog begins

MENU = re.compile(
    r"nav|sidebar|footer|headerlink|editsection|breadcrumb|\btoc|\brelated\b", re.I
)  # classes and ids
UNREAD = {"head", "script", "style", "nav", "header", "footer", "form", "select"}
VOID = {"area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "wbr"}
BLOCKS = {
    "p",
    "div",
    "li",
    "tr",
    "dt",
    "dd",
    "h1",
    "h2",
    "h3",
    "h4",
    "h5",
    "h6",
    "pre",
    "br",
    "hr",
    "table",
} | {*("ul", "ol", "dl", "section", "article", "blockquote")}


class PageText(HTMLParser):
    """The lines of a page's text; what is preformatted keeps its spaces."""

    def __init__(self) -> None:
        super().__init__()
        self.text: list[str] = []
        self.menu, self.depth, self.preformatted = "", 0, False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = " ".join(value or "" for name, value in attrs if name in ("class", "id"))
        if self.menu:
            self.depth += tag == self.menu
        elif (
            tag not in VOID
            and tag not in ("html", "body")
            and (tag in UNREAD or MENU.search(named))
        ):
            self.menu, self.depth = tag, 1
        elif tag in BLOCKS:
            self.text.append("\n")
            self.preformatted |= tag == "pre"

    def handle_endtag(self, tag: str) -> None:
        if self.menu:
            self.depth -= tag == self.menu
            self.menu = self.menu if self.depth else ""
        elif tag in BLOCKS:
            self.text.append("\n")
            self.preformatted &= tag != "pre"
        elif tag in ("td", "th"):
            self.text.append(" ")

    def handle_data(self, data: str) -> None:
        if not self.menu:
            self.text.append(data if self.preformatted else re.sub(r"\s+", " ", data))


def read_page(text: str) -> list[str]:
    page = PageText()
    page.feed(text)
    page.close()
    return [line.rstrip() for line in "".join(page.text).split("\n") if line.strip()]


def read_source(text: str) -> list[str]:
    """The paragraphs of a source without the comments on its licence at its head."""
    text = re.sub(r"\A(# .*coding[:=].*\n)\s*", "", text)
    while (comment := COMMENT.match(text)) and LICENCE.search(comment[0]):
        text = text[comment.end() :]
    return text.strip("\n").split("\n\n")


def read_entries(text: str) -> list[str]:
    """The entries of a dictionary or a changelog, each from a line that is not indented to the next
    such line.

    What a dictionary says of itself, in entries that begin with 00-database, is left out.
    """
    return [
        entry.rstrip()
        for entry in re.split(r"\n+(?=\S)", text)
        if not entry.startswith("00-database")
    ]


def read_changes(text: str) -> list[str]:
    return [entry for entry in read_entries(text) if DATED.match(entry)]


@dataclass(frozen=True)
class LargeDomain:
    packages: list[str]  # NAME=VERSION of Debian, NAME==VERSION of the Python package index
    files: str  # pattern of the names of the files that are read
    read: Callable[[str], list[str]]  # a file's parts, of which documents are made
    between: str = "\n"  # two parts of a document
    longest: int = LONGEST
    repeats: bool = False  # whether a part that the domain has already is kept


DOMAINS = {
    "manual": LargeDomain(
        [
            "python3.11-doc=3.11.2-6+deb12u9",
            "postgresql-doc-15=15.20-0+deb12u1",
            "python-django-doc=3:3.2.25-0+deb12u7",
            "cppreference-doc-en-html=20170409-2",
            "libboost1.74-doc=1.74.0+ds1-21",
            "qtbase5-doc-html=5.15.8+dfsg-11+deb12u3",
            "erlang-doc=1:25.2.3+dfsg-1+deb12u4",
            "openjdk-17-doc=17.0.21.1+2-1~deb12u1",
        ],
        r"\.html?$",
        read_page,
    ),
    "c": LargeDomain(
        ["linux-source-6.1=6.1.192-2"],
        r"^[^/]*/(fs|kernel|lib|mm|net|sound|drivers/(media|scsi|usb))/.*\.c$",
        read_source,
        between="\n\n",
        longest=SOURCE,
        repeats=True,
    ),
    "changes": LargeDomain(
        [
            "glibc-source=2.36-9+deb12u14",
            "binutils-source=2.40-2",
            "gcc-12-source=12.2.0-14+deb12u1",
        ],
        r"/ChangeLog[^/]*$",
        read_changes,
        between="\n\n",
        longest=ENTRIES,
    ),
    "python": LargeDomain(
        [
            "django==5.2.19",
            "networkx==3.6.1",
            "nltk==3.10.4",
            "twisted==26.10.0",
            "xarray==2026.9.0",
            "dask==2026.8.0",
            "sphinx==9.0.4",
            "docutils==0.23",
            "ansible-core==2.19.14",
            "keras==3.15.1",
            "sympy==1.14.0",
        ],
        r"\.py$",
        read_source,
        between="\n\n",
        longest=SOURCE,
        repeats=True,
    ),
    "dictionary": LargeDomain(
        ["dict-gcide=0.48.5+nmu2", "dict-foldoc=20230119-1", "dict-wn=1:3.0-37"],
        r"\.dict\.dz$",
        read_entries,
        longest=ENTRIES,
    ),
}


def download(package: str, folder: Path) -> Path:
    """The archive of (package), in a folder of its own."""
    place = folder / "packages" / package
    if not place.exists():
        place.mkdir(parents=True)
        pip = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:"]
        subprocess.run(
            [*(pip if "==" in package else ["apt-get", "download"]), package], cwd=place, check=True
        )
    return next(place.iterdir())


def read_files(archive: Path, pattern: str) -> Iterator[tuple[str, bytes]]:
    """Name and bytes of each file that (archive), or an archive of sources inside it, holds."""
    wanted = re.compile(pattern)
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            yield from (
                (name, wheel.read(name)) for name in wheel.namelist() if wanted.search(name)
            )
        return
    with tempfile.TemporaryDirectory() as root:
        subprocess.run(["dpkg-deb", "-x", archive, root], check=True)
        for path in Path(root).rglob("*"):
            name = path.relative_to(root).as_posix()
            if name.endswith(".tar.xz"):
                with tarfile.open(path) as sources:
                    for member in sources:
                        if (
                            file := wanted.search(member.name) and sources.extractfile(member)
                        ) is not None:
                            yield member.name, file.read()
            elif wanted.search(name) and path.is_file() and not path.is_symlink():
                yield (
                    name,
                    gzip.decompress(path.read_bytes())
                    if name.endswith(".dz")
                    else path.read_bytes(),
                )


def decode(content: bytes) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError:
        return content.decode("latin-1")


def put_together(parts: list[str], between: str, longest: int) -> Iterator[str]:
    """Consecutive parts as documents of at most (longest) bytes; a longer part is a document."""
    document: list[str] = []
    size = 0
    for part in parts:
        added = len((part + between).encode())
        if document and size + added > longest:
            yield between.join(document)
            document, size = [], 0
        document.append(part)
        size += added
    yield between.join(document)


def digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


def make_documents(domain: LargeDomain, folder: Path) -> Iterator[str]:
    seen: set[bytes] = set()
    for package in domain.packages:
        files = read_files(download(package, folder), domain.files)
        for _, content in sorted(files, key=lambda file: digest(file[0])):
            parts = domain.read(decode(content).replace("\r\n", "\n"))
            if not domain.repeats:
                parts = [part for part in parts if len(part) < REPEATED or digest(part) not in seen]
                seen.update(map(digest, parts))
            for text in put_together(parts, domain.between, domain.longest):
                numbers = sum(map(text.count, "0123456789")) > len(text) / 5
                if (
                    SHORTEST <= len(text.encode()) <= LONGEST
                    and not numbers
                    and digest(text) not in seen
                ):
                    seen.add(digest(text))
                    yield text


def write(texts: list[str], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with gzip.GzipFile(path, "wb", mtime=0) as file:
        file.writelines(
            json.dumps({"text": text}, ensure_ascii=False).encode() + b"\n" for text in texts
        )
    size = sum(len(text.encode()) for text in texts)
    print(
        path,
        f"{size:,} bytes, {len(texts):,} documents",
        hashlib.sha256(path.read_bytes()).hexdigest(),
        flush=True,
    )


def main() -> None:
    folder = Path(sys.argv[1]).resolve()
    for name, domain in DOMAINS.items():
        texts, size = [], 0
        for text in make_documents(domain, folder):
            texts.append(text)
            size += len(text.encode())
            if size >= TRAIN_BYTES + VALID_BYTES:
                break
        texts = sorted((text for text in texts if not LICENCE_TEXT.search(text)), key=digest)
        count = size = 0
        while size < VALID_BYTES:
            size += len(texts[count].encode())
            count += 1
        write(texts[count:], folder / "stream" / name / "train.jsonl.gz")
        write(texts[:count], folder / "stream" / name / "valid.jsonl.gz")


if __name__ == "__main__":
    main()
