"""Suites: which are refused with which message, and into which runs they expand."""

from __future__ import annotations

import math
import os
from pathlib import Path

import pytest

import methods
from benchmark.jobs import executors
from benchmark.settings.base import ConfigError
from benchmark.settings.load import expand, load_suite, parse_set
from benchmark.settings.names import list_suite_names
from benchmark.settings.suite import pick_for_stage
from benchmark.training.step_times import find_times
from docs import suite_keys

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


@pytest.fixture
def suite_file(tmp_path):
    def write(text: str = MINIMAL) -> str:
        path = tmp_path / "mine.toml"
        path.write_text(text)
        return str(path)

    return write


@pytest.mark.parametrize("name", list_suite_names())
def test_every_suite_loads_and_its_rows_build(name: str, monkeypatch) -> None:
    """Oracle: the suite's own declaration: one run per row and seed, each with another id, and one
    size per domain.
    """
    monkeypatch.setenv("LIFELONG_DATA", "/nowhere")
    suite = load_suite(name)
    runs = expand(suite, methods.list_rows(suite), suite.seeds)
    assert len(runs) == len(methods.list_rows(suite)) * len(suite.seeds)
    assert len({run.id for run in runs}) == len(runs)
    for run in runs:
        assert len(run.model.ladder) == len(run.domains)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            ("unit =", "units ="),
            "budget.units: no such key (did you mean 'unit'?); there are amount, reference, unit",
        ),
        (
            ('"steps"', '"hours"'),
            "budget.unit: no such unit; there are seconds, steps, tokens, flops, reference (got "
            "'hours')",
        ),
        (("amount = 3.0", "amount = [1.0, 2.0, 3.0]"), "budget.amount: 3 values for 2 domains"),
        (
            ("amount = 3.0", "amount = 0\nunits = 1"),
            "array or greater than 0 (got 0); and budget.units: no such key",
        ),
        (
            ("hidden_size = 128", "hidden_size = 100"),
            "hidden_size 100 is not a multiple of head_size 64",
        ),
        (('name = "b"', 'name = "a"'), "domains and probes: two have the name 'a'"),
        (
            (', packages = ["json"]', ""),
            "exactly one of packages, train, datasets, sources (given: none)",
        ),
        (('["naive"]', '["naiv"]'), "no method 'naiv' (did you mean 'naive'?); there are agem"),
    ],
)
def test_nonsense_is_refused_with_the_place_and_the_choices(suite_file, change, message) -> None:
    """By hand: one change spoils a suite. One line must name the key or the value, and what may
    stand there.
    """
    text = MINIMAL.replace(*change)
    assert text != MINIMAL
    with pytest.raises(ConfigError) as caught:
        methods.list_rows(load_suite(suite_file(text)))
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_the_environment_stands_in_paths_alone(suite_file, monkeypatch, tmp_path) -> None:
    """Oracle: `${NAME}` is replaced only in paths. In other texts, such as titles, names and
    options of jobs, a suite from a stranger could otherwise print a secret of the environment.
    """
    monkeypatch.setenv("SOME_TOKEN", "s3cret")
    monkeypatch.setenv("SOME_DATA", "/data")
    text = MINIMAL.replace('"T"', '"${SOME_TOKEN}"')
    text = text.replace('name = "a"', 'name = "a", title = "${SOME_TOKEN}"')
    text += "[slurm]\npartition = '${SOME_TOKEN}'\n[[rows]]\nname = 'r'\nmethod = 'er'\n"
    text += "[rows.set]\n'tokenizer.folder' = '${SOME_DATA}/bpe'\n"
    suite = load_suite(suite_file(text))
    assert "s3cret" not in suite.model_dump_json()
    assert suite.title == suite.domains[0].title == "${SOME_TOKEN}"
    runs = expand(suite, methods.list_rows(suite), [0])
    assert [run.tokenizer.folder for run in runs] == [None, "/data/bpe"]


def test_rows_override_and_share_nothing_else(suite_file) -> None:
    """Oracle: two rows of one method; the second has another memory and other options, hence
    another id.
    """
    text = MINIMAL.replace('methods = ["naive"]', "methods = []") + (
        '[[rows]]\nmethod = "er"\n'
        '[[rows]]\nname = "small"\nmethod = "er"\noptions = { replay_ratio = 0.5 }\n'
        'set = { "data.memory_tokens" = 5 }\n'
    )
    suite = load_suite(suite_file(text), {"training.learning_rate": 0.1})
    plain, small = expand(suite, methods.list_rows(suite), [3])
    assert (plain.row, small.row) == ("ER", "small")
    assert (plain.data.memory_tokens, small.data.memory_tokens) == (200_000_000, 5)
    assert plain.id != small.id and plain.id.startswith("er-s3-")
    assert (
        plain.model_copy(update={"options": small.options, "row": "small", "data": small.data}).id
        == small.id
    )
    assert pick_for_stage(small.training.learning_rate, 1) == 0.1


@pytest.mark.parametrize(
    ("method", "options", "message"),
    [
        (
            "er",
            {"replay_rati": 0.5},
            "replay_rati: no such key (did you mean 'replay_ratio'?); there are",
        ),
        ("er", {"replay_ratio": 1.5}, "replay_ratio: Input should be less than or equal to 1"),
        (
            "er",
            {"replay_ratio": math.nan},
            "replay_ratio: Input should be a finite number (got nan)",
        ),
        (
            "elle",
            {"growth_mode": "fp"},
            "growth_mode: Input should be 'fpi', 'exact' or 'aki' (got 'fp')",
        ),
    ],
)
def test_method_options_are_checked_when_built(method, options, message) -> None:
    """Oracle: the message names the option, what it may be and what it is."""
    with pytest.raises(ConfigError) as caught:
        methods.build(method, options)
    assert message in str(caught.value)


def test_set_values_are_toml_or_text() -> None:
    """The rule of `parse_set`: a value is TOML if it parses, else text. A setting without `=` is
    refused.
    """
    assert parse_set("a.b=[1, 2]") == ("a.b", [1, 2])
    assert parse_set("a.b=some/path") == ("a.b", "some/path")
    with pytest.raises(ConfigError, match="key.path=value"):
        parse_set("a.b")


def test_paths_are_relative_to_the_file_in_which_they_stand(tmp_path, monkeypatch) -> None:
    """Oracle: the absolute paths of the same files. They are the same from two working folders, for
    paths in a base, in rows and in a suite that `extends` it.
    """
    (tmp_path / "suites" / "more").mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    base = MINIMAL.replace(
        'packages = ["json"]', 'train = ["../text/a.txt", "/there/*.txt", "~/b.txt"]'
    )
    base = base.replace('unit = "steps"', 'unit = "reference"\nreference = "times.json"')
    row = '[[rows]]\nname = "r"\nmethod = "er"\n'
    row += 'set = { "tokenizer.folder" = "bpe", "data.memory_tokens" = 9 }\n'
    task = '[[tasks]]\nname = "t"\ndomain = "a"\n'
    task += 'train = "t.jsonl"\ndev = "../d.jsonl"\ntest = "${HERE}/t.jsonl"\n'
    (tmp_path / "suites" / "base.toml").write_text(base + task)
    (tmp_path / "suites" / "more" / "mine.toml").write_text(
        f'extends = "../base.toml"\ntokenizer.folder = "x"\n{row}'
    )
    monkeypatch.setenv("HERE", "set")
    lists = []
    for folder in (tmp_path, tmp_path / "elsewhere"):
        monkeypatch.chdir(folder)
        suite = load_suite(
            os.path.relpath(tmp_path / "suites" / "more" / "mine.toml"), {"probes": []}
        )
        assert (
            suite.domains[0].train[1:] == ("/there/*.txt", "~/b.txt")
            and suite.tasks[0].test == "set/t.jsonl"
        )
        config = expand(suite, methods.list_rows(suite, ("er",)), [0])[0]
        paths = (
            suite.domains[0].train[0],
            suite.budget.reference,
            suite.tasks[0].train,
            suite.tasks[0].dev,
        )
        lists.append(
            [
                os.path.abspath(str(path))
                for path in (*paths, suite.tokenizer.folder, config.tokenizer.folder)
            ]
        )
    names = [
        "text/a.txt",
        "suites/times.json",
        "suites/t.jsonl",
        "d.jsonl",
        "suites/more/x",
        "suites/more/bpe",
    ]
    assert lists == [[str(tmp_path / name) for name in names]] * 2


def test_step_times_of_a_suite_that_comes_with_the_project_are_named_alike_everywhere(
    tmp_path, monkeypatch
) -> None:
    """Oracle: the file's path within the project. Its times are found from another folder, too."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.toml").write_text('extends = "demo"\n')
    for name in ("demo", "mine.toml"):
        config = methods.list_runs(load_suite(name))[0]
        assert (
            config.budget.reference == "benchmark/suites/demo_times.json"
            and find_times(config)[0].phases
        )


def test_a_start_model_is_a_folder_or_a_name_on_the_hub(tmp_path, monkeypatch) -> None:
    """Oracle: the rule: a start model is a name on the Hub, unless a folder of that name is beside
    the suite. A relative path without a folder is an error.
    """
    monkeypatch.chdir(tmp_path)
    (tmp_path / "suites").mkdir()
    file = tmp_path / "suites" / "s.toml"
    text = MINIMAL.replace("{ layers = 1, hidden_size = 64 }, ", "")
    file.write_text(text.replace("[model]", '[model]\nstart = "m"'))
    assert load_suite("suites/s.toml").model.start == "m"
    (tmp_path / "suites" / "m").mkdir()
    assert load_suite("suites/s.toml").model.start == "suites/m"
    file.write_text(text.replace("[model]", '[model]\nstart = "../n"'))
    with pytest.raises(ConfigError, match=r"'\./n'"):
        methods.list_runs(load_suite("suites/s.toml"))


PROBE = 'probes = [{ name = "probe", train = ["${PLACE}/y.txt"], valid = ["${PLACE}/z.txt"] }]\n'


def test_a_run_is_known_wherever_its_files_lie(suite_file, monkeypatch) -> None:
    """Oracle: the rule: where files lie and how often checkpoints are written are no part of a
    run's id. The vocabulary is.
    """

    def ids(**changes: object) -> list[str]:
        suite = load_suite(
            str(
                suite_file(
                    PROBE + MINIMAL.replace('packages = ["json"]', 'train = ["${PLACE}/x.txt"]')
                )
            ),
            changes,
        )
        return [config.id for config in expand(suite, methods.list_rows(suite), [0])]

    monkeypatch.setenv("PLACE", "/here")
    here = ids()
    monkeypatch.setenv("PLACE", "/there")
    assert ids() == here == ids(**{"training.checkpoint_seconds": 5.0})
    assert ids(**{"tokenizer.vocabulary": 500}) != here


def test_a_row_sets_only_what_a_run_has(suite_file) -> None:
    """Oracle: the rule: a row cannot set keys that all rows share, or keys that all jobs share."""
    for key, value in (
        ("order", '"permute"'),
        ("slurm.array_parallelism", "2"),
        ("slurm.report", "{ time = 5 }"),
    ):
        suite = load_suite(
            suite_file(
                f'{MINIMAL}[[rows]]\nname = "x"\nmethod = "er"\nset = {{ "{key}" = {value} }}\n'
            )
        )
        with pytest.raises(ConfigError, match=f"row 'x': '{key}' .*all rows"):
            executors.check_sections(suite, expand(suite, methods.list_rows(suite), [0]))


def test_orders_of_domains(suite_file) -> None:
    """Oracle: each run has a permutation of the listed domains. Both orders occur among four seeds,
    and a seed always has the same order. Settings of stages and the tokenizer's domains keep their
    order.
    """
    suites = [load_suite(suite_file(), {"order": order}) for order in ("given", "permute")]
    given, *permuted = (
        config for suite in suites for config in expand(suite, methods.list_rows(suite), range(4))
    )
    listed = [domain.name for domain in given.domains]
    orders = [[domain.name for domain in config.domains] for config in permuted[3:]]
    assert (
        all(sorted(order) == listed for order in orders)
        and len({tuple(order) for order in orders}) == 2
    )
    assert [config.domains for config in permuted[3:]] == [
        config.domains for config in expand(suites[1], methods.list_rows(suites[1]), range(4))
    ]
    for config in permuted[3:]:
        assert (config.model, config.budget) == (given.model, given.budget)
        assert list(config.tokenizer.domains) == listed


def test_the_page_of_suite_keys_is_current() -> None:
    """Oracle: the settings' own descriptions; every key has one, or rendering fails."""
    page = (ROOT / "docs" / "suite_keys.md").read_text(encoding="utf-8")
    assert page == suite_keys.render(), "run `python -m docs.suite_keys > docs/suite_keys.md`"


def test_what_cannot_be_fine_tuned_is_refused_with_the_suite(suite_file) -> None:
    """By hand: with one domain there is no other whose prompt would be wrong; with two there is."""
    task = '[[tasks]]\nname = "t"\ndomain = "a"\ntrain = "t"\ndev = "t"\ntest = "t"\n'
    text = f'{MINIMAL}{task}[finetuning]\nprompts = ["right", "wrong"]\n'
    assert load_suite(suite_file(text)).finetuning.prompts == ("right", "wrong")
    one = text.replace(', { name = "b", packages = ["email"] }', "")
    one = one.replace(", { layers = 2, hidden_size = 128 }", "")
    with pytest.raises(ConfigError, match="finetuning.prompts: .*wrong"):
        load_suite(suite_file(one))
    assert load_suite(suite_file(one.replace(', "wrong"', ""))).tasks
