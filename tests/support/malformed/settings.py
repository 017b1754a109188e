"""Cases of suites and options: every key with values that it cannot have, and files that are no suites."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import methods
from benchmark.settings.suite import Suite
from tests.support import tiny_suite
from tests.support.malformed import Case

# of every type: wrong types, and values that no setting of the type can have
NUMBERS = ("nan", "1e400", "-1", "1e300", "true", "'x'")
WHOLE = ("nan", "-1", "1000000000000000000", "1000000000000000000000", "1.5", "true")
TEXTS = ("7", "['x']", '"a\\nb"')
SWITCHES = ("'yes'", "1")
CHOICES = ("'no such'", "-7")
LISTS = ("7", "[1.5]")
TABLES = ("7", "[7]")
VALUES = {"number": NUMBERS, "integer": WHOLE, "string": TEXTS, "boolean": SWITCHES, "enum": CHOICES, "array": LISTS}
# lists of sections, each with a whole one, whose keys are changed one by one
ENTRIES: dict[str, dict[str, Any]] = {
    "domains": {"name": "a", "train": ["{place}/a.jsonl"]},
    "probes": {"name": "p", "train": ["{place}/a.jsonl"]},
    "tasks": {"name": "t", "domain": "a", "train": "{place}/t.jsonl", "dev": "{place}/t.jsonl", "test": "x.jsonl"},
    "rows": {"method": "naive", "name": "other"},
    "model.ladder": {"layers": 1, "hidden_size": 16},
}
NAMES = ("../../up", "a/b", "a\nb", "", ".", "..", "$(touch x)", "`x`", "<b>", "\\input{x}", "-rf", "a" * 300, "a\0b")


def dry_run(*overrides: str, suite: str = "{place}/tiny.toml") -> tuple[str, ...]:
    given = (part for one in overrides for part in ("--set", one.replace("{", "{{").replace("}", "}}")))
    return ("run", suite, "--dry-run", "--runs", "{here}/runs", "--out", "{here}/report", *given)


def keys() -> Iterator[Case]:
    """Every key of a suite, but those of lists of sections."""
    schema = Suite.model_json_schema()
    for path, key, values in _of(schema, schema["$defs"], ""):
        for value in values:
            yield Case(f"{path} = {value}", dry_run(f"{path}={value}"), (key,))


def entries() -> Iterator[Case]:
    """Every key of each list of sections."""
    schema = Suite.model_json_schema()
    known = schema["$defs"]
    kinds = {"domains": "Domain", "probes": "Domain", "tasks": "Task", "rows": "Row", "model.ladder": "Size"}
    for place, entry in ENTRIES.items():
        for _, key, values in _of(known[kinds[place]], known, ""):
            for value in values[:3]:
                rest = [f"{name} = {json.dumps(given)}" for name, given in entry.items() if name != key]
                changed = "{" + ", ".join([*rest, f"{key} = {value}"]) + "}"
                text = f"[{changed}, {{layers = 2, hidden_size = 32}}]" if place == "model.ladder" else f"[{changed}]"
                yield Case(f"{place}: {key} = {value}", _with_place(place, text), (key,))


def _with_place(key: str, value: str) -> tuple[str, ...]:
    *most, last = dry_run(f"{key}={value}")
    return (*most, last.replace("{{place}}", "{place}"))


def _of(section: dict[str, Any], known: dict[str, Any], path: str) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """The keys of a section and of those inside it: the dotted path, the last part, bad values."""
    for key, value in section["properties"].items():
        options = [value, *value.get("anyOf", [])]
        inner = next((one["$ref"].rpartition("/")[2] for one in options if "$ref" in one), None)
        kinds = ["enum" if "enum" in one else one.get("type") for one in options]
        if inner:
            yield f"{path}{key}", key, TABLES
            if value.get("type") != "array" and inner not in ("HubTask", "Docstrings", "Growth"):
                yield from _of(known[inner], known, f"{path}{key}.")
        elif "object" in kinds:
            yield f"{path}{key}", key, TABLES
        elif "array" in kinds and "number" in kinds:
            yield f"{path}{key}", key, (*NUMBERS, "[]", "[0.5]", "[nan, 0.5]", "[0.5, 'x']", "[[1]]", "1979-05-27")
        elif "boolean" in kinds and "string" in kinds:
            yield f"{path}{key}", key, ("7", "[]")
        elif "prefixItems" in value:
            yield f"{path}{key}", key, ("7", "[0.5]", "[0.5, nan]", "[0.5, 1.0]")
        elif kind := next((one for one in kinds if one in VALUES), None):
            yield f"{path}{key}", key, VALUES[kind]


def options() -> Iterator[Case]:
    """Every option of every method."""
    by_type = {"bool": SWITCHES, "int": WHOLE, "Literal": CHOICES}
    for name in methods.names():
        for field in dataclasses.fields(methods.find(name)):  # type: ignore[arg-type]
            if field.init:
                kind = getattr(field.type, "__name__", str(field.type)).partition("[")[0]
                for value in by_type.get(kind, WHOLE if field.default.__class__ is int else NUMBERS):
                    given = dry_run(f'methods=["{name}"]', f"options.{name}.{field.name}={value}")
                    yield Case(f"{name}.{field.name} = {value}", given, (field.name,))
        given = dry_run(f'methods=["{name}"]', f"options.{name}.no_such=1")
        yield Case(f"{name}.no_such", given, ("no_such", name))


def rules() -> Iterator[Case]:
    """Values that are right alone and wrong together, and names."""
    pairs = {
        "seeds twice": ("seeds=[0, 0]", "seeds"),
        "no seeds": ("seeds=[]", "seeds"),
        "no methods": ("methods=[]", "methods"),
        "no tables": ("tables=['no_such']", "no_such"),
        "a method twice": ("methods=['naive', 'naive']", "Naive"),
        "two groups": ("methods=['baselines', 'baselines']", "row"),
        "unknown method": ("methods=['nave']", "nave"),
        "a method with a slash": ("methods=['../er']", "../er"),
        "options of no row": ("options.ewc.strength=1", "ewc"),
        "a share of no row": ("options.er.replay=0.01", "memory of phase"),
        "a ladder that shrinks": (
            "model.ladder=[{layers=2, hidden_size=32}, {layers=1, hidden_size=32}]",
            "ladder",
        ),
        "a ladder that narrows": (
            "model.ladder=[{layers=2, hidden_size=32}, {layers=2, hidden_size=16}]",
            "ladder",
        ),
        "a short ladder": ("model.ladder=[{layers=2, hidden_size=32}]", "ladder"),
        "an empty ladder": ("model.ladder=[]", "ladder"),
        "heads": ("model.head_size=7", "head_size"),
        "three rates": ("training.learning_rate=[1e-3, 1e-3, 1e-3]", "learning_rate"),
        "three amounts": ("budget.amount=[1, 1, 1]", "amount"),
        "an amount of nothing": ("budget.amount=0", "amount"),
        "betas": ("training.betas=[0.9, 1.0]", "betas"),
        "three betas": ("training.betas=[0.9, 0.9, 0.9]", "betas"),
        "a backend": ("training.compile='nosuch'", "compile"),
        "unit": ("budget.unit='hours'", "unit"),
        "a table for no unit": ("budget.reference='x.json'", "reference"),
        "no table": ("budget.unit='reference'", "reference"),
        "grow without start": ("model.grow={layers=1}", "grow"),
        "revision without start": ("model.revision='main'", "revision"),
        "a start that is not there": ("model.start='{here}/none'", "none"),
        "no domains": ("domains=[]", "domains"),
        "tokenizer of another domain": ("tokenizer.domains=['x']", "tokenizer.domains"),
        "tokenizer of a domain twice": ("tokenizer.domains=['a', 'a']", "tokenizer.domains"),
        "a time limit under its warning": ("slurm.time=1", "signal_delay_s"),
        "unknown key": ("training.lerning_rate=1", "lerning_rate"),
        "unknown section": ("no_such.key=1", "no_such"),
    }
    for name, (override, named) in pairs.items():
        if name != "a start that is not there":
            yield Case(name, dry_run(override), (named,))


def lists() -> Iterator[Case]:
    """Domains, tasks and rows that are right alone and wrong together."""
    start = (*dry_run("model.ladder=[]"), "--set", "model.start={here}/none")
    yield Case("a start that is not there", start, ("none",))
    source = 'train = ["{place}/a.jsonl"]'
    for name, entries in {
        "two domains of a name": ('{name="a", %s}, {name="a", %s}', "domains"),
        "two domains of a title": ('{name="a", title="X", %s}, {name="b", title="X", %s}', "title"),
        "a title that is another's name": ('{name="a", %s}, {name="b", title="a", %s}', "title"),
        "two titles but for spaces": ('{name="a", title="X Y", %s}, {name="b", title="X-Y", %s}', "title"),
        "two titles but for accents": (
            '{name="a", title="caf\u00e9", %s}, {name="b", title="cafe\u0301", %s}',
            "title",
        ),
        "no source": ('{name="a"}, {name="b", %s}', "train"),
        "two sources": ('{name="a", packages=["stdlib"], %s}, {name="b", %s}', "packages"),
        "valid alone": ('{name="a", packages=["stdlib"], valid=["x"]}, {name="b", %s}', "valid"),
        "a reserved name": ('{name="auto", %s}, {name="b", %s}', "auto"),
        "the name none": ('{name="none", %s}, {name="b", %s}', "none"),
    }.items():
        text = "domains=[" + entries[0].replace("%s", source) + "]"
        yield Case(name, _with_place(*text.split("=", 1)), (entries[1],))
    task = 'name="t", domain="a", train="x", dev="x", test="x"'
    for name, text, named in (
        ("two tasks of a name", f"{{{task}}}, {{{task}}}", "tasks"),
        ("two tasks of a title", f"{{{task}, title='T'}}, {{{task}, title='T'}}".replace('"t"', '"u"', 1), "title"),
        ("a task of no domain", f"{{{task}}}".replace('"a"', '"x"'), "domain"),
        ("a task without test", f"{{{task}}}".replace(', test="x"', ""), "test"),
        ("a task of two sources", f"{{{task}, docstrings={{}}}}", "docstrings"),
    ):
        yield Case(name, dry_run(f"tasks=[{text}]"), (named,))
    for name, text, named in (
        ("two rows of a name", '{method="naive", name="x"}, {method="er", name="x"}', "x"),
        ("two rows but for hyphens", '{method="naive", name="x y"}, {method="er", name="X-Y"}', "X-Y"),
        ("two rows but for accents", '{method="naive", name="\u00e9"}, {method="er", name="e\u0301"}', "e\u0301"),
        ("a row sets seeds", '{method="naive", name="x", set={seeds=[7]}}', "seeds"),
        ("a row sets seeds, quoted", '{method="naive", name="x", set={"seeds"=[7]}}', "seeds"),
        ("a row sets the title", '{method="naive", name="x", set={"title"="y"}}', "title"),
        ("a row sets a cap", '{method="naive", name="x", set={"slurm.array_parallelism"=5}}', "slurm"),
        (
            "a row has a time limit under its warning",
            '{method="naive", name="x", set={"slurm.time"=1}}',
            "signal_delay_s",
        ),
        ("a row sets nan", '{method="naive", name="x", set={"training.clip"=nan}}', "clip"),
        ("a row sets no key", '{method="naive", name="x", set={"training.no"=1}}', "no"),
        ("a row sets through a number", '{method="naive", name="x", set={"training.clip.x"=1}}', "clip"),
        ("a row sets other domains", '{method="naive", name="x", set={"domains"=[]}}', "domains"),
        ("a row sets another tokenizer's size", '{method="naive", name="x", set={"tokenizer.vocabulary"=1}}', "vocab"),
        ("a row with nan", '{method="ewc", name="x", options={strength=nan}}', "strength"),
        ("a row without method", '{name="x"}', "method"),
    ):
        yield Case(name, dry_run(f"rows=[{text}]"), (named,))


def names() -> Iterator[Case]:
    """Names and texts that would leave a folder or tear a line."""
    source = 'train = ["{place}/a.jsonl"]'
    task = 'name="t", domain="a", train="x", dev="x", test="x"'
    for name in NAMES:
        quoted = json.dumps(name)
        yield Case(f"suite named {name!r:.30}", dry_run(f"name={quoted}"), ("name",))
        yield Case(f"domain named {name!r:.30}", _with_place("domains", f"[{{name={quoted}, {source}}}]"), ("name",))
        yield Case(f"task named {name!r:.30}", dry_run(f"tasks=[{{{task}}}]".replace('"t"', quoted)), ("name",))
    for key in ("title", "slurm.partition", "slurm.comment", "slurm.mem", "tokenizer.folder"):
        for text in ("a\nb", "a\r#SBATCH --x", "a\0b", "\x1b[2J", "a" * 100_000):
            yield Case(f"{key} = {text!r:.20}", dry_run(f"{key}={json.dumps(text)}"), (key.rpartition(".")[2],))


def _write(text: str | bytes, name: str = "suite.toml") -> Any:
    def make(folder: Path) -> None:
        content = text if isinstance(text, bytes) else text.replace("{here}", str(folder)).encode()
        (folder / name).write_bytes(content)

    return make


def sites() -> Iterator[Case]:
    """Site files, of which a suite that is right is told: the line must blame them."""
    texts: dict[str, tuple[str | bytes, str]] = {
        "a number": ("slurm = 7", "slurm"),
        "a list": ("slurm = [1]", "slurm"),
        "a list of tables": ("[[slurm]]\ntime = 60", "slurm"),
        "a time in words": ("[slurm]\ntime = 'x'", "slurm.time"),
        "no such key": ("[slurm]\npartitoin = 'gpu'", "partitoin"),
        "no such key of training": ("[slurm.train]\npartitoin = 'gpu'", "partitoin"),
        "a date": ("[slurm]\npartition = 1979-05-27", "slurm.partition"),
        "two lines": ('[slurm]\npartition = "a\\nb"', "slurm.partition"),
        "environment": ("[slurm]\npartition = '${NO_SUCH_VARIABLE_HERE}'", "NO_SUCH_VARIABLE_HERE"),
        "nested lists": (f"[slurm]\nsetup = {'[' * 5000}{']' * 5000}", "nested"),
        "nested tables": (f"[slurm]\n{'a.' * 5000}b = 1", "nested"),
        "another section": ("[training]\nbatch_size = 2", "training"),
        "not TOML": ("[slurm", "TOML"),
        "not UTF-8": (b"slurm = '\xff'", "TOML"),
    }
    for name, (text, named) in texts.items():
        yield Case(f"site: {name}", dry_run(), ("{here}/site.toml", named), _write(text, "site.toml"))
    folder = lambda here: (here / "site.toml").mkdir()  # noqa: E731
    yield Case("site: a folder", dry_run(), ("{here}/site.toml",), folder)
    dangling = lambda here: (here / "site.toml").symlink_to(here / "none")  # noqa: E731
    yield Case("site: a dangling link", dry_run(), ("{here}/site.toml",), dangling)


def files() -> Iterator[Case]:
    """Suite files that are none."""
    good = tiny_suite.SUITE.format(text="x")
    texts: dict[str, tuple[str | bytes, str]] = {
        "not TOML": ("title = ", "TOML"),
        "not UTF-8": (b"title = '\xff'", "TOML"),
        "NUL": (b"title = '\0'", "TOML"),
        "UTF-16": ("title = 'x'".encode("utf-16"), "TOML"),
        "JSON": ("{}", "TOML"),
        "a key twice": ("title = 'x'\ntitle = 'y'", "TOML"),
        "5,000 digits": (good.replace("batch_size = 10", f"batch_size = {'9' * 5000}"), "digits"),
        "5,000 hex digits": (good.replace("batch_size = 10", f"batch_size = 0x{'9' * 5000}"), "batch_size"),
        "nested lists": (good.replace('title = "Tiny"', f"title = {'[' * 5000}{']' * 5000}"), "nested"),
        "nested tables": (good.replace('title = "Tiny"', f"{'a.' * 5000}b = 1"), "nested"),
        "extends itself": ('extends = "{here}/suite.toml"\ntitle = "x"', "extends"),
        "extends nothing": ('extends = "no_such"', "no_such"),
        "extends a folder": ('extends = "{here}"', "no suite"),
        "extends a number": ("extends = 7", "extends"),
        "extends a list": ('extends = ["demo"]', "extends"),
        "extends upwards": ('extends = "../suites/demo"', "../suites/demo"),
        "environment": (good.replace('"Tiny"', '"${NO_SUCH_VARIABLE_HERE}"'), "NO_SUCH_VARIABLE_HERE"),
        "environment in a list": (good.replace('"naive", "er"', '"${NO_SUCH_VARIABLE_HERE}"'), "NO_SUCH_VARIABLE_HERE"),
        "no budget": (good.partition("[budget]")[0], "budget"),
        "no model": (good.partition("[model]")[0] + "[training]" + good.partition("[training]")[2], "model"),
        "a section as list": (good.replace("[data]", "[[data]]"), "data"),
        "a date": (good.replace('"Tiny"', "1979-05-27"), "title"),
        "a time": (good.replace("batch_size = 10", "batch_size = 07:32:00"), "batch_size"),
    }
    for name, (text, named) in texts.items():
        yield Case(f"suite: {name}", dry_run(suite="{here}/suite.toml"), (named,), _write(text))

    def circle(folder: Path) -> None:
        for one, other in (("suite", "b"), ("b", "c"), ("c", "suite")):
            (folder / f"{one}.toml").write_text(f'extends = "{folder}/{other}.toml"')

    yield Case("suite: a circle", dry_run(suite="{here}/suite.toml"), ("extends",), circle)
    folder = lambda here: (here / "suite.toml").mkdir()  # noqa: E731
    yield Case("suite: a folder", dry_run(suite="{here}/suite.toml"), ("suite.toml",), folder)
    dangling = lambda here: (here / "suite.toml").symlink_to(here / "none")  # noqa: E731
    yield Case("suite: a dangling link", dry_run(suite="{here}/suite.toml"), ("suite.toml",), dangling)
    for name in ("", "/", "..", "x" * 300, "demo/..", "a\0b.toml", "x" * 300 + ".toml", "{place}", "{place}/a.jsonl"):
        yield Case(f"suite {name!r:.20}", dry_run(suite=name), (name[:20] if name.isprintable() else "b.toml",))
