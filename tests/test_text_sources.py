"""Text that ends too early or is misread: a network that fails in the middle of a data set, and a
domain called NA in a CSV file.
"""

from __future__ import annotations

import csv
import io
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest

from analysis.tables import Block, Cell, Column, Table, TableRow, to_csv
from benchmark.data import corpus
from benchmark.data.documents import DataError
from benchmark.downstream import tasks
from benchmark.settings.tasks import HubTask, Task
from benchmark.settings.texts import Domain, HubDataset
from tests.support.hub import stand_in

PYTHON_PAGE = Path(__file__).parents[1] / "docs" / "python.md"


class NetworkError(Exception):
    """An error that is no OSError, such as httpx and aiohttp raise."""


class Rows(list):
    """Two rows of a data set, and then the network fails."""

    features: ClassVar[dict[str, object]] = {}

    def __iter__(self) -> Iterator[dict[str, object]]:
        yield {"text": "one", "label": 0}
        yield {"text": "two", "label": 1}
        raise NetworkError("the server went away")


def test_a_network_that_fails_in_the_middle_names_the_data_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By hand: both rows come, then an error with the data set's name and the network's message. A
    missing field is named, too.
    """
    monkeypatch.setitem(sys.modules, "datasets", stand_in(lambda *_, **__: Rows()))
    domain = Domain(name="hub", datasets=(HubDataset(path="some/where"),))
    documents = corpus.read(domain, 0.5, Counter())
    assert [next(documents).text, next(documents).text] == ["one", "two"]
    with pytest.raises(
        DataError, match=r"^dataset 'some/where' .*: NetworkError: the server went away: "
    ):
        next(documents)
    for field, told in (
        ("text", "dataset 'some/where', split 'train': NetworkError: the"),
        ("body", "dataset 'some/where', split 'train': KeyError: 'body'"),
    ):
        task = Task(name="t", domain="hub", dataset=HubTask(path="some/where", text_field=field))
        with pytest.raises(DataError, match=f"^task 't'[:,] .*{told}"):
            tasks.load_examples(task, [domain], tmp_path)


def test_a_domain_called_na_is_no_empty_cell_of_a_tables_csv() -> None:
    """By hand: as docs/python.md says, only an empty cell has no number."""
    names = ["NA", "None", "nan", "null"]
    columns = tuple(Column("AP", name) for name in names)
    row = TableRow("Naive", (*(Cell((2.0,)) for _ in names[1:]), Cell(missing=True)))
    table = Table("t", "t", "Caption.", "Method", columns, (Block("", (row,)),))
    lines = [*csv.DictReader(io.StringIO(to_csv(table)))]
    assert [line["group"] for line in lines] == names
    assert [line["mean"] for line in lines] == ["2", "2", "2", ""]
    assert 'keep_default_na=False, na_values=""' in PYTHON_PAGE.read_text(encoding="utf-8")
