"""The base of all settings, and the messages for wrong ones."""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from benchmark.errors import UserError


class ConfigError(UserError):
    """Something a user wrote in a suite or on the command line cannot be right.

    The message names the error and the cure.
    """


class Settings(BaseModel):
    """The base of all settings: frozen, and a key that it does not know is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


Kind = TypeVar("Kind")


def validate(kind: type[Kind], content: Mapping[str, Any], place: str) -> Kind:
    """Make settings, or a method, of what a user wrote.

    Types are strict: a number is not accepted as text, nor a boolean as a number. Raises
    ConfigError, which says of each problem where it is, what it is, and which choices there are.
    """
    try:
        # strict mode takes JSON's lists for tuples. Dates, which no key takes, become text
        text = json.dumps(content, default=str)
        checked: Kind = _make_adapter(kind).validate_json(text, strict=True)  # type: ignore[arg-type]
        return checked
    except ValidationError as error:
        raise ConfigError(_describe_problems(error, place, kind)) from None
    except ValueError as error:  # of a __post_init__
        raise ConfigError(f"{place}: {error}") from None


@cache
def _make_adapter(kind: Any) -> TypeAdapter[Any]:
    if dataclasses.is_dataclass(kind):  # a method
        kind.__pydantic_config__ = Settings.model_config  # type: ignore[union-attr]
    return TypeAdapter(kind)


def _describe_problems(error: ValidationError, place: str, model: type) -> str:
    problems: dict[str, list[str]] = {}
    inputs: dict[str, str] = {}
    for problem in error.errors():
        path = _find_place(problem)
        key = f"{'.'.join(path):.80}"
        if problem["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
            choices = _list_fields_at(model, problem["loc"][:-1])
            problems[key] = [describe_unknown_key(path[-1], choices)]
        elif problem["type"] == "missing":
            problems[key] = ["missing"]
        else:
            message = problem["msg"].removeprefix("Value error, ")
            if key in problems:  # the key may have several types
                message = message.removeprefix("Input should be ")
            problems.setdefault(key, []).append(message)
            value = problem["input"]
            inputs[key] = "" if isinstance(value, dict) else f" (got {value!r:.80})"
    parts = []
    for key, messages in problems.items():
        if any(inner.startswith(f"{key}.") for inner in problems):
            continue  # the error is inside it
        alternatives = " or ".join(dict.fromkeys(messages))
        part = f"{key}: {alternatives}{inputs.get(key, '')}"
        parts.append(part.removeprefix(": "))
    return f"{place}: " + "; and ".join(parts)


def describe_unknown_key(key: str, choices: Sequence[str]) -> str:
    """The message for an unknown key, with the known keys as choices."""
    near = difflib.get_close_matches(key, choices, n=1)
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    return f"no such key{hint}; there are {', '.join(choices) or 'none'}"


def _find_place(problem: ErrorDetails) -> tuple[str, ...]:
    """The path to a problem, without the names that pydantic gives to the types of one key."""
    parts = tuple(map(str, problem["loc"]))
    types = re.compile(r"bool|int|float|str|.*[\[(-].*", re.DOTALL)
    names = [part for part in parts if not types.fullmatch(part)]
    if problem["type"] == "extra_forbidden" and types.fullmatch(parts[-1]):
        names.append(parts[-1])  # an unknown key is the user's word, whatever it looks like
    return tuple(names)


def _list_fields_at(model: Any, path: tuple[Any, ...]) -> list[str]:
    """The keys of the settings at a path in `model`, in alphabetical order."""
    for part in path:
        fields = getattr(model, "model_fields", {})
        if part not in fields:  # such as the index in a list
            continue
        annotation = fields[part].annotation
        types = [kind for kind in getattr(annotation, "__args__", ()) if isinstance(kind, type)]
        models = [kind for kind in types if issubclass(kind, BaseModel)]
        model = models[0] if models else annotation
    if dataclasses.is_dataclass(model):  # a method
        return sorted(field.name for field in dataclasses.fields(model) if field.init)
    return sorted(getattr(model, "model_fields", {}))


# one spelling, so that equal values have equal hashes
_encode = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False).encode


def digest(value: Any) -> str:
    """A short hash of anything JSON can hold, the same on every machine."""
    return hashlib.sha256(_encode(value).encode()).hexdigest()[:12]


# Ranges of numbers, and the form of names

NAME = r"^\w[\w-]*$"
ShareOfPhase = Annotated[float, Field(ge=0, le=1)]
DecayRate = Annotated[float, Field(ge=0, lt=1)]


def _check_all_differ(seeds: tuple[int, ...]) -> tuple[int, ...]:
    if len(set(seeds)) < len(seeds):
        raise ValueError("the same seed twice would count one run as two: give each once")
    return seeds


Seed = Annotated[int, Field(ge=0, le=2**53)]
Seeds = Annotated[tuple[Seed, ...], Field(min_length=1), AfterValidator(_check_all_differ)]
