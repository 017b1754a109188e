"""The methods, one per file.

The file's name is the method's name. Adding a file adds a method everywhere. See
docs/adding_a_method.md.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import importlib
import pkgutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from benchmark.settings.base import ConfigError, validate
from benchmark.settings.load import expand, load_study
from benchmark.settings.names import find_equal_labels, list_suite_names
from benchmark.settings.optimizers import Optimizer
from benchmark.settings.suite import Row, RunConfig, Suite
from benchmark.training.method import Group, LifelongMethod, find_own_optimizer


def list_names() -> list[str]:
    """Names of all methods, in alphabetical order."""
    names = [module.name for module in pkgutil.iter_modules(__path__)]
    return sorted(name for name in names if not name.startswith("_"))


@functools.cache
def find(name: str) -> type[LifelongMethod]:
    """The class in `methods/NAME.py`.

    Raises ConfigError if there is no such file, if it is no valid Python, or if it does not define
    exactly one method, a dataclass.
    """
    names = list_names()
    if name not in names:
        near = difflib.get_close_matches(name, names, n=1)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        if name in list_suite_names() or name.endswith(".toml"):
            hint = " (a suite comes before --methods)"
        raise ConfigError(f"no method {name!r}{hint}; there are {', '.join(names)}")
    try:
        module = importlib.import_module(f"{__name__}.{name}")
    except SyntaxError as error:
        raise ConfigError(
            f"{error.filename}:{error.lineno}: {error.msg}: mend it, or move it out of methods/"
        ) from None
    classes = [value for value in vars(module).values() if isinstance(value, type)]
    types = [
        kind
        for kind in classes
        if issubclass(kind, LifelongMethod) and kind.__module__ == module.__name__
    ]
    if len(types) != 1:
        raise ConfigError(
            f"methods/{name}.py must define exactly one subclass of LifelongMethod, it has "
            f"{len(types)}"
        )
    if not dataclasses.is_dataclass(types[0]):
        raise ConfigError(
            f"{types[0].__name__} in methods/{name}.py must be a dataclass: its fields are its "
            "options"
        )
    return types[0]


def build(name: str, options: Mapping[str, Any] | None = None) -> LifelongMethod:
    """The method with its options.

    Raises ConfigError for an unknown or ill-typed option. Its message names the options.
    """
    kind = find(name)
    place = f"options of method {name!r}"
    method = validate(kind, options or {}, place)
    return validate(kind, method.options(), place)  # checks defaults too


def list_rows(suite: Suite, only: tuple[str, ...] = ()) -> list[Row]:
    """The rows of a suite with groups of methods resolved and options merged.

    If `only` names methods, only their rows are returned. If the suite has no row for such a
    method, the method gets one.
    """
    return [row for row in _list_all_rows(suite, only) if not only or row.method in only]


def _list_all_rows(suite: Suite, names: tuple[str, ...]) -> list[Row]:
    """The rows of a suite, then one for each of `names` that has no row there.

    Raises ConfigError if there are no rows, for options of a method without a row, for options that
    `build` refuses, and for rows of equal names.
    """
    rows: list[Row] = []
    for entry in suite.methods:
        if entry in get_args(Group):
            # a group means its methods, except those that the suite also names one by one
            candidates = [name for name in list_names() if name not in suite.methods]
            members = [name for name in candidates if find(name).group == entry]
        else:
            members = [entry]
        for name in members:
            rows.append(Row(method=name))
    rows += suite.rows
    has_row = {row.method for row in rows}
    for name in dict.fromkeys(names):
        if name not in has_row:
            rows.append(Row(method=name))
    if not rows:
        raise ConfigError(f"suite {suite.name!r} has no rows: name some methods, or give rows")
    unknown = set(suite.options) - {row.method for row in rows}
    if unknown:
        raise ConfigError(
            f"suite {suite.name!r}: options for {', '.join(sorted(unknown))}, which it has no row "
            "for: leave them out, or add such a row"
        )
    resolved = []
    for row in rows:
        options = {**suite.options.get(row.method, {}), **row.options}
        build(row.method, options)  # a misspelt option fails here, not on the node
        title = row.name or find(row.method).title
        resolved.append(row.model_copy(update={"name": title, "options": options}))
    _check_names(suite, resolved)
    return resolved


def _check_names(suite: Suite, rows: Sequence[Row]) -> None:
    """Raise ConfigError if `find_equal_labels` finds rows with equal names."""
    repeated = find_equal_labels(row.name for row in rows)
    if not repeated:
        return
    files = dict.fromkeys(f"methods/{row.method}.py" for row in rows if row.name in repeated)
    cure = f"give {' and '.join(files)} other titles, or" if len(files) > 1 else "give"
    raise ConfigError(
        f"suite {suite.name!r} has more than one row named {', '.join(repeated)}: {cure} the rows "
        "names that differ in more than spaces, hyphens and letter case"
    )


def list_runs(
    suite: Suite,
    only: tuple[str, ...] = (),
    seeds: Iterable[int] = (),
    find_start: Callable[[RunConfig], RunConfig | None] | None = None,
) -> list[RunConfig]:
    """The runs of a suite, only of the methods in `only`, and with these seeds.

    By default these are all methods and the suite's seeds. If a run's start model is gone,
    `find_start` is asked for the run with the settings that followed from that model. Raises
    ConfigError if it is not given, or returns None.
    """
    rows = _list_all_rows(suite, only)  # all rows, so that each keeps its place and colour
    runs = expand(suite, rows, seeds or suite.seeds, _find_own_optimizer)
    configs = [config for config in runs if not only or config.method in only]
    if not any(config.model.start for config in configs):
        return configs
    from benchmark.models.start_model import StartModelGone, resolve_start_model  # it imports torch

    resolved = []
    for config in configs:
        try:
            resolved.append(resolve_start_model(config))
        except StartModelGone:
            found = find_start(config) if find_start else None
            if found is None:
                raise
            resolved.append(found)
    return resolved


def _find_own_optimizer(row: Row) -> Optimizer | None:
    method = build(row.method, row.options)
    try:
        return find_own_optimizer(method)
    except ValueError as error:
        raise ConfigError(f"methods/{row.method}.py: optimizer: {error}") from None


def load_study_runs(study: Path) -> list[tuple[Suite, list[RunConfig]]]:
    """The suites in a study's folder as they are written, and all of their runs.

    Raises ConfigError for a suite with a group of methods, because a study must stay the same when
    files in `methods/` change.
    """
    suites = load_study(study)
    for suite in suites:
        groups = [name for name in suite.methods if name in get_args(Group)]
        if groups:
            raise ConfigError(
                f"{suite.command_arguments}: methods has {groups[0]!r}, which means all files in "
                "methods/ of that kind; a study names its methods one by one: write them there"
            )
    return [(suite, list_runs(suite)) for suite in suites]
