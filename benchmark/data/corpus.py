"""Documents of a domain, one after the other, whatever they come from: memory does not grow with
the corpus.

docs/data.md says which problems are errors, and which texts are counted and skipped.
"""

from __future__ import annotations

import contextlib
import os
import platform
import sqlite3
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from typing import Any

from benchmark.data import docstrings
from benchmark.data.documents import (
    FEW_DOCUMENTS,
    PIECE,
    DataError,
    Document,
    Half,
    Row,
    cut,
    find_files,
    find_kind,
    make_fingerprint,
    name_source_in_errors,
    parse_rows,
    read_file,
    walk_folder,
)
from benchmark.files import hash_file, replace_file
from benchmark.settings.base import digest
from benchmark.settings.texts import Domain, HubDataset

FORMAT = 2  # raised when the same files come to mean other documents


def read(domain: Domain, valid_share: float, skipped: Counter[str]) -> Iterator[Document]:
    """The documents of a domain, each text once, with their split; `skipped` counts the others by
    reason.

    Without validation files, the fingerprint of a text decides: `valid_share` of the documents, or
    the domain's own share, are held out, the same ones whatever else the domain holds. Validation
    files are read first, so that their text is not trained on. The upper end of the fingerprints is
    what the domain holds out of pre-training (`Domain.hold_out`). Where files hold so few documents
    that all are on one side, pieces of them are held out, a book's pages.

    Raises DataError.
    """
    share = domain.valid_share or valid_share
    documents = _split(domain, share, skipped)
    few = list(islice(documents, FEW_DOCUMENTS)) if domain.train and not domain.valid else []
    if few and len(few) < FEW_DOCUMENTS and len({document.split for document in few}) == 1:
        few = _hold_out_pieces(few, share)
    yield from chain(few, documents)


def _hold_out_pieces(documents: Sequence[Document], valid_share: float) -> list[Document]:
    """Documents cut small, of which those with the lowest fingerprints are for validation, one at
    least.
    """
    texts = [
        (document, piece)
        for document in documents
        for piece in cut(document.text, PIECE)
        if piece.strip()
    ]
    pieces = [(replace(document, text=piece), make_fingerprint(piece)) for document, piece in texts]
    lowest = sorted({hashed for _, hashed in pieces})
    end = lowest[max(1, round(valid_share * len(lowest))) - 1] if len(lowest) > 1 else -1
    return [replace(piece, split="valid" if hashed <= end else "train") for piece, hashed in pieces]


def _split(domain: Domain, valid_share: float, skipped: Counter[str]) -> Iterator[Document]:
    for document in drop_repeats(domain, skipped):
        if document.split != "valid" and document.decides >= (1 - domain.hold_out) * 2**64:
            skipped["held out"] += 1
        elif document.split:
            yield document
        else:
            yield replace(
                document, split="valid" if document.decides < valid_share * 2**64 else "train"
            )


def drop_repeats(domain: Domain, skipped: Counter[str]) -> Iterator[Document]:
    """The documents of a domain as they come, each text once, with what decides their split. Raises
    DataError.

    The fingerprints that came before are on disk, in a file that goes when it is closed, with a
    cache of 16 MiB.
    """
    with contextlib.closing(sqlite3.connect("")) as seen:
        seen.executescript(
            "PRAGMA journal_mode=OFF; PRAGMA synchronous=OFF; PRAGMA cache_size=-16384; "
            "CREATE TABLE seen (hash INTEGER PRIMARY KEY)"
        )
        for document in _read_documents(domain, skipped):
            if not document.text.strip():
                skipped["blank"] += 1
                continue
            hashed = make_fingerprint(document.text)
            if seen.execute("INSERT OR IGNORE INTO seen VALUES (?)", (hashed - 2**63,)).rowcount:
                yield replace(document, decides=document.decides or hashed)
            else:
                skipped["duplicate"] += 1


def identify(domain: Domain, valid_share: float, notes: Path, makes: bool = True) -> str:
    """A hash of all that decides what `read` yields; of files and packages the content.

    Content is read once: `notes` is the folder of what files of these names, sizes and times have
    come to. Where there is none, and it `makes` none, names, sizes and times are hashed instead:
    nothing is prepared of these files. A dataset of the Hub counts by its name alone. Raises
    NotHere if files or packages are missing.
    """
    if domain.sources:
        return digest([identify(part, valid_share, notes, makes) for part in domain.parts])
    files = [
        (name, path)
        for package in domain.packages
        for path, name in docstrings.find_modules(package)
    ]
    for split, specs in (("valid", domain.valid), ("train", domain.train)):
        files += [
            (f"{split} {path.name}", path) for spec in specs for path in find_files(spec, Counter())
        ]
    for folder in (
        Path(dataset.path) for dataset in domain.datasets if os.path.isdir(dataset.path)
    ):
        files += sorted(
            (path.relative_to(folder).as_posix(), path) for path in walk_folder(folder, Counter())
        )
    made: dict[str, Any] = {
        "format": FORMAT,
        "python": platform.python_version() if domain.packages else None,  # it parses them
        "domain": domain.model_dump(mode="json", exclude={"name", "title", "train", "valid"}),
        "valid_share": None if domain.valid else domain.valid_share or valid_share,
    }
    stats = [(os.path.abspath(path), path.stat()) for _, path in files]
    looks = digest(
        [made, [(path, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns) for path, stat in stats]]
    )
    note = notes / f"{looks}.txt"
    with contextlib.suppress(FileNotFoundError):
        return note.read_text(encoding="utf-8")
    if not (makes or notes.exists()):
        return looks
    content = digest([made, [(name, hash_file(path)) for name, path in files]])
    if makes:
        with replace_file(note) as file:
            file.write(content.encode())
    return content


def _read_documents(domain: Domain, skipped: Counter[str]) -> Iterator[Document]:
    for name in domain.packages:
        documents, problems = docstrings.read_package(name)
        skipped.update(problems)
        yield from documents
    of_training: Half = "train" if domain.valid else ""
    halves: list[tuple[tuple[str, ...], Half]] = [
        (domain.valid, "valid"),
        (domain.train, of_training),
    ]
    for specs, split in halves:
        for path in (path for spec in specs for path in find_files(spec, skipped)):
            for document in read_file(path, domain, skipped):
                yield replace(document, split=split)
    for dataset in domain.datasets:
        rows = _read_dataset(dataset)
        yield from parse_rows(rows, dataset.text_field, domain.on_error, skipped)


def _read_dataset(dataset: HubDataset) -> Iterator[tuple[str, Row]]:
    """The rows of a dataset, each with its place: records, or lines of files of JSON Lines."""
    try:
        from datasets import load_dataset
    except ImportError:
        raise DataError(
            f"dataset {dataset.path!r}: to read Hugging Face datasets, `pip install -e .[hf]`"
        ) from None
    asked = f"name {dataset.name!r}, revision {dataset.revision!r}, split {dataset.split!r}"
    with name_source_in_errors(f"dataset {dataset.path!r} ({', '.join(dataset.files) or asked})"):
        lines = False
        if dataset.files:
            on_hub = f"hf://datasets/{dataset.path}@{dataset.revision or 'main'}"
            folder = dataset.path if os.path.isdir(dataset.path) else on_hub
            files = [f"{folder}/{name}" for name in dataset.files]
            kind = find_kind(Path(files[0])).removeprefix(".")
            lines = kind not in ("parquet", "csv")
            rows = load_dataset(
                "text" if lines else kind, data_files=files, split="train", streaming=True
            )
        else:
            given = {"revision": dataset.revision} if dataset.revision else {}
            rows = load_dataset(
                dataset.path, dataset.name, split=dataset.split, streaming=True, **given
            )
        for number, row in enumerate(islice(rows, dataset.documents)):
            yield f"{dataset.path}:{number}", row["text"].encode() if lines else row
