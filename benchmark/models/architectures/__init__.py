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


def load(name: str) -> Architecture:
    """The record in NAME.py. Raises ConfigError with the choices where there is no such file."""
    try:
        return importlib.import_module(f"{__name__}.{known_architecture(name)}").ARCHITECTURE
    except ValueError as error:
        raise ConfigError(str(error)) from None


def of(model_type: str) -> Architecture:
    """The record of a network whose configuration has this `model_type`. Raises ConfigError where there is none."""
    records = [load(name) for name in architecture_names()]
    for record in records:
        if model_type in record.model_types:
            return record
    known_types = ", ".join(sorted(kind for record in records for kind in record.model_types))
    raise ConfigError(f"unknown architecture {model_type!r}; known are {known_types}")
