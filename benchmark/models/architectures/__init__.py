"""The architectures, one a file; the file's name is the architecture's name, and its `ARCHITECTURE` the record.

No other file asks for an architecture or a model type by name: it asks the record. A file in another folder counts
too, once that folder is appended to `benchmark.settings.names.ARCHITECTURE_FOLDERS`.
"""

from __future__ import annotations

import importlib

from benchmark.models.architecture import Architecture
from benchmark.settings.base import ConfigError
from benchmark.settings.names import ARCHITECTURE_FOLDERS, architecture_names, known_architecture

__path__ = ARCHITECTURE_FOLDERS

_loaded: dict[str, Architecture] = {}


def load(name: str) -> Architecture:
    """The record in NAME.py. Raises ConfigError with the choices where there is no such file."""
    if name not in _loaded:
        try:
            _loaded[name] = importlib.import_module(f"{__name__}.{known_architecture(name)}").ARCHITECTURE
        except ValueError as error:
            raise ConfigError(str(error)) from None
    return _loaded[name]


def of(model_type: str) -> Architecture:
    """The record of a network whose configuration has this `model_type`. Raises ConfigError where there is none.

    Files that are imported already are asked first: importing one takes a while.
    """
    model_types: list[str] = []
    for name in [*_loaded, *(name for name in architecture_names() if name not in _loaded)]:
        record = load(name)
        if model_type in record.model_types:
            return record
        model_types.extend(record.model_types)
    raise ConfigError(f"unknown architecture {model_type!r}; known are {', '.join(sorted(model_types))}")
