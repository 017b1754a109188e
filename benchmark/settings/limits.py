"""Ranges of numbers in suites, and what names may be."""

from __future__ import annotations

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


Seed = Annotated[int, Field(ge=0, le=2**53)]
Seeds = Annotated[tuple[Seed, ...], Field(min_length=1), AfterValidator(_all_differ)]
