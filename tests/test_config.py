"""Suites: what is refused and how the message reads; what expands into which runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import methods
from benchmark.settings import suite_keys
from benchmark.settings.config import (
    Budget,
    ConfigError,
    Data,
    Domain,
    HubDataset,
    Model,
    Row,
    Size,
    Suite,
    Tokenizer,
    Training,
    per_stage,
)
from benchmark.settings.slurm_settings import Slurm
from benchmark.settings.suite_files import expand, load_suite, parse_set, suite_names
from benchmark.settings.task_settings import Docstrings, Finetuning, HubTask, Task

ROOT = Path(__file__).parent.parent
MINIMAL = """
title = "T"
methods = ["naive"]
domains = [{ name = "a", packages = ["json"] }, { name = "b", packages = ["email"] }]
[model]
ladder = [{ layers = 1, hidden_size = 64 }, { layers = 2, hidden_size = 128 }]
[budget]
unit = "steps"
amount = 3.0
"""

SECTIONS = {
    "At the top": Suite,
    "[[rows]]": Row,
    "[[domains]]": Domain,
    "[[domains.datasets]]": HubDataset,
    "[[probes]]": Domain,
    "[[probes.datasets]]": HubDataset,
    "[tokenizer]": Tokenizer,
    "[data]": Data,
    "[model]": Model,
    "[[model.ladder]]": Size,
    "[training]": Training,
    "[budget]": Budget,
    "[[tasks]]": Task,
    "[tasks.dataset]": HubTask,
    "[tasks.docstrings]": Docstrings,
    "[finetuning]": Finetuning,
    "[slurm]": Slurm,
}


@pytest.fixture
def suite_file(tmp_path):
    def write(text: str = MINIMAL) -> str:
        path = tmp_path / "mine.toml"
        path.write_text(text)
        return str(path)

    return write


@pytest.mark.parametrize("name", suite_names())
def test_every_suite_loads_and_its_rows_build(name: str, monkeypatch) -> None:
    """Oracle: the suite's own declaration: rows times seeds, one rung, budget and rate for each domain."""
    monkeypatch.setenv("LIFELONG_DATA", "/nowhere")
    suite = load_suite(name)
    runs = expand(suite, methods.rows(suite), suite.seeds)
    assert len(runs) == len(methods.rows(suite)) * len(suite.seeds)
    assert len({run.id for run in runs}) == len(runs)
    for run in runs:
        assert len(run.model.ladder) == len(run.domains)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("unit =", "units ="), "budget.units: no such key (did you mean 'unit'?); there are amount, reference, unit"),
        (
            ('"steps"', '"hours"'),
            "budget.unit: no such unit; there are seconds, steps, tokens, flops, reference (got 'hours')",
        ),
        (("amount = 3.0", "amount = [1.0, 2.0, 3.0]"), "budget.amount: 3 values for 2 domains"),
        (("amount = 3.0", "amount = 0"), "amount 0.0 must be positive"),
        (("hidden_size = 128", "hidden_size = 100"), "hidden_size 100 is not a multiple of head_size 64"),
        (('name = "b"', 'name = "a"'), "names must differ, got a, a"),
        ((', packages = ["json"]', ""), "exactly one of packages, train, datasets (given: none)"),
        (('title = "T"', "title = "), "not TOML"),
        (('["naive"]', '["naiv"]'), "no method 'naiv'; did you mean 'naive'?"),
    ],
)
def test_nonsense_is_refused_with_the_place_and_the_choices(suite_file, change, message) -> None:
    text = MINIMAL.replace(*change)
    assert text != MINIMAL
    with pytest.raises(ConfigError) as caught:
        methods.rows(load_suite(suite_file(text)))
    assert message in str(caught.value)


def test_unknown_suite_names_the_choices() -> None:
    with pytest.raises(ConfigError, match="no suite 'dem'. Did you mean 'demo'"):
        load_suite("dem")


def test_environment_variables(suite_file, monkeypatch) -> None:
    path = suite_file(MINIMAL.replace('packages = ["json"]', 'train = ["${SOME_DATA}/x.txt"]'))
    with pytest.raises(ConfigError, match="environment variable SOME_DATA"):
        load_suite(path)
    monkeypatch.setenv("SOME_DATA", "/data")
    assert load_suite(path).domains[0].train == ("/data/x.txt",)


def test_rows_override_and_share_nothing_else(suite_file) -> None:
    """Oracle: two rows of one method; the second has another memory and other options, hence another id."""
    text = MINIMAL.replace('methods = ["naive"]', "methods = []") + (
        '[[rows]]\nmethod = "er"\n[[rows]]\nname = "small"\nmethod = "er"\noptions = { replay = 0.5 }\n'
        'set = { "data.memory_tokens" = 5 }\n'
    )
    suite = load_suite(suite_file(text), {"training.learning_rate": 0.1})
    plain, small = expand(suite, methods.rows(suite), [3])
    assert (plain.row, small.row) == ("ER", "small")
    assert (plain.data.memory_tokens, small.data.memory_tokens) == (200_000_000, 5)
    assert plain.id != small.id and plain.id.startswith("er-s3-")
    assert per_stage(small.training.learning_rate, 1) == 0.1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"replya": 0.5}, "replya: no such key (did you mean 'replay'?); there are replay"),
        ({"replay": "much"}, "Input should be a valid number"),
    ],
)
def test_method_options_are_checked_when_built(options, message) -> None:
    with pytest.raises(ConfigError) as caught:
        methods.build("er", options)
    assert message in str(caught.value)


def test_set_values_are_toml_or_text() -> None:
    assert parse_set("a.b=[1, 2]") == ("a.b", [1, 2])
    assert parse_set("a.b=some/path") == ("a.b", "some/path")
    with pytest.raises(ConfigError, match="key.path=value"):
        parse_set("a.b")


def test_a_run_is_known_wherever_its_files_lie(suite_file, monkeypatch) -> None:
    """Oracle: the rule: folders, titles and the pace of checkpoints are no part of a run; its vocabulary is."""

    def ids(**changes: object) -> list[str]:
        suite = load_suite(
            str(suite_file(MINIMAL.replace('packages = ["json"]', 'train = ["${PLACE}/x.txt"]'))), changes
        )
        return [config.id for config in expand(suite, methods.rows(suite), [0])]

    monkeypatch.setenv("PLACE", "/here")
    here = ids()
    monkeypatch.setenv("PLACE", "/there")
    assert ids() == here == ids(**{"training.checkpoint_seconds": 5.0})
    assert ids(**{"tokenizer.vocabulary": 500}) != here


def test_mistakes_answer_without_a_traceback() -> None:
    command = [sys.executable, "run_all.py", "run", "demo", "--set", "model.depth=3"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 2
    assert result.stderr.startswith("error: suite 'demo': model.depth: no such key; there are architecture, dropout")


def test_the_page_of_suite_keys_is_current() -> None:
    """Oracle: the settings' own descriptions; every key has one, or rendering fails."""
    page = (ROOT / "docs" / "suite_keys.md").read_text(encoding="utf-8")
    assert page == suite_keys.render(), "run `python -m benchmark.settings.suite_keys > docs/suite_keys.md`"


def test_the_page_names_every_key() -> None:
    """Oracle: the fields of all settings that a suite is made of, section by section."""
    sections = {section.split("\n")[0]: section for section in suite_keys.render().split("\n## ")}
    assert len(sections) == 1 + len(SECTIONS)
    for header, settings in SECTIONS.items():
        for key in settings.model_fields:
            assert f"\n| `{key}` |" in sections[header], f"{header} lacks {key}"
