"""Ranges of numbers in suites, and what names may be."""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import Annotated

from pydantic import AfterValidator, Field

BILLION = 1_000_000_000
NAME = r"^[a-z][a-z0-9_]*$"
RESERVED = ("auto", "none")  # what --domain and --prompt take for no domain
Rate = Annotated[float, Field(gt=0, le=100)]
ShareOfPhase = Annotated[float, Field(ge=0, le=1)]
Moment = Annotated[float, Field(ge=0, lt=1)]
Amount = Annotated[float, Field(gt=0, le=1e30)]


def _all_differ(seeds: tuple[int, ...]) -> tuple[int, ...]:
    if len(set(seeds)) < len(seeds):
        raise ValueError("the same seed twice would count one run as two: give each once")
    return seeds


def _shows(title: str) -> str:
    if title and not title.strip():
        raise ValueError("blanks alone show as nothing: write a word, or leave it out")
    return title


def _known_backend(name: bool | str) -> bool | str:
    known = BACKENDS | {one.name for one in entry_points(group="torch_dynamo_backends")}
    if isinstance(name, str) and name not in known:
        raise ValueError(f"torch.compile knows no {name!r}: one of {', '.join(sorted(known))}")
    return name


# Those of torch for training, which is not asked here: that would take seconds. A package may bring more.
BACKENDS = {"inductor", "cudagraphs", "eager", "aot_eager", "openxla", "tvm", "onnxrt"}
Backend = Annotated[bool | str, AfterValidator(_known_backend)]
Seed = Annotated[int, Field(ge=0, le=2**53)]
Seeds = Annotated[tuple[Seed, ...], Field(min_length=1), AfterValidator(_all_differ)]
Title = Annotated[str, AfterValidator(_shows)]
