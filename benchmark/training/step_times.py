"""Seconds per step on a named machine: the table behind budgets of the unit `reference`.

If each step is charged these seconds, any machine can repeat a comparison under equal wall time.
`run_all.py speed` writes the table: JSON, with the machine that was measured (`machine`) and each
row of the suite (`rows`). The times of an unmeasured row are estimated: Naive's seconds, times the
row's FLOPs over Naive's. If Naive was not measured at a run's settings, its times at the nearest
settings are scaled by the ratio of FLOPs.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import structs
from pydantic_core import to_jsonable_python

from benchmark.files import write_json
from benchmark.ledger.records import Hardware
from benchmark.settings.base import ConfigError
from benchmark.settings.decides import find_decides
from benchmark.settings.names import ROOT
from benchmark.settings.suite import RunConfig, Size
from benchmark.training.evaluation_time import count_parameters

Seconds = Annotated[float, msgspec.Meta(ge=0)]


class StageTimes(msgspec.Struct, frozen=True, omit_defaults=True):
    """Seconds that a method takes before its first step, and per step of each of its phases.

    `estimated`: the times are Naive's. The method's follow from its FLOPs when it is trained.
    """

    set_up: Seconds
    phases: dict[str, Seconds]
    estimated: bool = False


class RowTimes(msgspec.Struct, frozen=True):
    """The times of a row. `settings` are those on which the time of a step depends."""

    method: str
    options: dict[str, Any]
    settings: dict[str, Any]
    stages: tuple[StageTimes, ...]


class Table(msgspec.Struct, frozen=True):
    machine: Hardware
    rows: tuple[RowTimes, ...]


TIMED = ("model", "tokenizer", "data", "training")  # sections whose settings may change step times


def list_settings(config: RunConfig) -> dict[str, Any]:
    """The settings that the time of a step depends on besides method, options and machine.

    They are by dotted key, and include settings with their default.
    """
    settings: dict[str, Any] = {}
    for section in TIMED:
        content = getattr(config, section)
        values = content.model_dump(mode="json")
        for name, field in type(content).model_fields.items():
            decides = find_decides(field)
            if decides is None or decides.step_time:
                settings[f"{section}.{name}"] = values[name]
    return settings


@cache
def list_defaults() -> dict[str, Any]:
    """The default of each setting in `TIMED` that has one, by dotted key."""
    defaults = {}
    for section in TIMED:
        kind = RunConfig.model_fields[section].annotation
        assert kind
        for name, field in kind.model_fields.items():
            if not field.is_required():
                defaults[f"{section}.{name}"] = to_jsonable_python(field.default)
    return defaults


def write(path: Path, rows: Sequence[RowTimes], machine: Hardware) -> None:
    table = Table(machine=machine, rows=tuple(rows))
    write_json(path, msgspec.to_builtins(table), indent=1)


def merge(path: Path, rows: Sequence[RowTimes], machine: Hardware) -> None:
    """Add rows to the table in a file.

    They replace rows of the same method, options and settings. Raises ConfigError as
    `read_for_machine` does.
    """

    def is_replaced(row: RowTimes) -> bool:
        for new in rows:
            is_same_method = (row.method, row.options) == (new.method, new.options)
            if is_same_method and is_alike(row.settings, new.settings):
                return True
        return False

    old_rows = [row for row in read_for_machine(path, machine) if not is_replaced(row)]
    write(path, [*old_rows, *rows], machine)


def read_for_machine(path: Path, machine: Hardware) -> Sequence[RowTimes]:
    """The rows of the table in a file, or an empty tuple if there is no file.

    Raises ConfigError if they were measured on another kind of machine. Nodes may differ.
    """
    if not path.exists():
        return ()
    table = _read(path, path.stat().st_mtime_ns)
    recorded = structs.asdict(table.machine)
    present = structs.asdict(machine)
    different = [name for name in recorded if name != "node" and recorded[name] != present[name]]
    if different:
        name = different[0]
        raise ConfigError(
            f"{path} has step times of another machine: its {name} is {recorded[name]!r}, and here "
            f"it is {present[name]!r}; give --reference another file"
        )
    return table.rows


@lru_cache(maxsize=4)
def _read(path: Path, changed: int) -> Table:
    """The table in a file.

    `changed`, the time of its last write, is part of the cache's key: a changed file is read again.
    """
    try:
        content = path.read_text(encoding="utf-8")
        return msgspec.json.decode(content, type=Table)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise ConfigError(
            f"budget.reference: {path} is no table of step times ({error}): measure it with "
            "`run_all.py speed`"
        ) from None


def find_times(config: RunConfig, phases: Sequence[Collection[str]] = ()) -> Sequence[StageTimes]:
    """The times of each stage in the table that a run's budget names.

    They are zeros if the budget names none. If the run's row is not in the table, they are Naive's,
    marked `estimated`. `phases` has the names of each stage's phases: a row that lacks one was
    measured before the method had it, and does not count. Raises ConfigError if there is no such
    table, or if it has no times, because then no row has a budget.
    """
    if not config.budget.reference:
        return [StageTimes(0.0, {})] * len(config.domains)
    path = Path(config.budget.reference)
    # suites that come with the project name it from the project's folder
    if not path.exists() and (ROOT / path).exists():
        path = ROOT / path
    if not path.exists():
        raise ConfigError(
            f"budget.reference: {path} is no table of step times, it is not there; measure it: "
            f"`run_all.py speed SUITE --reference {path}`"
        )
    rows = _read(path, path.stat().st_mtime_ns).rows
    settings = list_settings(config)
    for row in rows:
        is_same_method = (row.method, row.options) == (config.method, config.options)
        has_all_stages = len(row.stages) >= len(config.domains)
        has_all_phases = all(
            times.phases.keys() >= {*names}
            for times, names in zip(row.stages, phases, strict=False)
        )
        is_measured = is_same_method and has_all_stages and has_all_phases
        if is_measured and is_alike(row.settings, settings):
            return row.stages
    naive = estimate_naive(rows, config)
    if not naive:
        raise ConfigError(
            f"budget.reference: {path} has no step times: measure them with "
            f"`run_all.py speed SUITE --reference {path}`"
        )
    if config.method != "naive":
        naive = [structs.replace(times, estimated=True) for times in naive]
    rest = len(config.domains) - len(naive)
    repeats = [naive[-1]] * rest  # as many stages as the run has
    return [*naive, *repeats]


def estimate_naive(rows: Sequence[RowTimes], config: RunConfig) -> Sequence[StageTimes]:
    """Naive's times at a run's settings, of each stage that was measured.

    If Naive was not measured at them, the times are marked `estimated`. They are then its times at
    the nearest settings (fewest differ, then FLOPs differ least), scaled by the ratio of FLOPs per
    step. If Naive was never measured, the first stage of another method serves, because most
    methods equal Naive there: its phase `adapt`, or else its longest phase. Returns an empty
    sequence if nothing was measured.
    """
    settings = _select_settings_of_naive(list_settings(config))

    def measure_distance(row: RowTimes) -> tuple[bool, int, float]:
        measured = _select_settings_of_naive(row.settings)
        differing = sum(not is_alike(measured, {key: value}) for key, value in settings.items())
        distance = abs(math.log(compare_flops(settings, measured)))
        return row.method != "naive", differing, distance

    usable = [row for row in rows if row.stages and row.stages[0].phases]
    if not usable:
        return ()
    row = min(usable, key=measure_distance)
    is_other_method, differing, _ = measure_distance(row)
    is_estimated = is_other_method or differing > 0
    scale = compare_flops(settings, row.settings)  # 1 if Naive was measured at these settings
    estimates = []
    for times in row.stages if row.method == "naive" else row.stages[:1]:
        seconds = times.phases.get("adapt", max(times.phases.values(), default=0.0))
        estimates.append(StageTimes(times.set_up, {"adapt": scale * seconds}, is_estimated))
    return estimates


def compare_flops(settings: dict[str, Any], measured: dict[str, Any]) -> float:
    """The FLOPs of a step of Naive, divided by its FLOPs at the measured settings.

    Both are approximated by parameters times tokens.
    """

    def multiply(values: dict[str, Any]) -> float:
        size = Size.model_validate(values["model.ladder"][0])
        tokens: int = values["training.batch_size"] * values["data.sequence_length"]
        return tokens * count_parameters(size, values["tokenizer.vocabulary"])

    return multiply(settings) / multiply(measured)


def is_alike(measured: dict[str, Any], settings: dict[str, Any]) -> bool:
    """Whether settings equal the measured ones.

    A setting that is missing or null had its default, because the table is older than the setting.
    """
    for key, value in settings.items():
        recorded = measured.get(key)
        if recorded is None:
            recorded = list_defaults().get(key)
        if recorded != value:
            return False
    return True


def _select_settings_of_naive(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings that the time of Naive's step depends on.

    Naive keeps the first size, and has no memory.
    """
    selection = {}
    for key, value in settings.items():
        if key != "data.memory_tokens":
            selection[key] = value
    selection["model.ladder"] = settings["model.ladder"][:1]
    return selection
