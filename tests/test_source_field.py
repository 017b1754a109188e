"""Records that say what they were cut from (`source_field`)."""

from __future__ import annotations

import csv
import json
from collections import Counter, defaultdict
from pathlib import Path

import datasets
import pytest

from benchmark.data import corpus
from benchmark.data.documents import DataError
from benchmark.settings.suite import Data, Tokenizer
from benchmark.settings.texts import Domain, HubDataset
from tests.support.texts import prepare

BOOKS = 40
PAGES = 5
SMALL = Data(sequence_length=18)
RECORDS = [
    {"text": f"Page {page} of the book number {book}.", "book": f"book {book}"}
    for page in range(PAGES)
    for book in range(BOOKS)
]


def write_records(path: Path) -> None:
    if path.suffix == ".parquet":
        datasets.Dataset.from_list(RECORDS).to_parquet(path)
    elif path.suffix == ".csv":
        with path.open("w", newline="", encoding="utf-8") as file:
            table = csv.DictWriter(file, ["text", "book"])
            table.writeheader()
            table.writerows(RECORDS)
    else:
        path.write_text("".join(json.dumps(record) + "\n" for record in RECORDS))


def make_domain(path: Path, hub: bool = False) -> Domain:
    if hub:
        dataset = HubDataset(path=str(path.parent), files=(path.name,), source_field="book")
        return Domain(name="books", datasets=(dataset,))
    return Domain(name="books", train=(str(path),), source_field="book")


@pytest.mark.parametrize("hub", [False, True])
@pytest.mark.parametrize("name", ["a.jsonl", "a.csv", "a.parquet"])
def test_a_book_in_several_records_is_in_one_split(tmp_path: Path, name: str, hub: bool) -> None:
    """Oracle: the books that were written. Without the field some book is in both splits."""
    write_records(tmp_path / name)
    for source_field, largest in (("book", 1), ("", 2)):
        domain = make_domain(tmp_path / name, hub)
        if not source_field:
            plain = [part.model_copy(update={"source_field": ""}) for part in domain.datasets]
            update = {"source_field": "", "datasets": tuple(plain)}
            domain = domain.model_copy(update=update)
        splits = defaultdict(set)
        for document in corpus.read(domain, 0.2, Counter()):
            book = document.text.rpartition("number ")[2]
            splits[book].add(document.split)
        assert len(splits) == BOOKS
        assert max(map(len, splits.values())) == largest
        assert {"train", "valid"} == set().union(*splits.values())


def test_records_of_a_book_count_as_one_validation_document(tmp_path: Path) -> None:
    """Oracle: by hand: documents 0 and 2 share a book, 1 and 3 another, and null or "" is none."""
    train = tmp_path / "train.jsonl"
    write_records(train)
    books = ["x", "y", "x", "y", None, None, ""]
    rows = [{"text": f"line {i} in {book}", "book": book} for i, book in enumerate(books)]
    valid = tmp_path / "valid.jsonl"
    valid.write_text("".join(json.dumps(row) + "\n" for row in rows))
    domain = Domain(name="a", train=(str(train),), valid=(str(valid),), source_field="book")
    [text] = prepare(
        [domain], tmp_path / "data", tokenizer=Tokenizer(vocabulary=300), data=SMALL
    ).domains
    assert text.info["valid_sources"] == [0, 1, 0, 1, 2, 3, 4]


def test_a_record_without_the_field_is_broken(tmp_path: Path) -> None:
    """Oracle: by hand: the error names the line, the missing field, and the record's fields."""
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "one", "meta": {"book": 1}}\n{"text": "two", "meta": {}}\n')
    domain = Domain(name="a", train=(str(path),), source_field="meta.book")
    with pytest.raises(DataError, match=r"a\.jsonl:2.*'meta\.book'.*text, meta.*source_field"):
        list(corpus.read(domain, 0.2, Counter()))
