"""A file that somebody adds to `methods/`: it can be run everywhere, and nothing else changes."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import methods
import run_all
from benchmark.settings import names
from benchmark.settings.base import ConfigError
from benchmark.settings.load import load_suite
from benchmark.settings.names import ROOT, SUITES
from benchmark.training.declaration import hash_code


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder beside `methods/` whose files are methods, too.

    It has the method of the first Python block in docs/adding_a_method.md.
    """
    folder = tmp_path / "scratch"
    folder.mkdir()
    page = (ROOT / "docs" / "adding_a_method.md").read_text(encoding="utf-8")
    [block, *_] = re.findall(r"^```python\n(.*?)^```", page, re.M | re.S)
    (folder / "l2_sp.py").write_text(block)
    monkeypatch.setattr(methods, "__path__", [*methods.__path__, str(folder)])
    yield folder
    methods.find.cache_clear()
    hash_code.cache_clear()
    for file in folder.glob("*.py"):
        sys.modules.pop(f"methods.{file.stem}", None)


def test_a_study_verifies_whatever_methods_there_are(scratch: Path, capsys) -> None:
    """Oracle: the demo's archive, whose nine runs and tables were recorded without this method."""
    assert run_all.main(["verify", str(ROOT / "results" / "demo")]) == 0
    assert "demo: 9 of 9 runs" in capsys.readouterr().out


def test_a_study_with_a_group_of_methods_is_refused(tmp_path: Path, capsys) -> None:
    """Oracle: the message names the suite and the group."""
    (tmp_path / "study").mkdir()
    (tmp_path / "study" / "mine.toml").write_text('extends = "demo"\n')
    assert run_all.main(["verify", str(tmp_path / "study")]) == 2
    assert re.search(r"study/mine\.toml: .*'baselines'", capsys.readouterr().err)


def test_the_paper_s_suites_have_no_row_of_a_scratch_file(scratch: Path, monkeypatch) -> None:
    """Oracle: by hand: of all suites, only the demo and the one that extends it have the new row.
    The paper's main suite has the eight rows of its table.
    """
    for name in ("LIFELONG_DATA", "S2ORC", "OPENWEBTEXT"):
        monkeypatch.setenv(name, "/data")
    having = {
        file.stem
        for file in SUITES.glob("*.toml")
        if "l2_sp" in [row.method for row in methods.list_rows(load_suite(file.stem))]
    }
    assert having == {"demo", "demo_bert"}
    eight = ["naive", "ewc", "mas", "agem", "er", "logit_kd", "pnn", "elle"]
    assert [row.method for row in methods.list_rows(load_suite("bert_base"))] == eight


def test_any_method_can_be_a_row_of_any_suite(scratch: Path) -> None:
    """Oracle: by hand: the new row has the method's title, and comes after the suite's rows, which
    keep their places and so their colours. An option of the command line applies to it.
    """
    suite = load_suite("ewc_lambda", {"options.l2_sp.strength": 0.5})
    rows = methods.list_rows(suite, ("naive", "l2_sp"))
    assert [(row.name, row.method) for row in rows] == [("Naive", "naive"), ("L2-SP", "l2_sp")]
    runs = methods.list_runs(suite, ("l2_sp", "naive"), [0])
    count = len(methods.list_rows(load_suite("ewc_lambda")))
    assert [(run.method, run.row_index, run.options) for run in runs] == [
        ("naive", 0, {}),
        ("l2_sp", count, {"strength": 0.5}),
    ]


def test_two_files_with_one_title_are_both_named(scratch: Path) -> None:
    """Oracle: the two files' names in the message."""
    shutil.copy(scratch / "l2_sp.py", scratch / "anchored.py")
    with pytest.raises(
        ConfigError, match=r"named L2-SP: .*methods/anchored\.py and methods/l2_sp\.py"
    ):
        methods.list_rows(load_suite("demo"))


@pytest.mark.parametrize(
    "command", [["check", "l2sp"], ["status", "demo", "--methods", "er,l2sp"]], ids=" ".join
)
def test_a_misspelt_method_is_told_what_is_near(scratch: Path, command: list[str], capsys) -> None:
    """Oracle: the word that was given, and the name that differs from it in one character."""
    assert run_all.main(command) == 2
    assert "no method 'l2sp' (did you mean 'l2_sp'?)" in capsys.readouterr().err


@pytest.mark.parametrize("command", [["status", "demo"], ["check", "half"]], ids=" ".join)
def test_a_file_that_is_no_python_is_named(scratch: Path, command: list[str], capsys) -> None:
    """Oracle: by hand: the file and its line. Suites that name their methods keep their rows."""
    (scratch / "half.py").write_text("\ndef (\n")
    assert run_all.main(command) == 2
    assert "half.py:2: " in capsys.readouterr().err
    assert len(methods.list_rows(load_suite("ewc_lambda"))) > 1
    assert names.read_first_line(scratch / "half.py").endswith("in line 2")


def test_a_suite_that_stands_behind_the_methods_is_told_its_place(capsys) -> None:
    """Oracle: `--methods er demo` names two methods, and the second is a suite's name."""
    assert run_all.main(["status", "--methods", "er", "demo"]) == 2
    assert "no method 'demo' (a suite comes before --methods)" in capsys.readouterr().err
