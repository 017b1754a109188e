"""The documents of a domain, read one at a time from packages, files or datasets of the Hub.

Memory does not grow with the corpus. docs/your_own_text.md says which problems are errors, and
which texts are counted and skipped.
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
    Rows,
    cut,
    find_files,
    find_kind,
    is_csv,
    make_fingerprint,
    name_source_in_errors,
    parse_rows,
    read_csv,
    read_file,
    walk_folder,
)
from benchmark.files import hash_file, replace_file
from benchmark.settings.base import digest
from benchmark.settings.decides import describe
from benchmark.settings.texts import Domain, HubDataset

FORMAT = 3  # increased when a change makes other documents from the same files


def read(domain: Domain, valid_share: float, skipped: Counter[str]) -> Iterator[Document]:
    """The documents of a domain, each text once, with their split.

    `skipped` counts the documents that are left out, by reason.

    Validation files are read first, so that their text is not trained on. For other documents, the
    fingerprint decides, whatever other documents there are. Those with the highest fingerprints
    are kept from pre-training (`Domain.hold_out`). Without validation files, a share with the
    lowest is validation: the domain's own share, or else `valid_share`. If a domain of files then
    has fewer than FEW_DOCUMENTS documents, all with the same split, pieces of them are validation,
    such as a book's pages.

    Raises DataError.
    """
    share = domain.valid_share or valid_share
    documents = _split(domain, share, skipped)
    first: list[Document] = []
    if domain.train and not domain.valid:
        first = list(islice(documents, FEW_DOCUMENTS))  # enough to know whether there are few
        splits = {document.split for document in first}
        if len(first) < FEW_DOCUMENTS and len(splits) == 1:
            first = _hold_out_pieces(first, share)
    yield from chain(first, documents)


def _hold_out_pieces(documents: Sequence[Document], valid_share: float) -> list[Document]:
    """The documents cut into pieces, of which a share of `valid_share` is for validation.

    The pieces with the lowest fingerprints are held out, at least one. If all are alike, none is.
    """
    pieces = []
    for document in documents:
        for text in cut(document.text, PIECE):
            if text.strip():
                piece = replace(document, text=text)
                pieces.append((piece, make_fingerprint(text)))
    fingerprints = sorted({fingerprint for _, fingerprint in pieces})
    highest_valid = -1
    if len(fingerprints) > 1:
        count = max(1, round(valid_share * len(fingerprints)))
        highest_valid = fingerprints[count - 1]
    return [
        replace(piece, split="valid" if fingerprint <= highest_valid else "train")
        for piece, fingerprint in pieces
    ]


def _split(domain: Domain, valid_share: float, skipped: Counter[str]) -> Iterator[Document]:
    """The documents with their split: that of their file, if it decides, else by fingerprint."""
    held_out_from = (1 - domain.hold_out) * 2**64
    valid_end = valid_share * 2**64
    for document in drop_repeats(domain, skipped):
        if document.split != "valid" and document.split_fingerprint >= held_out_from:
            skipped["held out"] += 1
        elif document.split:
            yield document
        else:
            is_valid = document.split_fingerprint < valid_end
            yield replace(document, split="valid" if is_valid else "train")


def drop_repeats(domain: Domain, skipped: Counter[str]) -> Iterator[Document]:
    """The documents of a domain in their order, each text once, with what decides their split.

    Earlier fingerprints are in a temporary file with a cache of 16 MiB. SQLite removes the file
    when it is closed. Raises DataError.
    """
    with contextlib.closing(sqlite3.connect("")) as database:
        database.executescript(
            "PRAGMA journal_mode=OFF; PRAGMA synchronous=OFF; PRAGMA cache_size=-16384; "
            "CREATE TABLE seen (hash INTEGER PRIMARY KEY)"
        )
        for document in _read_documents(domain, skipped):
            if not document.text.strip():
                skipped["blank"] += 1
                continue
            fingerprint = make_fingerprint(document.text)
            row = (fingerprint - 2**63,)
            if database.execute("INSERT OR IGNORE INTO seen VALUES (?)", row).rowcount:
                yield replace(document, split_fingerprint=document.split_fingerprint or fingerprint)
            else:
                skipped["duplicate"] += 1


def identify(domain: Domain, valid_share: float, notes: Path, makes: bool = True) -> str:
    """A hash of all that decides what `read` yields.

    Files and packages count by their content, a dataset of the Hub by its settings only.

    The folder `notes` keeps each hash by the files' names, sizes and times, so that unchanged files
    are read once. If the folder does not exist and `makes` is false, names, sizes and times are
    hashed instead of content, because nothing was prepared from these files. Raises NotHere if
    files or packages are missing.
    """
    if domain.sources:
        return digest([identify(part, valid_share, notes, makes) for part in domain.parts])
    files = _list_files(domain)
    settings: dict[str, Any] = {
        "format": FORMAT,
        "python": platform.python_version() if domain.packages else None,  # it parses packages
        "domain": describe(domain, "text"),
        "valid_share": None if domain.valid else domain.valid_share or valid_share,
    }
    if domain.datasets:
        names = [name for part in domain.datasets for name in part.files]
        names += [name for name, _ in files]
        if any(map(is_csv, names)):
            settings["csv"] = 2  # version 1 was read by pandas
    file_stamps = []
    for _, path in files:
        stat = path.stat()
        times = (stat.st_mtime_ns, stat.st_ctime_ns)
        file_stamps.append((os.path.abspath(path), stat.st_size, *times))
    stamp = digest([settings, file_stamps])
    note = notes / f"{stamp}.txt"
    with contextlib.suppress(FileNotFoundError):
        return note.read_text(encoding="utf-8")
    if not (makes or notes.exists()):
        return stamp
    hashes = [(name, hash_file(path)) for name, path in files]
    content = digest([settings, hashes])
    if makes:
        with replace_file(note) as file:
            file.write(content.encode())
    return content


def _list_files(domain: Domain) -> list[tuple[str, Path]]:
    """The files that a domain is read from, each with the name that it is hashed under."""
    files: list[tuple[str, Path]] = []
    for package in domain.packages:
        for path, name in docstrings.find_modules(package):
            files.append((name, path))
    for split, specs in (("valid", domain.valid), ("train", domain.train)):
        for spec in specs:
            for path in find_files(spec, Counter()):
                files.append((f"{split} {path.name}", path))
    for dataset in domain.datasets:
        if os.path.isdir(dataset.path):
            folder = Path(dataset.path)
            paths = walk_folder(folder)
            files += sorted((path.relative_to(folder).as_posix(), path) for path in paths)
    return files


def _read_documents(domain: Domain, skipped: Counter[str]) -> Iterator[Document]:
    for name in domain.packages:
        documents, problems = docstrings.read_package(name)
        skipped.update(problems)
        yield from documents
    train_split: Half = "train" if domain.valid else ""  # "": fingerprints decide, see `_split`
    splits: dict[Half, tuple[str, ...]] = {"valid": domain.valid, train_split: domain.train}
    for split, specs in splits.items():
        for spec in specs:
            for path in find_files(spec, skipped):
                for document in read_file(path, domain, skipped):
                    yield replace(document, split=split)
    for dataset in domain.datasets:
        rows = _read_dataset(dataset)
        yield from parse_rows(rows, dataset, domain.on_error, skipped)


def _read_dataset(dataset: HubDataset) -> Rows:
    """The rows (records, or lines of JSON Lines) of a dataset, each with its place.

    CSV is read without the library `datasets`: see `read_csv_splits`.
    """
    try:
        import fsspec
        from datasets import load_dataset
    except ImportError:
        raise DataError(
            f"dataset {dataset.path!r}: to read Hugging Face datasets, `pip install -e .[hf]`"
        ) from None
    names = f"name {dataset.name!r}, revision {dataset.revision!r}, split {dataset.split!r}"
    part = ", ".join(dataset.files) or names
    with name_source_in_errors(f"dataset {dataset.path!r} ({part})"):
        is_lines = False
        if dataset.files:
            folder = dataset.path
            if not os.path.isdir(folder):
                folder = f"hf://datasets/{dataset.path}@{dataset.revision or 'main'}"
            files = [f"{folder}/{name}" for name in dataset.files]
            for pattern in files:
                if not fsspec.open_files(pattern):  # `load_dataset` reads on without it
                    raise FileNotFoundError(f"no file matches {pattern}")
            kind = find_kind(Path(files[0])).removeprefix(".")
            if kind == "csv":
                yield from islice(_read_csv_files(files, ","), dataset.documents)
                return
            is_lines = kind != "parquet"
            # JSON Lines are read as text: `parse_rows` parses them, and finds broken lines
            reader = "text" if is_lines else kind
            rows = load_dataset(reader, data_files=files, split="train", streaming=True)
        else:
            splits = read_csv_splits(dataset.path, dataset.name, dataset.revision)
            if dataset.split in splits:
                yield from islice(splits[dataset.split], dataset.documents)
                return
            options = {"revision": dataset.revision} if dataset.revision else {}
            rows = load_dataset(
                dataset.path, dataset.name, split=dataset.split, streaming=True, **options
            )
        for number, row in enumerate(islice(rows, dataset.documents)):
            content = row["text"].encode() if is_lines else row
            yield f"{dataset.path}:{number}", content


def read_csv_splits(path: str, name: str | None, revision: str | None) -> dict[str, Rows]:
    """The rows of each split of a dataset of CSV files, or {} for a dataset of another format.

    The library `datasets` reads CSV by pandas, which shifts the columns of a row with too many
    fields. Raises DataError if a file's name is not that of CSV (see `is_csv`), or if the dataset
    sets more options of pandas than a separator of one character.
    """
    from datasets import load_dataset_builder

    options = {"revision": revision} if revision else {}
    builder = load_dataset_builder(path, name, **options)
    if builder.name != "csv":
        return {}
    config = builder.config
    defaults = type(config)().pd_read_csv_kwargs
    others = []
    for option, value in config.pd_read_csv_kwargs.items():
        if option != "sep" and value != defaults.get(option):
            others.append(f"{option} = {value!r}")
    for file in chain.from_iterable(config.data_files.values()):
        if not is_csv(file):
            others.append(file)
    if others or len(config.sep) != 1:
        listed = ", ".join(others) or f"sep = {config.sep!r}"
        raise DataError(
            f"dataset {path!r}: its CSV is read otherwise than by a header, a separator and quotes "
            f"({listed}): write it anew, as Parquet or JSON Lines"
        )
    return {
        str(split): _read_csv_files(files, config.sep) for split, files in config.data_files.items()
    }


def _read_csv_files(patterns: Sequence[str], separator: str) -> Rows:
    """The rows of the files that match patterns, on this machine or on the Hub."""
    import fsspec

    for file in fsspec.open_files(patterns, "rb", compression="infer"):
        with file as content:
            yield from read_csv(file.path, content, separator)
