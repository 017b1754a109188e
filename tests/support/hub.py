"""A stand-in for the library `datasets`, for tests of what it returns and of its failures."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any


def stand_in(load_dataset: Callable[..., Any]) -> SimpleNamespace:
    """The library with this `load_dataset`. It says that all its data sets are parquet, not CSV."""

    def load_dataset_builder(*_: Any, **__: Any) -> SimpleNamespace:
        return SimpleNamespace(name="parquet")

    return SimpleNamespace(load_dataset=load_dataset, load_dataset_builder=load_dataset_builder)
