"""Documents in files: JSON Lines or plain text, as they are or compressed with gzip or zstd."""

from __future__ import annotations

import codecs
import glob
import gzip
import json
import os
import zlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, NoReturn

from benchmark.data.documents import DataError, Document, cut, text_of
from benchmark.files import Refused, expanded, regular, unique

CHUNK = 2**18  # bytes read at once
LONGEST_LINE = 2**28  # bytes; what is longer is no document
EXPANSION, FEW_BYTES = 250, 2**24  # a packed file of more bytes than a few may hold so many times its size
JSON_LINES, PLAIN = (tuple(kind + packed for packed in ("", ".gz", ".zst")) for kind in (".jsonl", ".txt"))
SUFFIXES = (*JSON_LINES, *PLAIN)


def find(spec: str, skipped: Counter[str]) -> list[Path]:
    """What a file name, a folder or a glob stands for, sorted."""
    try:
        return _find(spec, skipped)
    except Refused:
        raise
    except OSError as error:
        place = error.filename or spec
        raise DataError(
            f"{place if len(str(place)) < 300 else spec[:80]}: {error.strerror}: correct the path"
        ) from None


def _find(spec: str, skipped: Counter[str]) -> list[Path]:
    path = expanded(spec)
    if path.is_dir():
        inside = sorted(_inside(path))
        files = [p for p in inside if p.name.endswith(SUFFIXES)]
        if len(files) < len(inside):
            skipped["file of another format"] += len(inside) - len(files)
        problem = f"the folder holds no file that ends in {', '.join(SUFFIXES)}: put some there, or correct the path"
    elif path.is_file():
        files = [path]
    else:
        if "**" in spec:  # the library passes over what it cannot read
            for _ in _inside(expanded(spec.partition("**")[0] or "."), follow=True):
                pass
        files = list(_matching(str(path)))
        is_glob = glob.has_magic(spec)
        what = "nothing matches this pattern" if is_glob else "no such file or folder"
        problem = f"{what} (from {Path.cwd()}): correct the path"
    if not files:
        raise DataError(f"{spec}: {problem}")
    for file in files:
        if not file.name.endswith(SUFFIXES):
            raise DataError(f"{file}: unknown format; the name of a file ends in one of {', '.join(SUFFIXES)}")
    return files


def refuse(error: OSError) -> NoReturn:
    """For `os.walk`, which else leaves out the text of a folder that cannot be read."""
    raise error


def _inside(folder: Path, follow: bool = False) -> Iterator[Path]:
    """The files below a folder. Raises OSError for what cannot be read, or is no file, DataError for what is no text.

    `follow`: whether whoever reads them goes where links to folders lead.
    """
    for place, folders, names in os.walk(folder, onerror=refuse):
        for name in folders:
            if not follow and (inner := Path(place, name)).is_symlink():
                raise DataError(
                    f"{inner}: a link to a folder, whose text would be left out: name the folder itself in the list"
                )
        for name in names:
            yield _file(Path(place, name))


def _matching(pattern: str) -> Iterator[Path]:
    """The files that a glob stands for, sorted. Raises what `_inside` does.

    A folder that it matches is nothing by itself; all in it must match too, but what is hidden, which no glob finds.
    """
    matches = set(glob.glob(pattern, recursive=True))
    for match in sorted(matches):
        path = Path(match)
        if path.is_dir():
            inside = [one.name for one in os.scandir(path) if not one.name.startswith(".")]
            if left_out := [name for name in inside if os.path.join(match, name) not in matches]:
                raise DataError(
                    f"{path}: the pattern {pattern} matches this folder, but not {min(left_out)} in it, whose text "
                    "would be left out: name the folder itself in the list, or a pattern that does not match it"
                )
        else:
            yield _file(path)


def _file(path: Path) -> Path:
    """The path of a file. Raises DataError for a link to nothing, OSError for what is no file."""
    if not path.exists():
        raise DataError(f"{path}: a link to a file that is not there: remove the link, or put the file back")
    return regular(path)


def read(path: Path, text_field: str, skipped: Counter[str]) -> Iterator[Document]:
    empty = True
    is_plain = path.name.endswith(PLAIN)
    for document in _plain_text(path) if is_plain else _json_lines(path, text_field):
        empty = False
        yield document
    if empty:
        skipped["empty file"] += 1


def first_record(path: Path) -> dict[str, Any]:
    """The first line of a JSON Lines file that is an object; an empty one where the file begins with something else."""
    for line in lines(path):
        if line.strip():
            try:
                record = json.loads(line)
            except (ValueError, RecursionError):
                return {}
            return record if isinstance(record, dict) else {}
    return {}


def _json_lines(path: Path, text_field: str) -> Iterator[Document]:
    for number, line in enumerate(lines(path), 1):
        place = f"{path}:{number}"
        try:
            record = (
                json.loads(line.decode("utf-8-sig" if number == 1 else "utf-8"), object_pairs_hook=unique)
                if line.strip()
                else {text_field: ""}
            )
        except UnicodeDecodeError as error:
            raise DataError(f"{place}: {_not_utf8(error)}") from None
        except (ValueError, RecursionError) as error:
            raise DataError(
                f"{place}: not JSON ({error}): each line must be one object such as {{{json.dumps(text_field)}: ...}}"
            ) from None
        yield from (Document(piece, place) for piece in cut(text_of(record, text_field, place)))


def _plain_text(path: Path) -> Iterator[Document]:
    """A file is one document, or several where it is long: it is never in memory as a whole."""
    decoder = codecs.getincrementaldecoder("utf-8-sig")()
    rest, line = "", 1
    parts = chunks(path)
    while True:
        chunk = next(parts, b"")
        try:
            text = decoder.decode(chunk, final=not chunk)
        except UnicodeDecodeError as error:
            line += error.object[: error.start].count(b"\n")
            raise DataError(f"{path}:{line}: {_not_utf8(error)}") from None
        line += text.count("\n")
        *whole, rest = cut(rest + text)
        yield from (Document(piece, str(path)) for piece in whole)
        if not chunk:
            break
    if rest:
        yield Document(rest, str(path))


def lines(path: Path) -> Iterator[bytes]:
    """The lines of a file, decompressed, without their ends. Raises DataError, for one over LONGEST_LINE too."""
    parts: list[bytes] = []  # of a line that has not ended, joined once: text without line ends takes linear time
    size, number = 0, 1
    for chunk in chunks(path):
        first, *others = chunk.split(b"\n")
        parts.append(first)
        size += len(first)
        if size > LONGEST_LINE:
            raise DataError(
                f"{path}:{number}: a line of more than {LONGEST_LINE:,} bytes: each document needs a line of its own"
            )
        if others:
            yield b"".join(parts)
            yield from others[:-1]
            number += len(others)
            parts, size = [others[-1]], len(others[-1])
    if size:
        yield b"".join(parts)


def chunks(path: Path) -> Iterator[bytes]:
    """The bytes of a file, decompressed. Raises DataError if it is truncated or damaged, or expands without end."""
    line, size = 1, 0
    try:
        with regular(path).open("rb") as file:
            if path.suffix != ".txt" and path.suffix != ".jsonl" and path.stat().st_size == 0:
                raise EOFError("the file is empty")
            for chunk in _decompressed(file, path.suffix):
                size += len(chunk)
                if size > FEW_BYTES and size > EXPANSION * file.tell():
                    raise DataError(
                        f"{path}: expands more than {EXPANSION} times, to {size:,} bytes and more, which no text does: "
                        "make or fetch it again"
                    )
                yield chunk
                line += chunk.count(b"\n")
    except IsADirectoryError:
        raise DataError(f"{path}: a folder, not a file: correct the path") from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{path}:{line}: truncated or damaged about here ({error}): make or fetch it again") from None
    except OSError as error:  # in the middle of it the system names no file
        error.filename = error.filename or str(path)
        raise


def _decompressed(file: IO[bytes], suffix: str) -> Iterator[bytes]:
    if suffix == ".zst":
        yield from _zstd(file)
        return
    stream: Any = gzip.GzipFile(fileobj=file) if suffix == ".gz" else file
    while chunk := stream.read1(CHUNK):  # not read(), which would lose what comes before a damage
        yield chunk


def _zstd(file: IO[bytes]) -> Iterator[bytes]:
    """Frame by frame, because the library's own reader takes a truncated file for a short one."""
    try:
        import zstandard
    except ImportError:
        raise DataError(f"{file.name}: to read .zst files, `pip install -e .[zstd]`") from None
    decompressor = None
    while chunk := file.read(max(1, CHUNK // 64)):  # less than CHUNK, because it may grow a lot
        while chunk:
            decompressor = decompressor or zstandard.ZstdDecompressor().decompressobj()
            try:
                content = decompressor.decompress(chunk)
            except zstandard.ZstdError as error:
                raise zlib.error(str(error)) from None
            if content:  # nothing while a block is not complete
                yield content
            chunk = decompressor.unused_data
            if decompressor.eof:
                decompressor = None
    if decompressor is not None:
        raise EOFError("the last frame is not complete")


def _not_utf8(error: UnicodeDecodeError) -> str:
    return f"byte 0x{error.object[error.start]:02x} is not UTF-8 ({error.reason}): convert the file, e.g. with iconv"
