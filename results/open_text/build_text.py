"""Build five domains and a dated stream from source archives of the Python package index.

`PYTHONPATH=. python results/open_text/build_text.py data/open_text`

pins/sources.toml names the archives by file and sha256, and says what each domain takes from them.
pins/built.json holds the checksums of what is built. The text comes to the same bytes on every
machine. Other bytes are an error.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import msgspec
import numpy as np
from archives import Archive, download, find_index, read_licence, read_members
from numpy.typing import NDArray
from read_text import READERS
from tokenizers import Tokenizer, models, pre_tokenizers

from benchmark.data.documents import cut
from benchmark.data.leaks import NEARLY, WordNgrams, find_near_copies, list_byte_symbols
from benchmark.errors import UserError, run_command
from benchmark.files import hash_file, replace_file

HERE = Path(__file__).resolve().parent

# of a document, in bytes of UTF-8
SHORTEST = 200
LONGEST = 100_000
JOINED = 10_000  # of parts
MEASURED = 4_000  # for validation
REPEATED = 40  # characters from which on a part that the domain has already is left out
LONGEST_LINE = 2_000  # characters; longer ones are data, or code that a program wrote
DIGITS = 0.2  # share of a document, above which it is a table of numbers
LICENCE_TEXT = re.compile(r"WARRANT(Y|IES) OF|Permission is hereby granted|Redistribution and use")
TORN = re.compile(r"[\ud800-\udfff\0]")
HELD_OUT = 0.04  # of the files of a domain that names no packages for validation
END = 256  # the id after a document; the ids of its text are its bytes
SLOTS = 2**28  # of n-grams that came before


class DomainSource(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a domain takes from archives.

    Files whose names match `files` and not `skip` are read, up to `each` bytes of a package. The
    packages of `valid` are for validation. Where there are none, some files of each package are.
    """

    read: str  # a name in READERS
    files: str
    each: int
    train: list[str]
    valid: list[str] = []
    skip: str = r"\A\Z"


class Dated(DomainSource, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A stream of the releases of change logs: a domain per period, from year to year."""

    periods: list[tuple[int, int]]


class Sizes(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Bytes of a domain's files."""

    train: dict[str, int]  # by the end of the file's name; each begins with the smaller one
    valid: int
    dated_train: int
    dated_valid: int


class Sources(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    sizes: Sizes
    domains: dict[str, DomainSource]
    dated: Dated
    archives: list[Archive]


class Download(msgspec.Struct, frozen=True, kw_only=True):
    archive: Archive
    path: Path


class Document(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    text: str
    package: str
    place: str  # a file; of a release its heading, too
    date: str = ""
    period: str = ""

    @property
    def size(self) -> int:
        return len(self.text.encode())

    @property
    def order(self) -> bytes:
        """What the order of documents hangs on: those of one place stay together."""
        return digest(f"{self.package}/{self.place}")


class Halves(msgspec.Struct, frozen=True, kw_only=True):
    """The documents of a domain."""

    train: list[Document]
    valid: list[Document]


def digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


def read_sources(path: Path) -> Sources:
    """Raises UserError."""
    try:
        return msgspec.toml.decode(path.read_bytes(), type=Sources)
    except msgspec.MsgspecError as error:
        raise UserError(f"{path}: {error}: correct it there") from None


# Documents of files


def join_parts(parts: Sequence[str], longest: int, between: str) -> Iterator[str]:
    """Consecutive parts as documents of at most `longest` bytes; a longer part is cut."""
    document: list[str] = []
    size = 0
    for part in parts:
        for piece in cut(part, longest):
            added = len((piece + between).encode())
            if document and size + added > longest:
                yield between.join(document)
                document = []
                size = 0
            document.append(piece)
            size += added
    if document:
        yield between.join(document)


def is_text(text: str) -> bool:
    """Whether a document is worth reading: neither tiny nor huge, nor data, nor a licence."""
    size = len(text.encode(errors="surrogatepass"))
    return (
        SHORTEST <= size <= LONGEST
        and not TORN.search(text)
        and sum(map(text.count, "0123456789")) <= DIGITS * len(text)
        and max(map(len, text.split("\n"))) <= LONGEST_LINE
        and not LICENCE_TEXT.search(text)
    )


def pick_piece(document: Document) -> Document:
    """One piece of a document for validation, so that many documents fit.

    The document's place decides which, as all beginnings are alike.
    """
    pieces = list(join_parts(document.text.split("\n\n"), MEASURED, "\n\n"))
    pieces = [piece for piece in pieces if len(piece.encode()) >= SHORTEST] or pieces
    number = int.from_bytes(document.order[8:16], "big") % len(pieces)
    return msgspec.structs.replace(document, text=pieces[number])


def read_package(source: DomainSource, download: Download, seen: set[bytes]) -> Iterator[Document]:
    """The documents of a package's files, in the order of the hashes of the files' names.

    Parts that `seen` has are left out. Raises UserError if the table names no licence, or another
    than the package's metadata.
    """
    archive = download.archive
    files = {}
    licence = ""
    for name, content in read_members(download.path):
        if name == "PKG-INFO":
            licence = read_licence(content)
        if re.search(source.files, name) and not re.search(source.skip, name):
            files[name] = content
    if not archive.licence or licence not in ("", archive.licence):
        raise UserError(
            f"{download.path}: its metadata names the licence {licence!r}, the table "
            f"{archive.licence!r}: correct the table, from the package's files if its metadata "
            "names none"
        )
    reader = READERS[source.read]
    for name in sorted(files, key=lambda name: digest(f"{archive.package}/{name}")):
        try:
            text = files[name].decode().replace("\r\n", "\n")
        except UnicodeDecodeError:
            continue
        parts_by_place: dict[tuple[str, str], list[str]] = {}
        for part in reader.read(text):
            key = digest(part.text)
            is_old = bool(reader.between) and len(part.text) >= REPEATED and key in seen
            if is_old or not part.text.strip():
                continue
            seen.add(key)
            place = f"{name} {part.date}".strip()
            parts_by_place.setdefault((place, part.date), []).append(part.text)
        for (place, date), parts in parts_by_place.items():
            texts = join_parts(parts, JOINED, reader.between) if reader.between else parts
            for text in filter(is_text, texts):
                yield Document(text=text, package=archive.package, place=place, date=date)


# Copies


def make_byte_tokenizer() -> Tokenizer:
    """A tokenizer whose ids are bytes."""
    vocabulary = {symbol: number for number, symbol in enumerate(list_byte_symbols())}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return tokenizer


def to_ids(documents: Collection[Document]) -> NDArray[np.int16]:
    """The bytes of documents, END after each."""
    arrays = []
    for document in documents:
        text = np.frombuffer(document.text.encode(), np.uint8)
        arrays.append(np.append(text.astype(np.int16), np.int16(END)))
    return np.concatenate([*arrays, np.empty(0, np.int16)])


class Copies:
    """Texts that came before, by their n-grams."""

    def __init__(self) -> None:
        self._words = WordNgrams(make_byte_tokenizer(), END)
        self._is_seen = np.zeros(SLOTS, bool)

    def add(self, document: Document) -> bool:
        """Whether a document is new, no copy or near copy; it is old from then on.

        An n-gram that came before may be another with the same slot, by chance in a few of 100. A
        text of fewer words is one n-gram.
        """
        ngrams, _ = self._words.hash_ngrams(to_ids([document]))
        if not len(ngrams):
            ngrams = np.frombuffer(digest(document.text)[:8], "<u8")
        slots = ngrams % np.uint64(SLOTS)
        if self._is_seen[slots].mean() >= NEARLY:
            return False
        self._is_seen[slots] = True
        return True


def drop_leaks(domains: Mapping[str, Halves]) -> dict[str, Halves]:
    """The domains without validation documents that nearly stand in training text of any."""
    tokenizer = make_byte_tokenizer()
    suspects = [to_ids(halves.valid) for halves in domains.values()]
    leaks: dict[str, set[int]] = {name: set() for name in domains}
    for halves in domains.values():
        found = find_near_copies(tokenizer, END, suspects, to_ids(halves.train))
        for name, numbers in zip(domains, found, strict=True):
            leaks[name].update(numbers)
    clean = {}
    for name, halves in domains.items():
        valid = [
            document for number, document in enumerate(halves.valid) if number not in leaks[name]
        ]
        clean[name] = Halves(train=halves.train, valid=valid)
    return clean


# Domains


def fill(documents: Sequence[Document], most: int) -> list[Document]:
    """The first documents, up to `most` bytes."""
    taken = []
    size = 0
    for document in documents:
        size += document.size
        if size > most:
            break
        taken.append(document)
    return taken


def is_held_out(document: Document, source: DomainSource) -> bool:
    if source.valid:
        return document.package in source.valid
    return int.from_bytes(document.order[:8], "big") < HELD_OUT * 2**64


def build_domain(source: DomainSource, sizes: Sizes, downloads: Mapping[str, Download]) -> Halves:
    """A domain's documents, those for validation first, so that their text is not trained on.

    The largest training text is the whole of it.
    """
    copies = Copies()
    seen: set[bytes] = set()
    halves = Halves(train=[], valid=[])
    for package in (*source.valid, *source.train):
        documents = read_package(source, downloads[package], seen)
        ordered = sorted(documents, key=lambda document: not is_held_out(document, source))
        size = 0
        for document in ordered:
            is_valid = is_held_out(document, source)
            candidate = pick_piece(document) if is_valid else document
            if size < source.each and copies.add(candidate):
                size += 0 if is_valid else document.size
                (halves.valid if is_valid else halves.train).append(candidate)
    for half in (halves.train, halves.valid):
        half.sort(key=lambda document: document.order)
    train = fill(halves.train, max(sizes.train.values()))
    return Halves(train=train, valid=fill(halves.valid, sizes.valid))


def build_dated(
    source: Dated, sizes: Sizes, downloads: Mapping[str, Download]
) -> dict[str, Halves]:
    """The domain of each period, with no text that came in an earlier one."""
    seen: set[bytes] = set()
    documents: list[Document] = []
    for package in source.train:
        documents += read_package(source, downloads[package], seen)
    documents.sort(key=lambda document: (document.date, document.order))
    copies = Copies()
    new = [document for document in documents if copies.add(document)]
    domains = {}
    for first, last in source.periods:
        name = f"{first}_{last}"
        inside = [
            msgspec.structs.replace(document, period=name)
            for document in new
            if first <= int(document.date[:4]) <= last
        ]
        inside = _limit_packages(inside, source.each)
        valid = fill(inside, sizes.dated_valid)
        places = {document.order for document in valid}
        rest = [document for document in inside if document.order not in places]
        domains[name] = Halves(train=fill(rest, sizes.dated_train), valid=valid)
    return domains


def _limit_packages(documents: Collection[Document], each: int) -> list[Document]:
    """Documents in the order of their places, of each package up to `each` bytes."""
    sizes: dict[str, int] = {}
    limited = []
    for document in sorted(documents, key=lambda document: document.order):
        size = sizes.get(document.package, 0)
        if size < each:
            sizes[document.package] = size + document.size
            limited.append(document)
    return limited


# Files


def write_documents(documents: Collection[Document], path: Path) -> dict[str, int | str]:
    """Write lines of JSON; returns bytes of text, documents and sha256.

    They are not compressed, as libraries of zlib come to different bytes.
    """
    with replace_file(path) as file:
        for document in documents:
            line = json.dumps(msgspec.to_builtins(document), ensure_ascii=False)
            file.write(line.encode() + b"\n")
    return {
        "bytes": sum(document.size for document in documents),
        "documents": len(documents),
        "packages": len({document.package for document in documents}),
        "sha256": hash_file(path),
    }


def build(sources: Sources, folder: Path, index: str) -> dict[str, dict[str, int | str]]:
    """Build all files in `folder`; returns what each holds, by its path there.

    Raises UserError.
    """
    downloads = {}
    for archive in sources.archives:
        print(f"{archive.package} {archive.version}: {archive.licence}", flush=True)
        path = download(archive, folder / "archives", index)
        downloads[archive.package] = Download(archive=archive, path=path)
    domains = {}
    for name, source in sources.domains.items():
        print(name, flush=True)
        domains[name] = build_domain(source, sources.sizes, downloads)
    print("dated", flush=True)
    dated = build_dated(sources.dated, sources.sizes, downloads)
    built = {}
    for name, halves in drop_leaks(domains).items():
        for end, size in sources.sizes.train.items():
            file = f"{name}/train_{end}.jsonl"
            built[file] = write_documents(fill(halves.train, size), folder / file)
        file = f"{name}/valid.jsonl"
        built[file] = write_documents(halves.valid, folder / file)
    for name, halves in drop_leaks(dated).items():
        for half in ("train", "valid"):
            file = f"dated/{name}/{half}.jsonl"
            built[file] = write_documents(getattr(halves, half), folder / file)
    return built


def check(built: Mapping[str, Mapping[str, int | str]], record: Path) -> None:
    """Raises UserError if a file is not what was recorded."""
    recorded = json.loads(record.read_text())
    for name, content in built.items():
        if content != recorded.get(name):
            raise UserError(
                f"{name}: {content} was built, {record} says {recorded.get(name)}: take the table "
                "and the readers as they were, or say --record, which writes what is built now"
            )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path, help="where archives and text go")
    parser.add_argument("--index", help="a simple index, instead of the one of pip's settings")
    parser.add_argument("--sources", type=Path, default=HERE / "pins" / "sources.toml")
    parser.add_argument(
        "--record", action="store_true", help="write built.json beside the table, check nothing"
    )
    options = parser.parse_args(arguments)
    return run_command(partial(run, options))


def run(options: argparse.Namespace) -> int:
    sources = read_sources(options.sources)
    built = build(sources, options.folder, options.index or find_index())
    record = options.sources.with_name("built.json")
    if options.record:
        with replace_file(record) as file:
            file.write(json.dumps(built, indent=1).encode() + b"\n")
    else:
        check(built, record)
    for name, content in built.items():
        print(f"{name}: {content['bytes']:,} bytes, {content['documents']:,} documents")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
