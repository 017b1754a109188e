"""The base of everything that a suite can say, and what is said where it is wrong."""

from __future__ import annotations

import dataclasses
import difflib
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.config import JsonDict

# of a field: it holds a path, or paths, see benchmark/settings/suite_paths.py
PATH: JsonDict = {"path": "always"}
PATH_OR_NAME: JsonDict = {"path": "or name"}


class Settings(BaseModel):
    """Frozen; a key that it does not know is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


def validation_message(error: ValidationError, place: str, model: type) -> str:
    """One line a problem: where, what, the choices."""
    lines = []
    for problem in error.errors():
        path = ".".join(str(part) for part in problem["loc"])
        if problem["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
            choices = _fields_at(model, problem["loc"][:-1])
            near = difflib.get_close_matches(str(problem["loc"][-1]), choices, n=1)
            hint = f" (did you mean {near[0]!r}?)" if near else ""
            lines.append(f"{path}: no such key{hint}; there are {', '.join(choices) or 'none'}")
        elif problem["type"] == "missing":
            lines.append(f"{path}: missing")
        else:
            got = "" if isinstance(problem["input"], dict) else f" (got {problem['input']!r})"
            lines.append(f"{path + ': ' if path else ''}{problem['msg'].removeprefix('Value error, ')}{got}")
    return f"{place}: " + "\n  ".join(dict.fromkeys(lines))


def _fields_at(model: Any, path: tuple[Any, ...]) -> list[str]:
    for part in path:
        fields = getattr(model, "model_fields", {})
        if part not in fields:
            continue
        annotation = fields[part].annotation
        inner = [a for a in getattr(annotation, "__args__", ()) if isinstance(a, type) and issubclass(a, BaseModel)]
        model = inner[0] if inner else annotation
    if dataclasses.is_dataclass(model):  # a method
        return sorted(field.name for field in dataclasses.fields(model) if field.init)
    return sorted(getattr(model, "model_fields", {}))
