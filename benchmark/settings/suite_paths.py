"""Paths in a suite are relative to the file in which they stand, wherever commands are started from.

The fields that hold paths say so (`PATH`, `PATH_OR_NAME`); what they hold is made relative to the current folder when
a file is read, before suites are merged. A path that begins with `${NAME}` is as the environment has it, one of `--set`
as the shell would take it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

from benchmark.settings.base import Settings
from benchmark.settings.config import ConfigError, Row, Suite

AS_THEY_ARE = ("/", "~", "${")


def located(content: Mapping[str, Any], file: Path, settings: type[Settings] = Suite) -> dict[str, Any]:
    """The content of a suite file, or of a section of it, with its paths relative to the current folder.

    What is of another type than its field stays as it is: validation says so. Raises ConfigError for a path that is
    meant from the current folder.
    """
    return {key: _value(settings, key, value, file) for key, value in content.items()}


def _value(settings: type[Settings], key: str, value: Any, file: Path) -> Any:
    if settings is Row and key == "set" and isinstance(value, dict):  # dotted keys of the suite
        return {path: _value(*_owner(path), inner, file) for path, inner in value.items()}
    if key not in settings.model_fields:
        return value
    kind = (settings.model_fields[key].json_schema_extra or {}).get("path")  # type: ignore[union-attr]
    if isinstance(value, list):
        return [_one(settings, key, inner, kind, file) for inner in value]
    return _one(settings, key, value, kind, file)


def _one(settings: type[Settings], key: str, value: Any, kind: Any, file: Path) -> Any:
    if kind and isinstance(value, str):
        return _path(value, kind == "or name", key, file)
    inner = next(_inner(settings.model_fields[key].annotation), None)
    return located(value, file, inner) if inner and isinstance(value, dict) else value


def _path(value: str, or_name: bool, key: str, file: Path) -> str:
    if value.startswith(AS_THEY_ARE):
        return value
    found = os.path.normpath(file.parent / value)
    if or_name and not os.path.isdir(found):  # on the Hub, or missing: then nobody is to be asked for it
        return os.path.join(os.curdir, found) if value.startswith(".") else value
    if not or_name and not os.path.exists(found) and os.path.exists(value):
        beside = os.path.relpath(value, file.parent)
        raise ConfigError(f"{file}: {key}: {value!r} is not there: paths are relative to this file; write {beside!r}")
    return found


def _owner(path: str) -> tuple[type[Settings], str]:
    """The settings that have a dotted key, and its last part."""
    settings: type[Settings] = Suite
    *parents, last = path.split(".")
    for part in parents:
        field = settings.model_fields.get(part)
        settings = next(_inner(field.annotation), Settings) if field else Settings
    return settings, last


def _inner(annotation: Any) -> Iterator[type[Settings]]:
    """The settings that a field holds, or holds a list of."""
    if isinstance(annotation, type) and issubclass(annotation, Settings):
        yield annotation
    for part in get_args(annotation):
        yield from _inner(part)
