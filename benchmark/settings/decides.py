"""What a setting decides, which its field declares once: `Annotated[float, WEIGHTS]`.

`describe` selects settings by what they decide, and leaves out settings at their default. Keys of
results are hashes of such descriptions, so a new setting changes none of them. A field that
contains settings, such as `RunConfig.training`, declares nothing, because its own fields do.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, get_args

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import to_jsonable_python

Purpose = Literal["weights", "text", "rows", "score", "fine-tuning", "place", "nothing"]


@dataclass(frozen=True)
class Decides:
    """What a setting decides.

    "weights": weights of a model, "text": tokens of texts and examples of tasks, "rows": which runs
    and numbers tables show, "score": the score of a task, "fine-tuning": only its score by
    fine-tuning, "place": where files lie on this machine, "nothing": none of these. `step_time`: it
    also decides how long a training step takes.
    """

    purpose: Purpose
    step_time: bool = False


WEIGHTS = Decides("weights")
STEPS = Decides("weights", step_time=True)
TEXT = Decides("text")
ROWS = Decides("rows")
SCORE = Decides("score")
FINE_TUNING = Decides("fine-tuning")
PLACE = Decides("place")
NOTHING = Decides("nothing")


def find_decides(field: FieldInfo) -> Decides | None:
    """What a field decides, None for a field that contains settings."""
    return next((mark for mark in field.metadata if isinstance(mark, Decides)), None)


def describe(settings: BaseModel, *purposes: Purpose) -> dict[str, Any]:
    """The settings with one of these purposes, as JSON has them, except those at their default."""
    content: dict[str, Any] = {}
    for name, default, decides in _list_own_fields(type(settings)):
        value = getattr(settings, name)
        if value == default:
            continue
        if decides is None:
            inner = _describe_inner(value, purposes)
            if inner:
                content[name] = inner
        elif decides.purpose in purposes:
            content[name] = to_jsonable_python(value)
    return content


@cache
def _list_own_fields(model: type[BaseModel]) -> list[tuple[str, Any, Decides | None]]:
    """Each field of a model, with its default and what it decides."""
    fields = []
    for name, field in model.model_fields.items():
        default = field.get_default(call_default_factory=True)
        fields.append((name, default, find_decides(field)))
    return fields


def _describe_inner(value: Any, purposes: tuple[Purpose, ...]) -> Any:
    """The description of settings, or of each in a tuple, empty if no part has any."""
    if isinstance(value, BaseModel):
        return describe(value, *purposes)
    if isinstance(value, tuple):
        inner = [_describe_inner(part, purposes) for part in value]
        return inner if any(inner) else []
    return None


def flatten(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings as one mapping by dotted key, as `--set` has them."""
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def find_settings(annotation: Any) -> list[type[BaseModel]]:
    """The settings classes in a field's type."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    found = []
    for part in get_args(annotation):
        found += find_settings(part)
    return found


@cache
def list_purposes(model: type[BaseModel], prefix: str = "") -> dict[str, Purpose]:
    """The purpose of each setting, by dotted key, also inside of sections and lists."""
    purposes: dict[str, Purpose] = {}
    for name, field in model.model_fields.items():
        decides = find_decides(field)
        if decides:
            purposes[f"{prefix}{name}"] = decides.purpose
            continue
        for kind in find_settings(field.annotation):
            purposes |= list_purposes(kind, f"{prefix}{name}.")
    return purposes


def find_differences(
    recorded: Mapping[str, Any], current: Mapping[str, Any], longest: int | None = 60
) -> list[str]:
    """Each setting that differs, in words: `training.max_grad_norm: none, was 1.0`.

    Both are descriptions, in which a missing setting has its default. Values are cut after
    `longest` characters.
    """
    old_values = flatten(_name_entries(recorded))
    values = flatten(_name_entries(current))
    differences = []
    for key in {**old_values, **values}:
        if old_values.get(key) != values.get(key):
            value = show_value(values.get(key))
            old_value = show_value(old_values.get(key))
            differences.append(f"{key}: {value[:longest]}, was {old_value[:longest]}")
    return differences


def _name_entries(content: Any) -> Any:
    """The same content, with each list of named entries as a mapping by name."""
    if isinstance(content, Mapping):
        return {key: _name_entries(value) for key, value in content.items()}
    is_list = isinstance(content, list) and bool(content)
    if is_list and all(isinstance(entry, Mapping) and "name" in entry for entry in content):
        return {entry["name"]: _name_entries(entry) for entry in content}
    return content


def show_value(value: Any) -> str:
    """A setting's value for people."""
    if value is None:
        return "none"
    return json.dumps(value, ensure_ascii=False)
