"""Suite files: reading TOML, what `--set` and rows override, and the runs that a suite asks for.

A suite is a file in `benchmark/suites/`, or anywhere: give its path. benchmark/settings/suite.py says what may stand
in it.
"""

from __future__ import annotations

import argparse
import difflib
import json
import os
import re
import sys
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, get_args

from pydantic import TypeAdapter, ValidationError
from pydantic_core import to_jsonable_python

from benchmark.errors import BREAKS, HIDDEN, first
from benchmark.files import Refused, read_text
from benchmark.settings.base import ConfigError, Seeds, Settings, digest, validated, validation_message
from benchmark.settings.names import SUITES, suite_names
from benchmark.settings.slurm_settings import INSTEAD_OF, OF_ALL_ROWS, Slurm
from benchmark.settings.suite import Row, RunConfig, Suite

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

SettingsKind = TypeVar("SettingsKind", bound=Settings)
LONGEST_NAME = 60  # characters of a folder that is named after `--set`, before the hash
SECRET = re.compile(  # parts of the name of a variable
    r"passw|passphrase|pass(_|$)|(?!^pwd$)pwd|secret|token(?!iz)|keys?(_|$)|cred|private|cookie|auth(?!ors?(_|$))|(^|_)pat(_|$)|webhook|dsn",
    re.IGNORECASE,
)
PASSWORD = re.compile(r"://[^/\s@]*:[^/\s@]*@")  # in an address
LABELS = ("title", "name")  # keys whose text tables and terminals show
LONGEST_TEXT = 4096  # characters of any text in a suite
_SEEDS: TypeAdapter[tuple[int, ...]] = TypeAdapter(Seeds)
SITE = Path(__file__).parents[2] / "site.toml"  # one's own [slurm] defaults, see docs/slurm.md


class _Site(Settings):
    """A site file."""

    slurm: Slurm = Slurm()


def load_suite(name: str, overrides: Mapping[str, Any] | None = None) -> Suite:
    """Read a suite, with `--set` overrides applied.

    `name`: of one in `benchmark/suites/`, or the path of a TOML file, with or without its ending. A suite may say
    `extends = "other"` and give only what differs. `${NAME}` in any string is taken from the environment. Paths are
    relative to the file (benchmark/settings/load.py). Raises ConfigError.
    """
    place = f"suite {name!r}"
    try:
        content = _read(name)
        if isinstance(content.get("slurm", {}), dict):
            content["slurm"] = _merge(_site(), content.get("slurm", {}))
        for key, value in (overrides or {}).items():
            _set(content, key, value, place="--set")
        content.setdefault("name", Path(name).stem)
        return _build(Suite, _expand(content, place), place)
    except RecursionError:
        raise ConfigError(f"{place} is nested too deeply to be read: no key needs more than four levels") from None


def expand(suite: Suite, rows: Iterable[Row], seeds: Iterable[int]) -> list[RunConfig]:
    """One RunConfig for each row and seed. Row names are resolved already (see `methods.rows`).

    Raises ConfigError for a row's override that breaks the suite's rules, or is of a key that no run has.
    """
    shared = suite.model_dump(include={"domains", "tokenizer", "data", "model", "training", "budget", "probes"})
    runs = []
    for index, row in enumerate(rows):
        content = json.loads(json.dumps(shared))
        asks = any(key.startswith("slurm.") for key in row.set)
        if asks:
            content["slurm"] = suite.slurm.model_dump(mode="json")
        for key, value in row.set.items():
            _refuse_for_a_row(key, row, suite, [*shared, "slurm"])
            _set(content, key, value, place=f"set of row {row.name!r}")
        # through Suite, so that a row's overrides are held against the same rules
        checked = _build(
            Suite,
            {**content, "name": suite.name, "title": suite.title},
            f"suite {suite.name!r}, row {row.name!r}",
        )
        first = None
        for seed in seeds:
            if first and suite.order != "permute":
                runs.append(first.with_seed(seed))
                continue
            resolved = {key: getattr(checked, key) for key in shared}
            if suite.order == "permute":
                resolved = {**resolved, "places": (), **_permuted(checked, seed)}
            first = RunConfig(
                suite=suite.name,
                row=row.name,
                row_index=index,
                method=row.method,
                options=row.options,
                seed=seed,
                tasks=suite.tasks,
                tuned=suite.tuned,
                slurm=checked.slurm if asks else None,
                **resolved,
            )
            runs.append(first)
    return runs


def _refuse_for_a_row(key: str, row: Row, suite: Suite, sections: Sequence[str]) -> None:
    """Raise ConfigError for a key that no row has of its own, or that would not change what it is to change."""
    section, _, inner = key.partition(".")
    inner = inner.partition(".")[0]
    if section not in sections or (section == "slurm" and inner in ("", *OF_ALL_ROWS)):
        raise ConfigError(
            f"set of row {row.name!r}: {key!r} is the same for all rows; a row can set {', '.join(sections)} "
            f"(of slurm no {', '.join(OF_ALL_ROWS)})"
        )
    wins = [inner, *(own for own, others in INSTEAD_OF.items() if inner in others)]
    given = [f"slurm.train.{own}" for own in wins if getattr(suite.slurm.train, own, None) is not None]
    if section == "slurm" and (hidden := [own for own in given if own not in row.set]):
        raise ConfigError(
            f"set of row {row.name!r}: {key!r} is not what its training asks for, which has its own in [slurm.train]; "
            f"set {hidden[0]!r} too, or instead"
        )


def _permuted(suite: Suite, seed: int) -> dict[str, Any]:
    """The stream in an order drawn from the seed, and a tokenizer that is the same in every order."""
    names = tuple(domain.name for domain in suite.domains)
    places = tuple(sorted(range(len(names)), key=lambda place: digest([seed, names[place]])))
    permuted: dict[str, Any] = {"domains": tuple(suite.domains[place] for place in places)}
    if places != tuple(range(len(names))):
        permuted["places"] = places
    if not suite.tokenizer.domains:
        permuted["tokenizer"] = suite.tokenizer.model_copy(update={"domains": names})
    return permuted


def parse_seeds(text: str | None) -> tuple[int, ...]:
    """What `--seeds` says, e.g. "0,1"; None means the suite's. Raises ConfigError for what is no list of seeds."""
    if text is None:
        return ()
    try:
        return _SEEDS.validate_json(f"[{text}]", strict=True)
    except ValidationError as error:
        unread = error.errors()[0]["type"] == "json_invalid"  # its words are about a parser
        why = "no list of numbers" if unread else validation_message(error, "seeds", tuple)
        raise ConfigError(f"--seeds {text[:80]!r}: {why}; give different whole numbers, e.g. --seeds 0,1") from None


def parse_methods(text: str | None) -> tuple[str, ...]:
    """What `--methods` says, e.g. "er,elle"; None means all. Raises ConfigError for a name that is missing."""
    if text is None:
        return ()
    names = tuple(text.split(","))
    if "" in names:
        raise ConfigError(f"--methods {text[:80]!r}: a name is missing; give some, e.g. --methods er,elle")
    return names


def load_study(study: Path) -> list[Suite]:
    """The suites in a study's folder. Raises ConfigError where there are none.

    Messages call them by their place in the project: who reads a committed report can paste its commands.
    """
    found = sorted(study.glob("*.toml"))
    if not found:
        raise ConfigError(f"{study}: no folder of a study: it holds no suite (*.toml); see results/README.md")
    place = Path("results", study.resolve().name)
    return [load_suite(str(file)).called_by([(place / file.name).as_posix()]) for file in found]


def refuse_files(folders: Mapping[str, Path | None], written: Collection[str] = ("--out",)) -> None:
    """Raise ConfigError for an option, by name, whose folder cannot be one, or that would tear a script.

    What is called in a folder with such a name would, too. Into the folders of `written` something can be written, or a
    command says so only after hours of training. Not even root can everywhere, so a file without a name is made there.
    """
    for option, folder in folders.items():
        if folder is None:
            continue
        path = folder.absolute()
        if hidden := first(str(path)):
            raise ConfigError(
                f"{option} {str(path)!r}: a path with the character {hidden!r}, which shows as nothing; "
                "name a folder without"
            )
        there = next(one for one in (path, *path.parents) if os.path.lexists(one))
        if not there.is_dir():
            raise ConfigError(f"{option} {there}: a file, not a folder; name a folder, which may be new")
        if option in written:
            try:
                tempfile.TemporaryFile(dir=there).close()
            except OSError as error:
                raise ConfigError(
                    f"{option} {folder}: cannot write into {there} ({error.strerror}): name another folder, or have "
                    "its owner allow it"
                ) from None


def refuse_unused(options: argparse.Namespace) -> None:
    """Raise ConfigError for what can be no folder, and for runs chosen for a report of printed numbers.

    Of a suite's keys that has the names of the tables alone.
    """
    folders = {f"--{option}": getattr(options, option, None) for option in ("runs", "out", "study")}
    folders["--reference"] = getattr(options, "reference", None) and options.reference.absolute().parent
    reads = () if hasattr(options, "executor") else ("--runs",)  # what trains writes into it, too
    refuse_files(folders, folders.keys() - reads)
    chosen = [name for name in ("methods", "seeds") if getattr(options, name)]
    chosen += [f"set {key}" for key, _ in map(parse_set, options.set) if key != "tables"]
    if getattr(options, "view", "") == "printed" and chosen:
        raise ConfigError(f"--{chosen[0]}: the paper's numbers are of no runs here: leave it out with --view printed")


def parse_set(assignment: str) -> tuple[str, Any]:
    """`key.path=value` of the command line; the value is TOML where it parses, else a string."""
    key, equals, value = assignment.partition("=")
    wrong = f"--set {assignment[:80]!r}: write key.path=value, e.g. --set training.learning_rate=1e-3"
    if not equals or not key:
        raise ConfigError(wrong)
    try:
        content = tomllib.loads(f"value = {value}")
    except tomllib.TOMLDecodeError:
        return key, value
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"--set {key}: {value[:40]!r}... is no value: {error}") from None
    if len(content) > 1:  # after the end of a line, other keys, which would be dropped
        raise ConfigError(wrong)
    return key, content["value"]


def report_folder(out: Path, suite: Suite, assignments: Sequence[str]) -> Path:
    """Where reports of a suite go that was read with these `--set`: what they change is another comparison.

    The folder is named after the keys and what the suite has there now, in alphabetical order, and ends in a hash of
    them, since not every letter can stand in a name. What jobs ask of a cluster changes none.
    """
    keys = sorted({parse_set(one)[0] for one in assignments if not one.startswith("slurm.")})
    if not keys:
        return out
    changes = {key: _at(suite, key) for key in keys}
    told = ",".join(f"{key}={f'{value:g}' if isinstance(value, float) else value}" for key, value in changes.items())
    name = re.sub(r"[^\w.,=+-]+", "_", told)[:LONGEST_NAME].strip("_")
    return out / f"{name}-{digest(changes)[:6]}"


def _at(suite: Suite, path: str) -> Any:
    """The value of a key that `--set` can name, as JSON has it."""
    found: Any = suite
    for part in path.split("."):
        found = found[part] if isinstance(found, Mapping) else getattr(found, part)
    return to_jsonable_python(found)


def _build(model: type[SettingsKind], content: Mapping[str, Any], place: str) -> SettingsKind:
    try:
        return validated(TypeAdapter(model), content)  # type: ignore[no-any-return]
    except ValidationError as error:
        raise ConfigError(validation_message(error, place, model)) from None


def _read(name: str, below: tuple[Path, ...] = ()) -> dict[str, Any]:
    """The content of a suite file, merged into what it extends; `below` are the files that extend it."""
    path = _file(name)
    if path is None:
        near = difflib.get_close_matches(name, suite_names(), n=1)
        hint = f"Did you mean {near[0]!r}? " if near else ""
        raise ConfigError(
            f"no suite {name[:80]!r}. {hint}There are {', '.join(suite_names())}; or give the path of a file, "
            "NAME.toml, which `run_all.py new-suite` writes"
        )
    try:
        content: dict[str, Any] = tomllib.loads(read_text(path))
    except Refused:
        raise
    except OSError as error:
        raise ConfigError(f"no suite {name[:255]!r}: {error.strerror}: give the path of a .toml file") from None
    except ValueError as error:
        raise ConfigError(f"{path}: not TOML: {error}; correct it there") from None
    base = content.pop("extends", None)
    content = located(content, path)
    if base is None:
        return content
    if not isinstance(base, str):
        raise ConfigError(f"{path}: extends = {base!r} must be the name of a suite, or the path of a .toml file")
    beside = str(path.parent / base) if base.endswith(".toml") else base
    files = (*below, path.resolve())
    if beside.endswith(".toml") and Path(beside).resolve() in files:
        raise ConfigError(f"{path}: extends = {base!r} leads back to a suite that extends it: leave one of them out")
    return _merge(_read(beside, files), content)


def _file(name: str) -> Path | None:
    """The file of a suite by its name or its path, with or without the ending; None where that can be none."""
    if not name.isprintable():
        return None
    if name.endswith(".toml"):
        return Path(name)
    if name in suite_names():
        return SUITES / f"{name}.toml"
    beside = Path(f"{name}.toml")
    return beside if len(name) < LONGEST_TEXT and os.path.isfile(beside) else None


def _site() -> dict[str, Any]:
    """The `[slurm]` section of the site file; nothing else may be in it, for it must not change results."""
    try:
        content = _read(str(SITE)) if os.path.lexists(SITE) else {}
        if set(content) - {"slurm"}:
            raise ConfigError(
                f"{SITE}: only a [slurm] section may be here, not {', '.join(set(content) - {'slurm'})}: put it "
                "into a suite"
            )
        _build(_Site, _expand(content, str(SITE)), str(SITE))  # else the suite would be blamed
    except RecursionError:
        raise ConfigError(f"{SITE} is nested too deeply to be read: no key needs more than three levels") from None
    slurm: dict[str, Any] = content.get("slurm", {})
    return slurm


def _merge(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """Tables merge key by key; anything else, lists too, is replaced."""
    merged = dict(base)
    for key, value in over.items():
        nested = isinstance(value, dict) and isinstance(base.get(key), dict)
        merged[key] = _merge(base[key], value) if nested else value
    return merged


def _set(content: dict[str, Any], path: str, value: Any, place: str) -> None:
    *parents, last = path.split(".")
    for part in parents:
        content = content.setdefault(part, {})
        if not isinstance(content, dict):
            raise ConfigError(f"{place}: {path!r} leads through {part!r}, which is not a table; correct the key")
    content[last] = value


def _expand(value: Any, place: str, key: str = "") -> Any:
    """Values with the environment's, as JSON has them. Raises ConfigError for what no key takes."""
    if isinstance(value, dict):
        for name in value:
            _refuse_unreadable(name, f"{place}: a key of {key or 'the suite'}")
        return {name: _expand(inner, place, f"{key}.{name}".strip(".")) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_expand(inner, place, key) for inner in value]
    if isinstance(value, str):
        hidden = HIDDEN if key.rpartition(".")[2] in LABELS else BREAKS
        _refuse_unreadable(value, f"{place}: {key}", hidden)

        def from_environment(match: re.Match[str]) -> str:
            holds = PASSWORD.search(os.environ.get(match[1], ""))
            if holds or SECRET.search(match[1]):
                raise ConfigError(
                    f"{place} asks for the environment variable {match[1]} (in {value!r}), which "
                    f"{'holds a password' if holds else 'sounds like a secret'}: "
                    "records and reports would hold it; use another variable"
                )
            if match[1] not in os.environ:
                raise ConfigError(f"{place} needs the environment variable {match[1]} (in {value!r}): set it")
            return os.environ[match[1]]

        text = re.sub(r"\$\{(\w+)\}", from_environment, value)
        if text != value:
            _refuse_unreadable(text, f"{place}: {key}", hidden)
        return text
    if isinstance(value, int) and value.bit_length() > 63:
        raise ConfigError(
            f"{place}: {key}: a whole number of {value.bit_length()} bits; at most 63 can be meant; give less"
        )
    if not isinstance(value, (int, float)):
        raise ConfigError(f"{place}: {key}: {value} is a date or a time, which no key takes; write a text or a number")
    return value


def _refuse_unreadable(text: str, place: str, hidden: tuple[str, ...] = BREAKS) -> None:
    """Raise ConfigError for a text that would tear a line: that holds a character of the `hidden` categories."""
    if len(text) > LONGEST_TEXT:
        raise ConfigError(
            f"{place}: a text of {len(text):,} characters; at most {LONGEST_TEXT:,} can be meant; shorten it"
        )
    if control := first(text, hidden):
        raise ConfigError(
            f"{place}: {text[:40]!r} holds the character {control!r}, which shows as nothing: write one line of text "
            "without it"
        )


# Paths in a suite

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
