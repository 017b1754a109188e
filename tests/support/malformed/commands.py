"""Cases of command lines, and of the small files that they are given."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from tests.support.malformed import Case
from tests.support.malformed.making import PLACES, RUNS, SUITE, both, pipe, write


def commands() -> Iterator[Case]:
    """Command lines."""
    run = ("run", SUITE, "--dry-run", *PLACES)
    for given, named in {
        ("--seeds", "x"): "--seeds 'x': no list of numbers; give",
        ("--seeds", "0,0"): "--seeds",
        ("--seeds", "0,,1"): "--seeds",
        ("--seeds", ","): "--seeds",
        ("--seeds", "-1"): "seeds",
        ("--seeds", "1.5"): "--seeds",
        ("--seeds", "1_0"): "--seeds",
        ("--seeds", "\u0663"): "--seeds",
        ("--seeds", "true"): "--seeds",
        ("--seeds", "0],[1"): "--seeds",
        ("--set", 'rows=[{{method="er",name="  "}}]'): "name",
        ("--set", 'title=" "'): "title",
        ("--set", 'probes=[{{name="p", train=["{here}/none.jsonl"]}}]'): "{here}/none.jsonl",
        ("--set", 'tokenizer.folder="~no_such_user/x"'): "~no_such_user/x",
        ("--seeds", "9" * 5000): "--seeds",
        ("--seeds", "9" * 30): "--seeds",
        ("--methods", ","): "--methods",
        ("--methods", "er,"): "--methods",
        ("--methods", "../er"): "../er",
        ("--methods", "elle"): "elle",
        ("--set", "x"): "--set",
        ("--set", "=1"): "--set",
        ("--set", 'training.clip=1\ntitle="x"'): "--set",
        ("--set", "training.clip=1\n[model]"): "--set",
        ("--set", "a..b=1"): "a",
        ("--set", "training=5"): "training",
        ("--set", "training.clip.x=1"): "clip",
        ("--set", f"training.clip={'9' * 5000}"): "clip",
        ("--set", f"title={'[' * 5000}"): "title",
        ("--set", "seeds=0"): "seeds",
        ("--set", "data.memory_tokens=15"): "data.memory_tokens",
        ("--options", "{here}/none.json"): "none.json",
        ("--options", "{here}"): "{here}",
        ("--charge-search",): "--options",
        ("--executor", "no_such"): "no_such",
        ("--parallel", "0"): "--parallel",
        ("--parallel", "-1"): "--parallel",
        ("--parallel", "x"): "--parallel",
        ("--no-such",): "--no-such",
        ("a", "b"): "a",
    }.items():
        yield Case(" ".join(given)[:40], (*run, *given), (named,))


def other_commands() -> Iterator[Case]:
    """A file where a folder is meant, and command lines of the other commands."""
    for command, options in (
        *(("run", ("--runs", "--out")), ("tune", ("--runs", "--out")), ("report", ("--runs", "--out"))),
        *((name, ("--runs",)) for name in ("status", "prepare", "cancel", "speed")),
    ):
        dry = ("--dry-run",) if command in ("run", "tune") else ()
        for option in options:
            given = (command, SUITE, *dry, *(part for one in options for part in (one, "{here}/folder")))
            yield Case(
                f"{command} {option} FILE", (*given, option, "{here}/file"), ("{here}/file",), write("file", b"x")
            )
    for given, named in {
        ("frobnicate",): "frobnicate",
        ("run", "{place}"): "{place}",
        ("tune", SUITE, "--configurations", "0", *PLACES): "--configurations",
        ("tune", SUITE, "--configurations", "99", *PLACES): "--configurations",
        ("report", SUITE, "--view", "no_such", *PLACES): "no_such",
        ("speed", SUITE, "--pairs", "0", *RUNS): "--pairs",
        ("speed", SUITE, "--pairs", "-1", *RUNS): "--pairs",
        ("status", SUITE, "--runs", "~no_such_user/x"): "~no_such_user/x",
        ("check", "nave"): "nave",
        ("check", "../er"): "../er",
        ("check", "_distillation"): "_distillation",
        ("collect", SUITE, "--study", "{here}/none", "--runs", "{here}/none"): "{here}/none",
        ("verify", "{here}/none"): "{here}/none",
        ("verify", "{place}/tiny.toml"): "tiny.toml",
        ("verify", "{here}", "--stage", "../x"): "{here}",
        ("evaluate", "{here}/none", "--text", "{place}/a.jsonl"): "{here}/none",
        ("evaluate", "{place}/a.jsonl", "--text", "{place}/a.jsonl"): "a.jsonl",
        ("export", "{here}/none", "{here}/out"): "{here}/none",
        ("export", "{place}/a.jsonl", "{here}/out"): "a.jsonl",
        ("export", "--data", "no_such", "{here}/out"): "no_such",
        ("export", "--data", SUITE, "{here}"): "{here}",
        ("grow", "{here}/none", "--layers", "2", "--width", "32", "--out", "{here}/out"): "{here}/none",
    }.items():
        yield Case(" ".join(given)[:60], given, (named,))


def folders() -> Iterator[Case]:
    """Folders that cannot be made. A run must not find out when it has trained."""
    run = ("run", SUITE, "--methods", "naive")
    for command, option, other in (
        (run, "--out", "--runs"),
        ((*run, "--dry-run"), "--out", "--runs"),
        (("tune", SUITE, "--dry-run"), "--out", "--runs"),
        (("tune", SUITE, "--dry-run"), "--runs", "--out"),
        ((*run, "--dry-run"), "--runs", "--out"),
        (("report", SUITE), "--runs", "--out"),
        (("report", SUITE), "--out", "--runs"),
    ):
        given = (*command, option, "{place}/a.jsonl/x/y", other, "{here}/folder")
        yield Case(" ".join(given), given, (option, "{place}/a.jsonl: a file"))


def empty() -> Iterator[Case]:
    """Options without a value, as `"$UNSET"` gives them; methods and seeds would be all, a folder the current one."""
    for command, options in (
        (("cancel", SUITE, "--dry-run"), ("--methods", "--seeds", "--runs", "--options")),
        (("run", SUITE, "--dry-run"), ("--seeds", "--methods", "--out", "--runs")),
        (("verify", "{place}"), ("--runs", "--stage")),
    ):
        for option in options:
            yield Case(f"{command[0]} {option} ''", (*command, *RUNS, option, ""), (option,))


def pipes() -> Iterator[Case]:
    """Pipes in the place of files: whoever opened one would wait for ever."""
    task = 'tasks=[{{name="t", domain="a", train="{here}/p", dev="{place}/t.jsonl", test="{place}/t.jsonl"}}]'
    table = ("--set", "budget.unit=reference", "--set", "budget.amount=1", "--set", "budget.reference={here}/p")
    run = ("run", SUITE, "--dry-run", *PLACES)
    other = write("t/vocab.json", b"{}")
    for name, given in {
        "suite.toml": ("run", "{here}/suite.toml", "--dry-run", *PLACES),
        "site.toml": run,
        "options": (*run, "--options", "{here}/options"),
        "p": (*run, *table),
        "t/vocab.json": ("prepare", SUITE, *RUNS, "--set", "tokenizer.folder={here}/t"),
    }.items():
        yield Case(f"a pipe for {name}", given, ("{here}", "a pipe"), pipe(name))
    merges = ("prepare", SUITE, *RUNS, "--set", "tokenizer.folder={here}/t")
    yield Case("a pipe for merges.txt", merges, ("{here}/t", "a pipe"), both(other, pipe("t/merges.txt")))
    for examples in (("prepare", SUITE, "--runs", "{place}/runs"), run):
        named = ("task 't'", "a pipe")
        yield Case(f"{examples[0]}: a pipe for examples", (*examples, "--set", task), named, pipe("p"))
    yield Case("run: no file of examples", (*run, "--set", task), ("task 't': no file {here}/p",))


def step_times() -> Iterator[Case]:
    """Tables of step times."""
    row: dict[str, Any] = {"method": "naive", "options": {}, "settings": {}, "stages": []}
    for content in (
        b"",
        b"[]",
        b"{}",
        b'{"rows": 7}',
        b'{"rows": [7]}',
        b'{"rows": [{}]}',
        b"[" * 100_000,
        b"\xff",
        b'{"rows": ' + b"9" * 5000 + b"}",
        json.dumps({"rows": [row]}).encode(),
        json.dumps({"rows": [{**row, "settings": 7}]}).encode(),
    ):
        given = (
            "run",
            SUITE,
            "--dry-run",
            *PLACES,
            "--methods",
            "naive",
            "--set",
            "budget.unit=reference",
        )
        table = ("--set", "budget.reference={here}/times.json", "--set", "budget.amount=1")
        yield Case(f"table {content[:60]!r}", (*given, *table), ("times.json",), write("times.json", content))
    for content in (
        b"",
        b"[]",
        b"{}",
        b'{"rows": {}}',
        b'{"configurations": 1, "amounts": [1], "unit": "steps", "rows": {}}',
        b"[" * 100_000,
    ):
        chosen = ("run", SUITE, "--dry-run", *PLACES, "--options", "{here}/options.json")
        yield Case(f"options {content[:60]!r}", chosen, ("options.json",), write("options.json", content))


def chosen_options() -> Iterator[Case]:
    """What `tune` chose, and tokenizers."""
    choice = {"suite": "tiny", "domains": ["a"], "seed": 0, "configurations": 1, "unit": "steps", "amounts": [1.0]}
    for rate, options in (
        (-1, {}),
        (float("nan"), {}),
        (1e300, {}),
        (1.0, {"no_such": 1}),
        (1.0, {"replay": 2}),
        ("x", {}),
    ):
        rows = {name: {"rate": rate, "options": options} for name in ("Naive", "ER")}
        given = (
            "run",
            SUITE,
            "--dry-run",
            *PLACES,
            "--methods",
            "er",
            "--options",
            "{here}/options.json",
        )
        content = json.dumps({**choice, "rows": rows}).encode()
        yield Case(f"chosen {rate} {options}", given, ("options.json",), write("options.json", content))
    rows = {name: {"rate": 1.0, "options": {}} for name in ("Naive", "ER")}
    for field, value in (
        *(("unit", wrong) for wrong in (None, 7, "parsecs")),
        *(("amounts", [wrong]) for wrong in (float("nan"), float("inf"), -1.0, "x")),
        *(("configurations", wrong) for wrong in (0, -1, "x", 1.5)),
    ):
        content = json.dumps({**choice, "rows": rows, field: value}).encode()
        for charged in ((), ("--charge-search",)):
            chosen = ("run", SUITE, "--dry-run", *PLACES, "--options", "{here}/options.json", *charged)
            name = f"chosen {field} {value} {charged}"
            yield Case(name, chosen, ("options.json",), write("options.json", content))
    del choice["unit"]
    content = json.dumps({**choice, "rows": rows}).encode()
    chosen = ("run", SUITE, "--dry-run", *PLACES, "--options", "{here}/options.json")
    yield Case("chosen no unit", chosen, ("options.json",), write("options.json", content))
    for name, content in {"vocab.json": b"", "merges.txt": b"\xff"}.items():
        for vocabulary in (b"", b"[]", b"{}", b"7", b'{"a": 1}', b"[" * 100_000, b'{"a": "x"}'):
            make = both(write("t/vocab.json", vocabulary), write("t/merges.txt", content))
            prepared = ("prepare", SUITE, *RUNS, "--set", "tokenizer.folder={here}/t")
            yield Case(f"tokenizer {name} {vocabulary[:20]!r}", prepared, ("{here}/t",), make)
