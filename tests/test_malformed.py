"""Malformed input ends in one clear line. Oracle: exit code 2, the place in the line, and no file written."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

import methods
from benchmark.errors import UserError
from benchmark.settings.load import refuse_files
from tests.support.malformed import Case, commands, handed, making, settings, texts, trained, unclear
from tests.support.thorough import one_in

GROUPS = (
    *(settings.keys, settings.entries, settings.options, settings.rules, settings.lists),
    *(settings.names, settings.files, settings.sites),
    *(commands.commands, commands.other_commands, commands.step_times, commands.chosen_options),
    *(commands.folders, commands.empty, commands.pipes),
    *(texts.corpora, texts.places, texts.tasks, trained.models, trained.other_models, trained.records),
    *(trained.jobs, trained.scored),
    *(handed.studies, handed.moved, handed.starts, handed.published),
    *(handed.overflowing, handed.pipes_in_models),
)


EVERY = 2


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("malformed")
    with pytest.MonkeyPatch.context() as patch:
        for name in making.SECRETS:
            patch.setenv(name, making.SECRET)
        making.fill(folder)
    return folder


def test_no_secret_of_the_environment_is_written(place) -> None:
    """Oracle: the bytes of all that a suite has left that was trained and reported: records, logs, models, reports."""
    files = [path for path in place.rglob("*") if path.is_file()]
    assert len(files) > 30 and any(path.suffix == ".html" for path in files)
    assert not [path for path in files if making.SECRET.encode() in path.read_bytes()]


@pytest.mark.parametrize("group", GROUPS, ids=lambda group: group.__name__)
def test_each_case_ends_in_one_clear_line(group: Callable[[], Iterable[Case]], place, tmp_path) -> None:
    cases = enumerate(one_in(EVERY, group()))
    ends = {case.name: unclear(case, place, tmp_path / str(number)) for number, case in cases}
    assert not {name: why for name, why in ends.items() if why}


def test_there_are_enough_of_them(place) -> None:
    assert len({case.name for group in GROUPS for case in one_in(EVERY, group())}) >= 500


def has_a_range(option: Mapping[str, Any]) -> bool:
    """Whether the JSON schema of an option leaves out values of its type."""
    if "anyOf" in option:
        return all(map(has_a_range, option["anyOf"]))
    if option.get("type") == "array":
        return has_a_range(option["items"])
    lower, upper = ({f"{end}imum", f"exclusive{end.title()}imum"} & option.keys() for end in ("min", "max"))
    return bool(
        {"enum", "const", "pattern"} & option.keys() or option.get("type") in ("boolean", "null") or (lower and upper)
    )


@pytest.mark.parametrize("name", methods.names())
def test_every_option_of_a_method_has_a_range(name: str) -> None:
    """Oracle: the schema that pydantic makes of its annotation: choices, or a least and a greatest value. What is no
    option, but a field that training fills, cannot be given."""
    kind: Any = methods.find(name)
    schema = methods._adapter(kind).json_schema()["properties"]
    options = {field.name: field.init for field in dataclasses.fields(kind)}
    assert not [option for option, given in options.items() if given and not has_a_range(schema[option])]
    for filled in (option for option, given in options.items() if not given):
        with pytest.raises(UserError, match=filled):
            methods.build(name, {filled: schema[filled].get("default", 1)})


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs a folder in which not even root can make a file")
@pytest.mark.parametrize(
    ("option", "command"),
    [
        *((option, ("run", making.SUITE, *making.PLACES)) for option in ("--out", "--runs")),
        ("--out", ("run", making.SUITE, "--dry-run", *making.PLACES)),
        ("--out", ("tune", making.SUITE, *making.PLACES)),
        ("--out", ("report", making.SUITE, *making.PLACES)),
        ("--out", ("track", making.SUITE, "--to", "tensorboard", *making.RUNS)),
        ("--reference", ("speed", making.SUITE, *making.RUNS)),
        ("--out", ("grow", "{place}/none", "--layers", "3", "--width", "64")),
        ("DIR", ("export", "{place}/none")),
    ],
)
def test_what_could_not_be_written_in_the_end_is_said_at_once(option, command, place, tmp_path) -> None:
    """Oracle: /proc, where the kernel lets nobody make a file, root included; no command gets as far as to see that
    the model that it is given is not there."""
    given = (*command, *(option,) * option.startswith("--"), "/proc/self/new/one")
    said = f"{option} /proc/self/new{'' if option == '--reference' else '/one'}: cannot write into /proc/self ("
    assert not unclear(Case(option, given, (said,)), place, tmp_path / "here")


def test_to_find_out_whether_a_folder_can_be_written_leaves_nothing(tmp_path) -> None:
    """Oracle: the folder's content. Nor is it asked of what is only read."""
    refuse_files({"--out": tmp_path / "a" / "b", "--runs": Path("/proc/self/new")})
    assert not list(tmp_path.iterdir())


def test_the_check_sees_what_is_unclear(place, tmp_path) -> None:
    """Oracle: a command that is right, and one whose line names another thing."""
    accepted = Case("accepted", settings.dry_run(), ("x",))
    other = Case("other", settings.dry_run("no_such=1"), ("something else",))
    assert unclear(accepted, place, tmp_path / "1").startswith("accepted")
    assert unclear(other, place, tmp_path / "2").startswith("does not name")
