"""Milliseconds of a step on a named machine: the table behind budgets of the unit `reference`.

Steps times these seconds replay a comparison under equal wall time on any other machine. `run_all.py speed` writes the
table: JSON, with the machine that was measured (`machine`) and each row of the suite (`rows`).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any

import msgspec

from benchmark.files import write_json
from benchmark.records import Hardware
from benchmark.settings.base import ConfigError
from benchmark.settings.names import ROOT
from benchmark.settings.suite import Model, RunConfig

Seconds = Annotated[float, msgspec.Meta(ge=0)]


class StageTimes(msgspec.Struct, frozen=True):
    """Seconds of what a method does before its first step, and of a step of each of its phases."""

    set_up: Seconds
    phases: dict[str, Seconds]


class RowTimes(msgspec.Struct, frozen=True):
    """`settings` are those that the time of a step depends on."""

    method: str
    options: dict[str, Any]
    settings: dict[str, Any]
    stages: tuple[StageTimes, ...]


class Table(msgspec.Struct, frozen=True):
    machine: Hardware
    rows: tuple[RowTimes, ...]


def list_settings(config: RunConfig) -> dict[str, Any]:
    """The settings that the time of a step depends on besides method, options and machine, by dotted key."""
    relevant = {
        "model": set(Model.model_fields) - {"init"},
        "tokenizer": {"folder", "vocabulary"},
        "data": {"sequence_length", "memory_tokens", "document_mask"},
        "training": {"batch_size", "micro_batch_size", "clip", "precision", "compile", "shard"}
        | {"optimizer", "optimizer_options"},
    }
    content = config.model_dump(mode="json", include=relevant)
    return {f"{room}.{key}": content[room].get(key) for room, keys in relevant.items() for key in sorted(keys)}


def write(path: Path, rows: Sequence[RowTimes], machine: Hardware) -> None:
    write_json(path, msgspec.to_builtins(Table(machine, tuple(rows))), indent=1)


@lru_cache(maxsize=4)
def _read(path: Path, changed: int) -> Table:
    """The table in a file, read once for many runs; `changed`: when the file was last written."""
    try:
        return msgspec.json.decode(path.read_text(encoding="utf-8"), type=Table)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise ConfigError(
            f"budget.reference: {path} is no table of step times ({error}): measure it with `run_all.py speed`"
        ) from None


def find_times(config: RunConfig) -> Sequence[StageTimes]:
    """The times of each stage in the table that a run's budget names; zeros where the budget names none.

    Raises ConfigError when there is no such table, or the run is not in it.
    """
    if not config.budget.reference:
        return [StageTimes(0.0, {})] * len(config.domains)
    given = Path(config.budget.reference)
    # as a suite that comes with the project says it
    path = given if given.exists() or not (ROOT / given).exists() else ROOT / given
    cure = f"measure it: `run_all.py speed {config.suite} --reference {path}`"
    if not path.exists():
        raise ConfigError(f"budget.reference: {path} is no table of step times, it is not there; {cure}")
    settings = list_settings(config)
    for row in _read(path, path.stat().st_mtime_ns).rows:
        is_asked_for = (row.method, row.options) == (config.method, config.options)
        # what has its default is left out of either
        is_alike = is_asked_for and all(row.settings.get(key) == value for key, value in settings.items())
        if is_alike and len(row.stages) >= len(config.domains):
            return row.stages
    raise ConfigError(
        f"{path} has no step times of {config.method} with options {config.options} and the other settings of row "
        f"{config.row!r}; {cure}"
    )
