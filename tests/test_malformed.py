"""Malformed input ends in one clear line. Oracle: exit code 2, the place in the line, and no file written."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

import methods
from benchmark.errors import UserError
from tests.support import malformed
from tests.support.malformed import Case, unclear

GROUPS = (malformed.rules, malformed.files, malformed.command_lines, malformed.tables, malformed.texts)
OF_WHAT_IS_TRAINED = (malformed.models, malformed.records, malformed.studies)


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("malformed")
    malformed.fill(folder)
    return folder


@pytest.mark.parametrize("group", (*GROUPS, *OF_WHAT_IS_TRAINED), ids=lambda group: group.__name__)
def test_each_case_ends_in_one_clear_line(group: Callable[..., Iterable[Case]], place, tmp_path) -> None:
    cases = group(place) if group in OF_WHAT_IS_TRAINED else group()
    ends = [(case, unclear(case, place, tmp_path / str(number))) for number, case in enumerate(cases)]
    assert not [f"{case.command} {' '.join(case.more)[:100]}: {why}" for case, why in ends if why]


@pytest.mark.parametrize("name", methods.names())
def test_what_training_fills_is_no_option(name: str) -> None:
    """Oracle: the fields of its class that cannot be given."""
    kind: Any = methods.find(name)
    schema = methods._adapter(kind).json_schema()["properties"]
    for field in (field.name for field in dataclasses.fields(kind) if not field.init):
        with pytest.raises(UserError, match=field):
            methods.build(name, {field: schema[field].get("default", 1)})


def test_the_check_sees_what_is_unclear(place, tmp_path) -> None:
    """Oracle: a command that is right, and one whose line names another thing."""
    other = malformed.set_to("no_such=1", names="something else")
    assert unclear(Case(malformed.DRY_RUN, "x"), place, tmp_path / "1").startswith("accepted")
    assert unclear(other, place, tmp_path / "2").startswith("does not name")
