"""Text that is not all there: a link that leads out of a package, a network that fails in the
middle of a data set.
"""

from __future__ import annotations

import sys
import types
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest

from benchmark.data import corpus
from benchmark.data.documents import DataError
from benchmark.downstream import tasks
from benchmark.settings.tasks import HubTask, Task
from benchmark.settings.texts import Domain, HubDataset


class NetworkError(Exception):
    """No OSError, as those of httpx and aiohttp are none."""


class Rows(list):
    """Two rows of a data set, and no more."""

    features: ClassVar[dict[str, object]] = {}

    def __iter__(self) -> Iterator[dict[str, object]]:
        yield {"text": "one", "label": 0}
        yield {"text": "two", "label": 1}
        raise NetworkError("the server went away")


def test_a_network_that_fails_in_the_middle_names_the_data_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By hand: both rows come, then an error with the data set and the network's words; a field
    that lacks is named.
    """
    module = types.SimpleNamespace(load_dataset=lambda *_, **__: Rows())
    monkeypatch.setitem(sys.modules, "datasets", module)
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
