"""Documents, and the files that they are read from.

Files are JSON Lines, plain text or tables, packed or not.
"""

from __future__ import annotations

import csv
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
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import IO, Any, Generic, Literal, NoReturn, TypeVar

from benchmark.errors import UserError
from benchmark.settings.texts import Domain, HubDataset, OnError, TextField

# characters. Longer documents are cut, so that one file can hold a whole corpus
LONGEST_DOCUMENT = 100_000
TORN = re.compile(r"[\ud800-\udfff]")  # half of a surrogate pair, which no tokenizer reads
# characters: the longest piece if few documents are cut, and where a page may end at the earliest
PIECE = 2000
LONGEST_PAGE = 10 * PIECE  # if no blank line comes earlier
BLANK_LINE = re.compile(r"\n[^\S\n]*\n\s*")
FEW_DOCUMENTS = 20  # with fewer for validation, perplexity depends on which they are
CHUNK = 2**18  # characters read at once
# kinds of files, by file name extension
DOCUMENTS = (".jsonl", ".txt")
TABLES = (".json", ".csv", ".parquet")
PACKED = (".gz", ".zst")
KINDS = f"{', '.join((*DOCUMENTS, *TABLES))}, perhaps with {' or '.join(PACKED)}"
# why tables in a folder are skipped
SKIPPED_TABLE = f"table ({', '.join(TABLES)}) beside documents"
NAMED = 10  # at most so many broken texts are named in `skipped`
BROKEN = "broken:"
NULS = 0.25  # a text with a larger share is an error: ASCII in UTF-16 has 0.5
CONVERT = "convert the file, e.g. with iconv"
ROWS = 256  # of a table that are in memory at once
csv.field_size_limit(2**31 - 1)  # by default a field of over 131,072 characters is an error


class DataError(UserError):
    """Text that cannot be used as it is. The message names the text, the place and the cure."""


class NotHere(DataError):
    """Text that this machine does not have."""


class BrokenText(DataError):
    """A row or a file that cannot be read as a document.

    `place` says where it stands. A domain with `on_error = "skip"` leaves it out.
    """

    def __init__(self, place: str, problem: str) -> None:
        super().__init__(f"{place}: {problem}")
        self.place = place


@contextmanager
def name_source_in_errors(source: str) -> Iterator[None]:
    """Turn any error of a library that reads text from a network into a DataError with `source`.

    Such libraries also raise in the middle of a text, and do not document which errors.
    """
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        raise DataError(
            f"{source}: {type(error).__name__}: {error}: correct the name, or try again where "
            "there is a network"
        ) from error


Half = Literal["train", "valid", ""]  # of a domain's text. "" is not known yet


@dataclass(frozen=True)
class Document:
    """A text, and where it stands.

    `source` is what it was cut from: "pandas.core.frame:DataFrame.join", "FILE:LINE", "DATASET:ROW"
    or what the record says in `source_field`. `split_fingerprint` decides the split. Documents that
    were cut from one record, or whose records have the same value in `source_field`, have the same.
    0 is not known yet.
    """

    text: str
    source: str
    split: Half = ""
    split_fingerprint: int = 0


def make_fingerprint(text: str) -> int:
    """64 bits of the sha256 of a text, ignoring case, Unicode form and kinds of white space.

    Copies have the same fingerprint.
    """
    words = unicodedata.normalize("NFKC", text).casefold().split()
    plain = " ".join(words).encode(errors="surrogatepass")
    return int.from_bytes(hashlib.sha256(plain).digest()[:8], "big")


def cut(text: str, longest: int = 0) -> list[str]:
    """`text` in pieces of at most `longest` or LONGEST_DOCUMENT characters.

    Each ends with a line if possible, else with a word.
    """
    longest = longest or LONGEST_DOCUMENT
    pieces = []
    start = 0
    while len(text) - start > longest:
        stop = start + longest
        end = text.rfind("\n", start, stop) + 1
        if end == 0:
            end = text.rfind(" ", start, stop) + 1
        if end == 0:
            end = stop
        pieces.append(text[start:end])
        start = end
    return [*pieces, text[start:]]


def cut_in_pages(text: str) -> list[str]:
    """`text` in pieces, each to the first blank line after PIECE characters.

    If that makes a piece longer than LONGEST_PAGE, it is cut at a line or a word.
    """
    pages = []
    start = 0
    while blank := BLANK_LINE.search(text, start + PIECE):
        pages += cut(text[start : blank.end()], LONGEST_PAGE)
        start = blank.end()
    return [*pages, *cut(text[start:], LONGEST_PAGE)]


def find_text(record: Any, text_field: TextField, place: str) -> str:
    """The text of a record, or of several of its fields with a blank line between them.

    Null counts as an empty text. Raises BrokenText.
    """
    texts = []
    fields = [text_field] if isinstance(text_field, str) else text_field
    for field in fields:
        value = _find_value(record, field, place, "text_field")
        if not isinstance(value, str | None):
            raise BrokenText(
                place,
                f"field {field!r} is a {type(value).__name__}, not text: "
                "name another in text_field",
            )
        texts.append(value)
    return "\n\n".join(filter(None, texts))


def find_source(record: Mapping[str, Any], source_field: str, place: str) -> str:
    """What a record was cut from, or its own `place` if the field is null or empty."""
    value = _find_value(record, source_field, place, "source_field")
    if value is None or value == "":
        return place
    return f"{source_field} {value}"


def _find_value(record: Any, field: str, place: str, setting: str) -> Any:
    """The value of a record's field, or of a nested one such as "meta.body".

    It is null if the object that would have the nested field is null. Raises BrokenText.
    """
    if not isinstance(record, Mapping):
        raise BrokenText(
            place,
            f"a {type(record).__name__}, not an object with a field {field!r}: "
            "write one on each line",
        )
    value: Any = record
    path = [field] if field in record else field.split(".")
    for part in path:
        if value is None:
            return None
        if not isinstance(value, Mapping) or part not in value:
            names = ", ".join(map(str, record)) or "none"
            raise BrokenText(
                place,
                f"no field {field!r}; there are {names}: name the right one in {setting}",
            )
        value = value[part]
    return value


Item = TypeVar("Item")


class Sample(Generic[Item]):
    """A repeatable sample of the items that are added, in one pass.

    It keeps the items with the smallest hashes, as many as are needed to reach `size` in all.
    """

    def __init__(self, size: int) -> None:
        self._room = size
        # hash, number, size and item, in a heap with the largest hash on top
        self._heap: list[tuple[int, int, int, Item]] = []
        self._numbers = count()
        self.dropped = 0

    def add(self, item: Item, size: int, hashed: int) -> None:
        heapq.heappush(self._heap, (-hashed, next(self._numbers), size, item))
        self._room -= size
        while self._room + self._heap[0][2] <= 0:
            self._room += heapq.heappop(self._heap)[2]
            self.dropped += 1

    def list_items(self) -> list[Item]:
        """Return what was kept, in the order in which it came."""
        entries = sorted(self._heap, key=lambda entry: entry[1])
        return [item for _, _, _, item in entries]


def find_kind(path: Path) -> str:
    """The format of a file by its name, or "" if the name has no known extension."""
    name = _remove_packing(path.name)
    return next((kind for kind in (*DOCUMENTS, *TABLES) if name.endswith(kind)), "")


def is_csv(file: str) -> bool:
    """Whether a file's name is that of a CSV or TSV table, packed or not."""
    return _remove_packing(file).endswith((".csv", ".tsv"))


def _remove_packing(file: str) -> str:
    name = file.lower()
    for packing in PACKED:
        name = name.removesuffix(packing)
    return name


def find_files(spec: str, skipped: Counter[str]) -> list[Path]:
    """The files that a file name, a folder or a glob stands for, sorted.

    In a folder, files of other formats, and tables beside documents, are skipped and counted.
    Raises NotHere if no file is left, and DataError if a named or matched file has another format.
    """
    path = Path(os.path.expanduser(spec))
    if path.is_dir():
        files = _select_files(list(walk_folder(path)), skipped)
    elif path.is_file():
        files = [path]
    else:
        matches = glob.glob(str(path), recursive=True)
        files = [Path(match) for match in matches if os.path.isfile(match)]
    if not files:
        raise NotHere(
            f"{spec}: no file of text there (from {Path.cwd()}): correct the path, or put files "
            f"there that end in {KINDS}"
        )
    for file in files:
        if not find_kind(file):
            raise DataError(f"{file}: unknown format; the name of a file ends in one of {KINDS}")
    return sorted(files)


def _select_files(candidates: list[Path], skipped: Counter[str]) -> list[Path]:
    """The documents of a folder, or its tables if it has no documents.

    Other files are counted.
    """
    files = [file for file in candidates if find_kind(file) in DOCUMENTS]
    if not files:
        files = [file for file in candidates if find_kind(file)]
    for file in set(candidates) - set(files):
        reason = SKIPPED_TABLE if find_kind(file) in TABLES else "file of another format"
        skipped[reason] += 1
    return files


def refuse(error: OSError) -> NoReturn:
    """Raise the error.

    Without this, `os.walk` skips a folder that cannot be read, and its text would be missing.
    """
    raise error


def walk_folder(folder: Path) -> Iterator[Path]:
    """The files in a folder and its subfolders, without hidden ones.

    Links to folders are followed, and each folder is entered once.
    """
    entered = set[str]()
    for place, folders, names in os.walk(folder, onerror=refuse, followlinks=True):
        real_place = os.path.realpath(place)
        subfolders = sorted(folders)
        folders.clear()
        if real_place in entered:
            continue
        entered.add(real_place)
        for name in subfolders:
            if not name.startswith("."):
                folders.append(name)
        for name in names:
            path = Path(place, name)
            if path.is_file() and not name.startswith("."):
                yield path


# The rows of a file

Fields = Domain | HubDataset  # what says in which fields a record's text and source are
# a line of JSON, a text, a record, or why it is broken
Row = bytes | str | Mapping[str, Any] | BrokenText
Rows = Iterator[tuple[str, Row]]  # each with its place


def read_file(path: Path, domain: Domain, skipped: Counter[str]) -> Iterator[Document]:
    """The documents of a file.

    Raises DataError with the place of text that cannot be read, unless `domain.on_error` skips it.
    """
    empty = True
    rows = read_rows(path, domain)
    for document in parse_rows(rows, domain, domain.on_error, skipped):
        empty = False
        yield document
    if empty:
        skipped["empty file"] += 1


def parse_rows(
    rows: Rows, fields: Fields, on_error: OnError, skipped: Counter[str]
) -> Iterator[Document]:
    """The documents of rows, each with its place.

    With "skip", broken rows are left out, counted and named. With "stop", they raise DataError.
    """
    while True:  # with `for`, an error of reading the next row would be raised outside `try`
        try:
            place, row = next(rows)
            documents = parse_row(row, fields, place)
        except StopIteration:
            return
        except BrokenText as error:
            if on_error == "stop":
                raise DataError(
                    f'{error}; or on_error = "skip" in the domain leaves such out'
                ) from None
            named = [reason for reason in skipped if reason.startswith(BROKEN)]
            reason = "more that are broken"
            if len(named) < NAMED:
                reason = f"{BROKEN} {error.place}"
            skipped[reason] += 1
        else:
            yield from documents


def parse_row(row: Row, fields: Fields, place: str) -> Iterator[Document]:
    """The text of a row, in pieces if it is long. Raises BrokenText."""
    if isinstance(row, BrokenText):
        raise row
    if isinstance(row, bytes):
        row = parse_line(row, place, '{"text": ...}') if row.strip() else ""
    text = row if isinstance(row, str) else find_text(row, fields.text_field, place)
    surrogate = TORN.search(text)
    if surrogate:
        half = f"half of a surrogate pair (\\u{ord(surrogate[0]):x})"
        raise BrokenText(place, f"character {surrogate.start()} is {half}: repair the text")
    nuls = text.count("\0")
    if nuls > max(1, NULS * len(text)):
        raise BrokenText(
            place, f"{nuls:,} of {len(text):,} characters are NUL: {CONVERT} -f UTF-16LE"
        )
    pieces = cut(text)
    source = place
    split_fingerprint = make_fingerprint(text) if len(pieces) > 1 else 0
    if fields.source_field and isinstance(row, Mapping):
        source = find_source(row, fields.source_field, place)
        split_fingerprint = make_fingerprint(source)
    return (Document(piece, source, split_fingerprint=split_fingerprint) for piece in pieces)


def read_rows(path: Path, domain: Domain) -> Rows:
    """The rows of a domain's file, each with its place. Raises DataError."""
    kind = find_kind(path)
    if kind == ".parquet":
        yield from _read_parquet(path, domain)
        return
    with open_unpacked(path) as file:
        if kind == ".txt":
            cuts = cut_in_pages if domain.cut_at_blank_lines else cut
            for number, piece in enumerate(_cut_file(path, file, cuts), 1):
                place = str(path)
                if domain.cut_at_blank_lines:  # parts are documents with places of their own
                    place = f"{path}, part {number}"
                yield place, piece
        elif kind == ".csv":
            yield from read_csv(path, file)
        elif kind == ".json" and _begins_array(file):
            yield from _read_array(path, file)
        else:
            for number, line in enumerate(file, 1):
                yield f"{path}:{number}", line.removesuffix(b"\n")


def _begins_array(file: Any) -> bool:
    head: bytes = file.peek(1024)
    return head.removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"[")


def _cut_file(path: Path, file: IO[bytes], cuts: Callable[[str], list[str]]) -> Iterator[str]:
    """The text of a file in the pieces that `cuts` makes.

    Only a chunk of the file and the rest of the last piece are in memory.
    """
    rest = ""
    with io.TextIOWrapper(file, "utf-8-sig", newline="") as text:
        try:
            while part := text.read(CHUNK):
                *pieces, rest = cuts(rest + part)
                yield from pieces
        except UnicodeDecodeError as error:
            raise BrokenText(str(path), _describe_bad_byte(error)) from None
    if rest:
        yield rest


def read_csv(path: Path | str, file: IO[bytes], separator: str = ",") -> Rows:
    """The rows of a CSV table (RFC 4180) as records by its header, each with its file and line.

    A row with more or fewer fields than the header is broken. Raises DataError.
    """
    with io.TextIOWrapper(file, "utf-8-sig", newline="") as text:
        rows = csv.reader(text, delimiter=separator, strict=True)
        try:
            names = next(filter(None, rows), [])
            for fields in rows:
                if not fields:
                    continue  # a blank line
                place = f"{path}:{rows.line_num}"
                if len(fields) != len(names):
                    # the text has a separator outside quotes, or the row is cut off
                    yield (
                        place,
                        BrokenText(
                            place,
                            f"{len(fields)} fields, where the header has {len(names)} "
                            f"({', '.join(names)}): quote fields as RFC 4180 says",
                        ),
                    )
                else:
                    yield place, dict(zip(names, fields, strict=True))
        except csv.Error as error:  # the next row's beginning is unknown, so none can be skipped
            raise DataError(
                f"{path}:{rows.line_num}: not CSV ({error}): quote fields as RFC 4180 says"
            ) from None
        except UnicodeDecodeError as error:
            raise DataError(f"{path}: {_describe_bad_byte(error)}") from None


def _read_array(path: Path, file: IO[bytes]) -> Rows:
    """The records of a JSON file with one array, which is read into memory as a whole."""
    try:
        items = parse_line(file.read(), str(path), '{"text": ...}')
    except BrokenText as error:
        raise DataError(str(error)) from None
    for number, item in enumerate(items, 1):
        yield f"{path}:{number}", item


def _read_parquet(path: Path, domain: Domain) -> Rows:
    try:
        import pyarrow.parquet
    except ImportError:
        raise DataError(f"{path}: to read .parquet files, `pip install -e .[hf]`") from None
    fields = [domain.text_field] if isinstance(domain.text_field, str) else domain.text_field
    names = set()
    for field in filter(None, (*fields, domain.source_field)):
        names.add(field)
        names.add(field.partition(".")[0])
    try:
        with pyarrow.parquet.ParquetFile(path) as table:
            # without any of the fields, all columns (None), so that the error can name them
            columns = [name for name in table.schema_arrow.names if name in names] or None
            number = 0
            for batch in table.iter_batches(ROWS, columns=columns):
                for row in batch.to_pylist():
                    number += 1
                    yield f"{path}:{number}", row
    except pyarrow.ArrowException as error:
        raise DataError(f"{path}: damaged ({error}): make or fetch it again") from None


def parse_line(line: bytes, place: str, example: str) -> Any:
    """The object in a line of JSON.

    Raises BrokenText for a line that is not JSON, with an `example` of a correct line.
    """
    try:
        return json.loads(line.decode("utf-8-sig"), parse_int=_parse_integer)
    except UnicodeDecodeError as error:
        raise BrokenText(place, _describe_bad_byte(error)) from None
    except (ValueError, RecursionError) as error:
        cure = f"each line must be one object such as {example}, or a .json file one array of them"
        if b"\0" in line:
            cure = f"{CONVERT} -f UTF-16LE"
        raise BrokenText(place, f"not JSON ({error}): {cure}") from None


def _parse_integer(digits: str) -> int | float:
    """An integer, or a float from 4,300 digits on: Python refuses more, and nothing uses them."""
    if len(digits) < 4300:
        return int(digits)
    return float(digits)


@contextmanager
def open_unpacked(path: Path) -> Iterator[Any]:
    """A file of bytes to read, decompressed.

    Raises DataError if it is damaged, or its gzip is cut short.
    """
    damage: tuple[type[Exception], ...] = (EOFError, zlib.error, gzip.BadGzipFile)
    packing = path.suffix.lower()
    with path.open("rb") as file:
        content: Any = file
        if packing == ".gz":
            content = gzip.GzipFile(fileobj=file)
        elif packing == ".zst":
            try:
                import zstandard
            except ImportError:
                raise DataError(f"{path}: to read .zst files, `pip install -e .[zstd]`") from None
            damage = (zstandard.ZstdError,)
            decompressor = zstandard.ZstdDecompressor()
            content = io.BufferedReader(decompressor.stream_reader(file, read_across_frames=True))
        try:
            if packing == ".gz" and path.stat().st_size == 0:
                raise EOFError("the file is empty")
            yield content
        except damage as error:
            raise DataError(
                f"{path}: truncated or damaged ({error}): make or fetch it again"
            ) from None


def _describe_bad_byte(error: UnicodeDecodeError) -> str:
    return f"byte 0x{error.object[error.start]:02x} is not UTF-8 ({error.reason}): {CONVERT}"
