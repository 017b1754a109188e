"""Texts that a suite may hold, one hostile to every format in each place: none is taken for markup, formula or code."""

from __future__ import annotations

import copy
import csv
import itertools
import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from submitit.slurm.slurm import _make_sbatch_string

import methods
import paper_tables
import run_all
from benchmark.errors import UserError
from benchmark.settings.load import load_suite
from benchmark.settings.suite import Suite
from tests.support import synthetic

HOSTILE = "=1+1|../../up<script>x</script>\\input{x}`x`$(x)'\"*x*;x"
FILES = ["x.jsonl"]
SPLITS = {"train": "x.jsonl", "dev": "x.jsonl", "test": "x.jsonl"}
BASE: dict[str, Any] = {
    "title": "Tiny",
    "tables": ["main_pretraining", "main_downstream"],
    "methods": [],
    "rows": [{"method": "er", "name": "ER"}],
    "domains": [{"name": name, "title": title, "train": FILES} for name, title in synthetic.DOMAINS],
    "probes": [{"name": "p", "train": FILES}],
    "tasks": [{"name": "mnli", "domain": "wb", **SPLITS}],
    "model": {"ladder": [{"layers": 1, "hidden_size": 64}] * 5},
    "budget": {"unit": "steps", "amount": 9},
}
HUB = {"path": "x"}
BESIDE: dict[str, dict[str, Any]] = {  # what such a place needs beside it, or instead of what is there
    "domains.0.packages": {"domains.0.train": []},
    "domains.0.datasets": {"domains.0.train": [], "domains.0.datasets": [HUB]},
    "probes.0.packages": {"probes.0.train": []},
    "probes.0.datasets": {"probes.0.train": [], "probes.0.datasets": [HUB]},
    "domains.0.sources": {"domains.0.train": [], "domains.0.sources": [{"train": ["x"]}]},
    "domains.0.sources.0.packages": {"domains.0.sources": [{}]},
    "domains.0.sources.0.datasets": {"domains.0.sources": [{"datasets": [HUB]}]},
    "probes.0.sources": {"probes.0.train": [], "probes.0.sources": [{"train": ["x"]}]},
    "probes.0.sources.0.packages": {"probes.0.sources": [{}]},
    "probes.0.sources.0.datasets": {"probes.0.sources": [{"datasets": [HUB]}]},
    "tasks.0.dataset": {**{f"tasks.0.{split}": None for split in SPLITS}, "tasks.0.dataset": HUB},
    "budget.reference": {"budget.unit": "reference"},
    "replay.text": {"replay.share": 0.3},
    "tuned.unit": {"tuned.configurations": 1, "tuned.spent": 1.0},
}
OF_A_MODEL = {"model.start", "model.revision"}  # they name one that must be there, or are refused
COMMANDS = {"setup", "teardown", "python"}  # they are for the shell: whoever writes a suite runs them


def places(schema: dict[str, Any], known: dict[str, Any], path: str = "") -> Iterator[str]:
    """Each place in a suite where the schema lets a text stand, as a dotted path."""
    options = [schema, *schema.get("anyOf", [])]
    for option in options:
        if "$ref" in option:
            yield from places(known[option["$ref"].rpartition("/")[2]], known, path)
        elif "properties" in option:
            for key, inner in option["properties"].items():
                yield from places(inner, known, f"{path}.{key}".strip("."))
        elif option.get("type") == "array":
            inside = option.get("items") or (option.get("prefixItems") or [{}])[0]
            yield from places(inside, known, f"{path}.0")
        elif option.get("type") == "object":
            yield f"{path}.x"
        elif option.get("type") == "string" and "enum" not in option and "const" not in option:
            yield path


def put(content: Any, path: str, value: Any) -> None:
    """Set the value at a dotted path, in the first entry of each list; None removes it."""
    parts = path.split(".")
    for part, after in itertools.pairwise(parts):
        empty: Any = [] if after == "0" else {}
        if isinstance(content, list):
            content.extend([empty][len(content) :])
            content = content[0]
        else:
            content = content.setdefault(part, empty)
    if isinstance(content, list):
        content[:] = [value]
    elif value is None:
        content.pop(parts[-1], None)
    else:
        content[parts[-1]] = value


def planted(*where: str, text: str = HOSTILE) -> dict[str, Any]:
    """A suite with a hostile text in these places."""
    content = copy.deepcopy(BASE)
    for place in where:
        for start, beside in BESIDE.items():
            if place.startswith(start):
                for path, value in beside.items():
                    put(content, path, copy.deepcopy(value))
        put(content, place, text)
    return content


def read(file: Path, content: dict[str, Any]) -> tuple[Suite, list[Any]]:
    """Read a suite as a command does, before it does anything."""
    suite = load_suite(str(file), content)
    configs = methods.runs(suite)
    paper_tables.measures(suite)
    return suite, configs


@pytest.fixture(scope="module")
def accepted(tmp_path_factory) -> tuple[Path, list[str]]:
    """A file for suites, and the places where the hostile text may stand; elsewhere it is what the error is about."""
    file = tmp_path_factory.mktemp("suites") / "tiny.toml"
    file.write_text("")
    schema = Suite.model_json_schema()
    names = []
    for place in set(places(schema, schema["$defs"])) - OF_A_MODEL:
        try:
            read(file, planted(place))
        except UserError as error:
            assert HOSTILE[:20] in str(error) or place.endswith(".x"), (place, str(error))
        else:
            names.append(place)
    return file, sorted(names)


@pytest.mark.parametrize("end", ["\n", "\r", "\x00"])
def test_no_text_of_a_suite_breaks_a_line(end: str, tmp_path) -> None:
    """Oracle: none that breaks one is taken anywhere, titles and commands too; what is said of it is one line."""
    (tmp_path / "tiny.toml").write_text("")
    schema = Suite.model_json_schema()
    for place in set(places(schema, schema["$defs"])) - OF_A_MODEL:
        with pytest.raises(UserError) as refused:
            read(tmp_path / "tiny.toml", planted(place, text=f"../../up{end}#SBATCH --wrap=x"))
        assert len(str(refused.value).splitlines()) == 1, place


def test_no_text_is_markup_or_a_formula_in_a_report(accepted, tmp_path, capsys) -> None:
    """Oracle: LaTeX's command, HTML's element and a spreadsheet's formula stand nowhere as such; each row of a Markdown
    table has as many cells. In as few suites as the places that go together allow."""
    file, left = accepted
    left = [place for place in left if not place.startswith(("slurm", "budget.reference"))]  # no page names a table
    assert len(left) > 20
    while left:
        together: list[str] = []
        for place in left:
            try:
                suite, configs = read(file, planted(*together, place))
                together.append(place)
            except (UserError, TypeError):  # a text and a list of texts do not go together
                continue
        suite, configs = read(file, planted(*together))
        left = [place for place in left if place not in together]
        folder = tmp_path / str(len(left))
        for number, config in enumerate(configs):
            keys = [f"{number}stage{index}" for index in range(5)]
            synthetic.write_as(folder / "runs", config, keys, finished=3)
        paper_tables.write_report([(suite, configs)], folder / "runs", folder / "out")
        check_report(folder / "out")
        assert {path.name for path in folder.iterdir()} == {"runs", "out"}, "no name leaves its folder"


def check_report(out: Path) -> None:
    for path in out.rglob("*.*"):
        text = path.read_text(encoding="utf-8") if path.suffix in (".tex", ".md", ".html", ".csv") else ""
        assert not (path.suffix in (".html", ".md") and re.search(r"(?<!\\)<script>x", text)), path
        assert not (path.suffix == ".tex" and "\\input" in text), path
        if path.suffix == ".md":
            tables = itertools.groupby(text.splitlines(), lambda line: line.startswith("|"))
            for rows in (list(rows) for is_table, rows in tables if is_table):
                assert len({len(re.findall(r"(?<!\\)\|", row)) for row in rows}) == 1, path
        if path.suffix == ".csv":
            fields = [field for line in csv.reader(text.splitlines()) for field in line]
            assert not [field for field in fields if field[:1] in ("=", "@")], path


KEPT = {  # what says which file it is, what kind, and what belongs together
    *("kind", "key", "stage_key", "id", "suite", "stages", "unit", "phase", "case", "name", "method", "prompt"),
    *("domain", "task", "architecture"),
}


def filled(value: Any, field: str = "") -> Any:
    """A record with a hostile text in place of each of its texts."""
    if isinstance(value, dict):
        return {name: filled(inner, name) for name, inner in value.items()}
    if isinstance(value, list):
        return [filled(inner, field) for inner in value]
    return f"{HOSTILE}{field}{value}" if isinstance(value, str) and field not in KEPT else value


def rewrite(file: Path, *more: dict[str, Any]) -> None:
    """Fill a file of records, and append lines."""
    lines = [filled(json.loads(line)) for line in file.read_text(encoding="utf-8").splitlines()]
    file.write_text("".join(json.dumps(line) + "\n" for line in [*lines, *more]), encoding="utf-8")


def test_no_text_of_a_record_is_markup_on_a_page(tmp_path, capsys) -> None:
    """Oracle: see `check_report`."""
    file, runs, out = tmp_path / "tiny.toml", tmp_path / "runs", tmp_path / "out"
    file.write_text("\n".join(f"{key} = {_toml(value)}" for key, value in planted().items()))
    (tmp_path / "x.jsonl").write_text(json.dumps({"text": "a"}))
    suite, configs = read(file, {})
    for config in configs:
        synthetic.write_as(runs, config, [f"stage{index}" for index in range(5)], finished=2)
    failed = {"kind": "failed", "time": 1.7e9, "stage": 2, "error": f"why\nboom {HOSTILE}", "traceback": "x"}
    for record in runs.rglob("*.jsonl"):
        rewrite(record, *([failed] if record.parent.name == suite.name else []))
    (tmp_path / "x.jsonl").unlink()  # records are believed where their text is not here
    assert run_all.main(["status", str(file), "--runs", str(runs)]) == 1
    assert "boom" in capsys.readouterr().out
    assert run_all.main(["report", str(file), "--runs", str(runs), "--out", str(out)]) == 0
    assert {".html", ".tex", ".csv", ".md"} <= {path.suffix for path in out.rglob("*.*")}
    check_report(out)


def _toml(value: Any) -> str:
    """A value as TOML writes it in one line."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {_toml(inner)}" for key, inner in value.items()) + "}"
    return "[" + ", ".join(map(_toml, value)) + "]" if isinstance(value, list) else json.dumps(value)


def test_no_text_is_code_in_a_batch_script(accepted, tmp_path) -> None:
    """Oracle: the shell's own rules: the text is one word, or a part of one, of a line; the lines are as many."""
    file, where = accepted
    where = [place for place in where if place.startswith("slurm") and COMMANDS.isdisjoint(place.split("."))]
    assert len(where) > 15
    for kind in ("train", "score", "report"):
        scripts = []
        for content in (planted(), planted(*where)):
            slurm = read(file, content)[0].slurm
            parameters = slurm.parameters(kind, ["steps"])
            scripts.append(_make_sbatch_string(command="true", folder=tmp_path, **parameters).splitlines())
        harmless, hostile = scripts
        script = [line for line in hostile if not line.startswith("#SBATCH")]
        assert len(script) == len([line for line in harmless if not line.startswith("#SBATCH")])
        lines = [line for line in hostile if HOSTILE[:4] in line]
        assert lines
        for line in lines:
            assert any(HOSTILE in word for word in shlex.split(line.removeprefix("#SBATCH "))), line
