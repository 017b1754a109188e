"""Suite files: reading TOML, what `--set` and rows override, and the runs that a suite asks for.

A suite is a file in `benchmark/suites/`, or any other file that is given by its path.
benchmark/settings/suite.py says what it may contain.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmark.settings.base import ConfigError, describe_unknown_key, digest, validate
from benchmark.settings.names import ROOT, SUITES, list_executor_names, list_suite_names
from benchmark.settings.optimizers import DEFAULTS_OF_START_MODELS, Optimizer, find_optimizer
from benchmark.settings.suite import Row, RunConfig, Suite, Training

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

SITE = ROOT / "site.toml"  # a site's own defaults for sections of executors
# what each run takes from its suite
SHARED = ("domains", "tokenizer", "data", "model", "training", "budget", "probes", "replay")
PATHS = {  # keys that hold a path, or paths
    "domains.train",
    "domains.valid",
    "domains.sources.train",
    "domains.sources.valid",
    "probes.train",
    "probes.valid",
    "probes.sources.train",
    "probes.sources.valid",
    "tasks.train",
    "tasks.dev",
    "tasks.test",
    "tokenizer.folder",
    "budget.reference",
    "model.start",
    "evaluate.folder",
}
LISTS = ("domains", "probes", "tasks", "rows")  # whose entries have names
UNCHANGED_PREFIXES = ("/", "~", "${")  # paths that begin so do not depend on the file's place
# characters that would break a line, or that no file can contain
BREAKS = re.compile("[\x00-\x1f\x7f\x85\u2028\u2029\ud800-\udfff]")


def load_suite(
    name: str, overrides: Mapping[str, Any] | None = None, words: Sequence[str] = ()
) -> Suite:
    """Read a suite, and apply the overrides of `--set`.

    `name` is the name of a suite in `benchmark/suites/`, or the path of a TOML file, with or
    without its ending. `words` are the words of a command line that name the suite. A suite may
    extend another one (`extends`), and give only what differs. `${NAME}` in a path is taken from
    the environment. Paths are relative to the file that contains them. Raises ConfigError.
    """
    place = f"suite {name!r}"
    content, built_in = _read(name)
    if SITE.exists():
        place = f"{place} with {SITE}"
        content = _merge(_read_site(), content)
    for key, value in (overrides or {}).items():
        _set(content, key, value, place="--set")
    choices = sorted([*Suite.model_fields, *list_executor_names()])
    for key in content:
        if key not in choices:
            raise ConfigError(f"{place}: {key}: {describe_unknown_key(key, choices)}")
    content.setdefault("name", Path(name).stem)
    content = _map_strings(content, partial(_expand, place))
    suite = validate(Suite, content, place)
    suite._command_arguments = shlex.join(words)
    suite._built_in = tuple(built_in)
    return suite


def load_study(study: Path) -> list[Suite]:
    """The suites in a study's folder. Raises ConfigError if there are none.

    Messages name suites by their path in the project, so that a reader of a committed report can
    paste its commands.
    """
    files = sorted(study.glob("*.toml"))
    if not files:
        raise ConfigError(
            f"{study}: no folder of a study: it holds no suite (*.toml); see results/README.md"
        )
    place = Path("results", study.resolve().name)
    suites = []
    for file in files:
        suites.append(load_suite(str(file), words=[(place / file.name).as_posix()]))
    return suites


def expand(
    suite: Suite,
    rows: Iterable[Row],
    seeds: Iterable[int],
    find_own_optimizer: Callable[[Row], Optimizer | None] = lambda row: None,
) -> list[RunConfig]:
    """One RunConfig for each row and seed.

    Row names are resolved already (see `methods.list_rows`). `find_own_optimizer` returns the
    optimizer that a row's method defines, None if it uses the suite's. Raises ConfigError if a
    row's override breaks the suite's rules, or has a key that rows cannot set.
    """
    keys = (*SHARED, *list_executor_names())
    shared = suite.model_dump_json(include={*keys})
    runs = []
    for index, row in enumerate(rows):
        content = json.loads(shared)
        overrides = _list_overrides(row, content)
        for key, value in overrides.items():
            if key.partition(".")[0] not in keys:
                raise ConfigError(
                    f"set of row {row.name!r}: {key!r} is the same for all rows; a row can set "
                    f"{', '.join(keys)}"
                )
            _set(content, key, value, place=f"set of row {row.name!r}")
        # through Suite, so that the same rules apply to a row's overrides
        content |= {"name": suite.name, "title": suite.title}
        place = f"suite {suite.name!r}, row {row.name!r}"
        checked = validate(Suite, content, place)
        training = _set_defaults_of_recipes(
            suite, overrides, checked, find_own_optimizer(row), place
        )
        for seed in seeds:
            resolved = {key: getattr(checked, key) for key in SHARED}
            resolved["training"] = training
            if suite.order == "permute":
                resolved |= _permute(checked, seed)
            run = RunConfig(
                suite=suite.name,
                row=row.name,
                row_index=index,
                method=row.method,
                options=row.options,
                seed=seed,
                tasks=suite.tasks,
                tuned=suite.tuned,
                sections=checked.sections,
                **resolved,
            )
            runs.append(run)
    return runs


def _list_overrides(row: Row, content: Mapping[str, Any]) -> dict[str, Any]:
    """What a row sets, by dotted keys.

    `training.decay = "all"` without quotes is a nested table in TOML. It overrides a section of
    `content` key by key, as `extends` does.
    """
    overrides: dict[str, Any] = {}
    for key, value in row.set.items():
        if isinstance(value, dict) and isinstance(content.get(key), dict):
            for inner, inner_value in value.items():
                overrides[f"{key}.{inner}"] = inner_value
        else:
            overrides[key] = value
    return overrides


def _set_defaults_of_recipes(
    suite: Suite,
    overrides: Iterable[str],
    checked: Suite,
    own: Optimizer | None,
    place: str,
) -> Training:
    """A row's training, with defaults of published recipes for what the suite does not set.

    `checked` is the suite with the row's `overrides`, `own` is the optimizer that the row's method
    defines.
    """
    keys = {*suite.training.model_fields_set}
    for key in overrides:
        keys.add(key.removeprefix("training."))
    optimizer = own or find_optimizer(checked.training.optimizer)
    defaults = dict(optimizer.defaults)
    if checked.model.start:
        defaults |= DEFAULTS_OF_START_MODELS
    content = checked.training.model_dump(mode="json")
    for name, value in defaults.items():
        if name not in keys:
            content[name] = value
    return validate(Training, content, f"{place}: optimizer {optimizer.name!r}")


def _permute(suite: Suite, seed: int) -> dict[str, Any]:
    """The stream in an order drawn from the seed, and a tokenizer that ignores the order."""
    names = tuple(domain.name for domain in suite.domains)
    order = range(len(names))
    places = tuple(sorted(order, key=lambda place: digest([seed, names[place]])))
    domains = tuple(suite.domains[place] for place in places)
    permuted: dict[str, Any] = {"domains": domains}
    if places != tuple(order):
        permuted["places"] = places
    if not suite.tokenizer.domains:
        permuted["tokenizer"] = suite.tokenizer.model_copy(update={"domains": names})
    return permuted


# What the command line says


def parse_set(assignment: str) -> tuple[str, Any]:
    """The key and value of `key.path=value`: the value is TOML if it parses, else a string."""
    key, equals, value = assignment.partition("=")
    if not equals or not key:
        raise ConfigError(
            f"--set {assignment[:80]!r}: write key.path=value, e.g. --set "
            "training.learning_rate=1e-3"
        )
    try:
        return key, tomllib.loads(f"value = {value}")["value"]
    except (ValueError, RecursionError):
        return key, value


# Files


def _read(name: str) -> tuple[dict[str, Any], list[str]]:
    """The content of a suite file, merged into what it extends, and `Suite.built_in`."""
    if name in list_suite_names():
        path = SUITES / f"{name}.toml"
    else:
        path = Path(f"{name.removesuffix('.toml')}.toml")
    try:
        content: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise ConfigError(
            f"no suite {name[:255]!r} ({error.strerror}). There are "
            f"{', '.join(list_suite_names())}; or give the path of a file, NAME.toml, which "
            "`run_all.py new-suite` writes"
        ) from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: not TOML: {error}; correct it there") from None
    base = content.pop("extends", None)
    content = _map_strings(content, partial(_locate, path))
    built_in = [path.stem] if path.resolve().parent == SUITES.resolve() else []
    if base is None:
        return content, built_in
    if not isinstance(base, str):
        raise ConfigError(
            f"{path}: extends = {json.dumps(base, default=str)[:80]}: give the name of a suite, or "
            "the path of a file, as text"
        )
    base_name = str(path.parent / base) if base.endswith(".toml") else base
    try:
        inherited, base_built_in = _read(base_name)
    except RecursionError:
        raise ConfigError(
            f"{path}: extends = {base!r} leads back to this file: leave one of them out"
        ) from None
    return _merge(inherited, content), built_in + base_built_in


def _read_site() -> dict[str, Any]:
    """The site file: sections of executors.

    Nothing else may be in it, because it must not change results.
    """
    content, _ = _read(str(SITE))
    names = list_executor_names()
    wrong_keys = ", ".join(content.keys() - {*names})
    if wrong_keys:
        raise ConfigError(
            f"{SITE}: only sections of executors ({', '.join(names)}) may be here, not "
            f"{wrong_keys}: put it into a suite"
        )
    return content


def _merge(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Merge tables key by key, and replace anything else, also lists."""
    merged = dict(base)
    for key, value in changes.items():
        nested = isinstance(value, dict) and isinstance(base.get(key), dict)
        merged[key] = _merge(base[key], value) if nested else value
    return merged


def _set(content: dict[str, Any], path: str, value: Any, place: str) -> None:
    """Set the value at a dotted path.

    An entry of a list is reached by its name, as in `tasks.chemprot.max_epochs`.
    """
    *parents, last = path.split(".")
    section: Any = content
    for part in parents:
        if isinstance(section, list):
            entries = [item for item in section if isinstance(item, dict)]
            names = [entry.get("name") or entry.get("method") for entry in entries]
            if part not in names:
                choices = ", ".join(filter(None, names)) or "no entries with names"
                raise ConfigError(
                    f"{place}: {path!r}: nothing there is called {part!r}; there are {choices}"
                )
            section = section[names.index(part)]
        elif section is content and part in LISTS and part not in content:
            raise ConfigError(f"{place}: {path!r}: the suite has no {part}; write them in its file")
        else:
            section = section.setdefault(part, {})
        if not isinstance(section, (dict, list)):
            raise ConfigError(
                f"{place}: {path!r} leads through {part!r}, which is not a table; correct the key"
            )
    if not isinstance(section, dict):
        raise ConfigError(
            f"{place}: {path!r} sets a whole entry of a list; name a key of it, as in {path}.KEY"
        )
    section[last] = value


def _map_strings(value: Any, change: Callable[[str, str], str], key: str = "") -> Any:
    """A suite's content, with each string replaced by `change(dotted key, string)`."""
    if isinstance(value, dict):
        prefix = "" if key == "rows.set" else f"{key}."  # its keys are dotted already
        return {
            name: _map_strings(inner, change, f"{prefix}{name}".strip("."))
            for name, inner in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [_map_strings(inner, change, key) for inner in value]
    return change(key, value) if isinstance(value, str) else value


def _locate(file: Path, key: str, value: str) -> str:
    """A text of a suite file, with a path made relative to the current folder.

    A path stays as it is if it begins with one of UNCHANGED_PREFIXES or comes from `--set`. Step
    times that ship with the project are relative to the project.
    """
    if key not in PATHS or value.startswith(UNCHANGED_PREFIXES):
        return value
    path = os.path.normpath(file.parent / value)
    if key == "budget.reference" and file.parent == SUITES:
        # so that records do not depend on where the project is
        return os.path.relpath(path, ROOT)
    if key == "model.start" and not os.path.isdir(path):
        # a name on the Hub, or a missing folder, for which the Hub must not be asked
        if value.startswith("."):
            return os.path.join(os.curdir, path)
        return value
    return path


def _expand(place: str, key: str, value: str) -> str:
    """A text, with environment variables replaced if it is a path.

    Other texts stay as they are, because titles are printed: the author of a suite could learn what
    is in the environment. Raises ConfigError for a variable that is not set, and for a character
    that breaks a line.
    """

    def read_variable(match: re.Match[str]) -> str:
        if match[1] not in os.environ:
            raise ConfigError(
                f"{place} needs the environment variable {match[1]} (in {value!r}): set it"
            )
        return os.environ[match[1]]

    text = re.sub(r"\$\{(\w+)\}", read_variable, value) if key in PATHS else value
    forbidden = BREAKS.search(text)
    if forbidden:
        raise ConfigError(
            f"{place}: {key}: {text[:40]!r} holds {forbidden[0]!r}: write one line of text without "
            "it"
        )
    return text
