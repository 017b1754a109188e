"""Documents, and the files that they stand in: JSON Lines or plain text, as they are or packed with gzip or zstd."""

from __future__ import annotations

import glob
import gzip
import hashlib
import heapq
import io
import json
import os
import re
import unicodedata
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import IO, Any, Generic, Literal, NoReturn, TypeVar, cast

from benchmark.errors import UserError

LONGEST_DOCUMENT = 100_000  # characters; longer ones are cut, so that one file can hold a whole corpus

TORN = re.compile(r"[\ud800-\udfff]")  # half of a surrogate pair, which no tokenizer reads
FEW_DOCUMENTS = 20  # for validation: perplexity is theirs more than the domain's
CHUNK = 2**18  # characters read at once
JSON_LINES, PLAIN = (tuple(kind + packed for packed in ("", ".gz", ".zst")) for kind in (".jsonl", ".txt"))
SUFFIXES = (*JSON_LINES, *PLAIN)
NO_FILE = "hidden or no regular file"


class DataError(UserError):
    """Text that cannot be used as it is. The message says which, where and the cure."""


class NotHere(DataError):
    """Text that this machine does not have."""


@contextmanager
def naming_source(what: str) -> Iterator[None]:
    """Turn whatever libraries raise over text from a network, in the middle of it too, into a DataError that names it.

    They do not say what that may be.
    """
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        raise DataError(
            f"{what}: {type(error).__name__}: {error}: correct the name, or try again where there is a network"
        ) from error


@dataclass(frozen=True)
class Document:
    """`source` says where the text stands: "pandas.core.frame:DataFrame.join", "FILE:LINE" or "DATASET:ROW".

    `kind` is "module", "class" or "function" for a docstring, else empty. `hashed` is its fingerprint, and `decides`
    that of the text that it was cut from, by which all of that is in one split; 0 is not known.
    """

    text: str
    source: str
    kind: str = ""
    split: Literal["train", "valid", ""] = ""
    hashed: int = 0
    decides: int = 0


def fingerprint(text: str) -> int:
    """64 bits of the sha256 of a text without case, Unicode form and kinds of blanks: copies have the same."""
    same = " ".join(unicodedata.normalize("NFKC", text).casefold().split())
    return int.from_bytes(hashlib.sha256(same.encode(errors="surrogatepass")).digest()[:8], "big")


def parse_record(record: Any, text_field: str, place: str) -> Iterator[Document]:
    """The text of a record, in pieces where it is long."""
    text = text_of(record, text_field, place)
    pieces = cut(text)
    decides = fingerprint(text) if len(pieces) > 1 else 0
    return (Document(piece, place, decides=decides) for piece in pieces)


def cut(text: str) -> list[str]:
    """`text` in pieces of at most LONGEST_DOCUMENT characters, each up to the end of a line, or else of a word."""
    pieces = []
    start = 0
    while len(text) - start > LONGEST_DOCUMENT:
        stop = start + LONGEST_DOCUMENT
        end = text.rfind("\n", start, stop) + 1 or text.rfind(" ", start, stop) + 1 or stop
        pieces.append(text[start:end])
        start = end
    return [*pieces, text[start:]]


def text_of(record: Any, text_field: str, place: str) -> str:
    """The text of a record; null is no text, so it will count as blank."""
    if not isinstance(record, Mapping):
        raise DataError(
            f"{place}: a {type(record).__name__}, not an object with a field {text_field!r}: write one on each line"
        )
    if text_field not in record:
        fields = ", ".join(map(str, record)) or "none"
        raise DataError(f"{place}: no field {text_field!r}; there are {fields}: name the right one in text_field")
    text = record[text_field]
    if not isinstance(text, str | None):
        raise DataError(
            f"{place}: field {text_field!r} is a {type(text).__name__}, not text: name another in text_field"
        )
    return text or ""


Item = TypeVar("Item")


class Sample(Generic[Item]):
    """Of all items that are added those with the smallest hashes, until `size` is full: repeatable, in one pass."""

    def __init__(self, size: int) -> None:
        self._room = size
        self._kept: list[tuple[int, int, int, Item]] = []  # a heap, the largest hash on top
        self._numbers = count()
        self.dropped = 0

    def add(self, item: Item, size: int, hashed: int) -> None:
        heapq.heappush(self._kept, (-hashed, next(self._numbers), size, item))
        self._room -= size
        while self._room + self._kept[0][2] <= 0:
            self._room += heapq.heappop(self._kept)[2]
            self.dropped += 1

    def items(self) -> list[Item]:
        """Return what was kept, in the order in which it came."""
        return [item for _, _, _, item in sorted(self._kept, key=lambda kept: kept[1])]


def find_files(spec: str, skipped: Counter[str]) -> list[Path]:
    """The files that a file name, a folder or a glob stands for, sorted. Raises DataError where there are none.

    Of a folder, what is hidden, no regular file or of another format is skipped and counted.
    """
    path = Path(os.path.expanduser(spec))
    if path.is_dir():
        files = sorted(_walk_folder(path, skipped))
        problem = f"the folder holds no file that ends in {', '.join(SUFFIXES)}: put some there, or correct the path"
    elif path.is_file():
        files = [path]
    else:
        matches = sorted(glob.glob(str(path), recursive=True))
        files = [Path(match) for match in matches if os.path.isfile(match)]
        if "**" not in spec and len(files) < len(matches):  # with it, folders are on the way to their files
            skipped[NO_FILE] += len(matches) - len(files)
        what = "no file matches this pattern" if glob.has_magic(spec) else "no such file or folder"
        problem = f"{what} (from {Path.cwd()}): correct the path"
    if not files:
        raise NotHere(f"{spec}: {problem}")
    for file in files:
        if not file.name.endswith(SUFFIXES):
            raise DataError(f"{file}: unknown format; the name of a file ends in one of {', '.join(SUFFIXES)}")
    return files


def refuse(error: OSError) -> NoReturn:
    """For `os.walk`, which else leaves out the text of a folder that cannot be read."""
    raise error


def _walk_folder(folder: Path, skipped: Counter[str]) -> Iterator[Path]:
    for place, folders, names in os.walk(folder, onerror=refuse):
        entered = [name for name in folders if not name.startswith(".") and not os.path.islink(Path(place, name))]
        if len(entered) < len(folders):
            skipped[NO_FILE] += len(folders) - len(entered)
        folders[:] = entered
        for name in names:
            file = Path(place, name)
            if name.startswith(".") or not file.is_file():
                skipped[NO_FILE] += 1
            elif not name.endswith(SUFFIXES):
                skipped["file of another format"] += 1
            else:
                yield file


def read_file(path: Path, text_field: str, skipped: Counter[str]) -> Iterator[Document]:
    """The documents of a file. Raises DataError, which names the line, for what is no text."""
    empty = True
    is_plain = path.name.endswith(PLAIN)
    for document in _plain_text(path) if is_plain else _json_lines(path, text_field):
        empty = False
        yield document
    if empty:
        skipped["empty file"] += 1


def _json_lines(path: Path, text_field: str) -> Iterator[Document]:
    for number, line in enumerate(read_lines(path), 1):
        yield from parse_text_line(line, text_field, f"{path}:{number}")


def parse_text_line(line: bytes, text_field: str, place: str) -> Iterator[Document]:
    """The text of a line of JSON, in pieces where it is long. Raises DataError for what is none."""
    record = parse_line(line, place, f"{{{json.dumps(text_field)}: ...}}") if line.strip() else {text_field: ""}
    yield from parse_record(record, text_field, place)


def parse_line(line: bytes, place: str, example: str) -> Any:
    """What a line of JSON says. Raises DataError for what is none, with an `example` of what it should be."""
    try:
        return json.loads(line.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise DataError(f"{place}: {_not_utf8(error)}") from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"{place}: not JSON ({error}): each line must be one object such as {example}") from None


def _plain_text(path: Path) -> Iterator[Document]:
    """A file is one document, or several where it is long: it is never in memory as a whole."""
    rest = ""
    with unpacked(path) as file:
        text = io.TextIOWrapper(file, "utf-8-sig", newline="")
        try:
            while part := text.read(CHUNK):
                *whole, rest = cut(rest + part)
                yield from (Document(piece, str(path)) for piece in whole)
        except UnicodeDecodeError as error:
            raise DataError(f"{path}: {_not_utf8(error)}") from None
    if rest:
        yield Document(rest, str(path))


def read_lines(path: Path) -> Iterator[bytes]:
    """The lines of a file, decompressed, without their ends. Raises DataError where it is damaged."""
    with unpacked(path) as file:
        yield from (line.removesuffix(b"\n") for line in file)


@contextmanager
def unpacked(path: Path) -> Iterator[IO[bytes]]:
    """A file to read, decompressed. Raises DataError if it is damaged, or its gzip is cut short."""
    try:
        with path.open("rb") as file:
            if path.suffix == ".gz" and path.stat().st_size == 0:
                raise EOFError("the file is empty")
            elif path.suffix == ".gz":
                with gzip.GzipFile(fileobj=file) as content:
                    yield cast(IO[bytes], content)
            elif path.suffix == ".zst":
                with _zstd(file) as content:
                    yield content
            else:
                yield file
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{path}: truncated or damaged ({error}): make or fetch it again") from None


@contextmanager
def _zstd(file: IO[bytes]) -> Iterator[IO[bytes]]:
    try:
        import zstandard
    except ImportError:
        raise DataError(f"{file.name}: to read .zst files, `pip install -e .[zstd]`") from None
    stream: Any = zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True)
    try:
        yield io.BufferedReader(stream)
    except zstandard.ZstdError as error:
        raise zlib.error(str(error)) from None


def _not_utf8(error: UnicodeDecodeError) -> str:
    return f"byte 0x{error.object[error.start]:02x} is not UTF-8 ({error.reason}): convert the file, e.g. with iconv"
