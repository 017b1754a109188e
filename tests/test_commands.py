"""Which words the command line takes, and its errors for other words."""

from __future__ import annotations

import importlib.metadata
import re
import shlex

import pytest

import methods
import run_all
from benchmark.ledger.store import Store
from benchmark.settings.base import ConfigError
from benchmark.settings.command_line import LISTS, parse
from benchmark.settings.load import load_suite
from benchmark.training.processes import read_launch
from tests.support import synthetic

ROWS: list[tuple[str, str, dict[str, object]]] = [("Naive", "naive", {}), ("ER", "er", {})]


def test_a_word_that_is_no_command_runs_nothing(monkeypatch, capsys) -> None:
    """Oracle: exit status 2 (a user can fix it), a message with the word and all commands, and no
    command is called.
    """
    monkeypatch.setattr(
        run_all, "COMMANDS", dict.fromkeys(run_all.COMMANDS, lambda options: pytest.fail("it ran"))
    )
    with pytest.raises(SystemExit, match="2"):
        run_all.main(["reprot"])
    said = capsys.readouterr().err
    assert "'reprot'" in said and all(name in said for name in run_all.COMMANDS)


def test_an_error_names_the_command_as_it_is_called(capsys) -> None:
    """Oracle: the words that were typed."""
    with pytest.raises(SystemExit):
        run_all.main(["list", "zzz"])
    assert "\nrun_all.py list: error: " in capsys.readouterr().err


def test_help_names_each_command_once_with_an_example_that_is_understood(capsys) -> None:
    """Oracle: the parser itself takes every example, and the commands are those that run_all.py can
    call. The five for daily use come first.
    """
    with pytest.raises(SystemExit):
        run_all.main(["--help"])
    examples = re.findall(r"^  (\S.{39}\S?) ", capsys.readouterr().out, re.M)
    assert [parse(shlex.split(example), "").command for example in examples] == [
        *(example.split()[0] for example in examples)
    ]
    names = [example.split()[0] for example in examples]
    assert sorted(names) == sorted(run_all.COMMANDS)
    assert names[:5] == ["run", "status", "report", "check", "new-suite"]


def test_the_version_is_that_of_the_package(capsys) -> None:
    """Oracle: what pip installed."""
    with pytest.raises(SystemExit, match="^0$"):
        run_all.main(["--version"])
    name = "lifelong-pretraining-benchmark"
    assert capsys.readouterr().out == f"{name} {importlib.metadata.version(name)}\n"


@pytest.mark.parametrize("kind", LISTS)
def test_what_there_is_is_listed(kind: str, capsys) -> None:
    """Oracle: one name of each kind that the docs promise, and all names of methods. Each name has
    a description on its line, and below it a reason to take it.
    """
    assert run_all.main(["list", kind]) == 0
    printed = capsys.readouterr().out.splitlines()
    lines = [line.split(maxsplit=1) for line in printed if not line.startswith(" ")]
    reasons = [line.strip() for line in printed if line.startswith(" ")]
    assert all(reason.startswith("Take it ") for reason in reasons)
    assert len(reasons) == len(lines)
    known = {
        "methods": "er",
        "suites": "demo",
        "studies": "open_text",
        "tables": "main_pretraining",
        "architectures": "gpt",
        "optimizers": "muon",
    }
    assert known[kind] in dict(lines) and all(len(line) == 2 for line in lines)
    if kind == "methods":
        assert [name for name, _ in lines] == methods.list_names()


def test_list_alone_lists_everything(capsys) -> None:
    """Oracle: the lists of all kinds, one by one."""
    assert run_all.main(["list"]) == 0
    printed = capsys.readouterr().out
    for kind in LISTS:
        assert run_all.main(["list", kind]) == 0
        listed = capsys.readouterr().out.splitlines()
        assert "\n".join([f"{kind}:", *(f"  {line}" for line in listed)]) in printed


def test_track_and_compare_take_what_others_take(tmp_path, capsys) -> None:
    """By hand: the table of `compare` has ER, not Naive, and `track` writes events of one run."""
    synthetic.write(tmp_path / "runs", "demo", rows=ROWS, seeds=3, scores=False, similarities=False)
    words = ["--methods", "er", "--seeds", "1"]
    place = ["--runs", str(tmp_path / "runs"), "--out", str(tmp_path / "out")]
    assert run_all.main(["compare", str(tmp_path / "runs"), str(tmp_path / "runs"), *words]) == 0
    table = capsys.readouterr().out
    assert "ER" in table and "Naive" not in table
    assert (
        run_all.main(["compare", str(tmp_path / "runs"), str(tmp_path / "runs"), "--seeds", "9"])
        == 2
    )
    configs = methods.list_runs(load_suite("demo"), ("naive", "er"), [0, 1])
    for config in configs:
        synthetic.write_as(
            tmp_path / "runs", config, [f"{config.method}{config.seed}{i}" for i in range(5)], 5
        )
    Store(tmp_path / "runs").archive_mark.touch()  # archived records count without their text
    assert run_all.main(["track", "demo", *place, *words]) == 0
    assert [path.parent.name for path in (tmp_path / "out").rglob("events*")] == [configs[-1].id]


def test_set_reaches_entries_of_lists_by_name(tmp_path) -> None:
    """Oracle: the same suite with the values written in its file, and without a byte order mark."""
    domains = '{ name = "a", packages = ["json"] }, { name = "b", packages = ["csv"] }'
    size = "{ layers = 1, hidden_size = 64 }"
    suite = f'title = "T"\nmethods = []\nrows = [{{ method = "er" }}]\ndomains = [{domains}]\n'
    suite += f"budget = {{ amount = 1 }}\nmodel = {{ ladder = [{size}, {size}] }}\n"
    (tmp_path / "x.toml").write_text(suite, encoding="utf-8-sig")
    changed = suite.replace('["csv"]', '["csv"], hold_out = 0.5').replace(
        '"er"', '"er", options.replay_ratio = 0.5'
    )
    (tmp_path / "y.toml").write_text(f'name = "x"\n{changed}')
    asked = {"domains.b.hold_out": 0.5, "rows.er.options.replay_ratio": 0.5}
    assert load_suite(str(tmp_path / "x.toml"), asked) == load_suite(str(tmp_path / "y.toml"))
    for key, said in (
        ("domains.c.hold_out", "there are a, b"),
        ("domains.a", "domains.a.KEY"),
        ("tasks.c.seeds", "no tasks"),
    ):
        with pytest.raises(ConfigError, match=f"--set: '{key}'.*{said}"):
            load_suite(str(tmp_path / "x.toml"), {key: 1})


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"WORLD_SIZE": "8"}, (0, 1)),
        ({"RANK": ""}, (0, 1)),
        ({"RANK": "", "WORLD_SIZE": "2", "MASTER_ADDR": "a"}, (0, 1)),
        ({"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "a"}, (1, 2)),
    ],
)
def test_what_a_launcher_left_over_launches_nothing(
    variables: dict[str, str], expected: tuple[int, int], monkeypatch
):
    """Oracle: torchrun sets all three variables. If one is missing, there is one process."""
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert read_launch() == expected


@pytest.mark.parametrize(
    ("words", "seeds"),
    [
        (["--seeds", "0-4"], (0, 1, 2, 3, 4)),
        (["--seeds", "7,0-2"], (7, 0, 1, 2)),
        (["--seeds", "1", "0"], (1, 0)),
    ],
)
def test_seeds_are_a_list_or_a_range(words: list[str], seeds: tuple[int, ...]) -> None:
    """By hand: the numbers. A range includes its last one."""
    assert parse(["run", "demo", *words], "").seeds == seeds


@pytest.mark.parametrize("words", [["er,mas"], ["er", "mas"], ["er,mas", "er"]])
def test_names_of_methods_have_commas_or_blanks_between_them(words: list[str]) -> None:
    """By hand: each name once. The word before `--methods` is the suite."""
    options = parse(["run", "demo", "--methods", *words, "--dry-run"], "")
    assert options.methods == ("er", "mas") and options.suite == "demo" and options.dry_run
