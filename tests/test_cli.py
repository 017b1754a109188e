"""Commands as a user types them, for a suite of made-up text with a budget in steps."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import run_all
from benchmark.ledger.records import StageDone
from benchmark.ledger.runs import load_runs
from tests.support import tiny_suite

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    return tiny_suite.write(tmp_path_factory.mktemp("cli")).parent


@pytest.fixture
def cli(place, capsys):
    def call(command: str, *options: object) -> tuple[int, str]:
        out = ["--out", place / "report"] if command in ("run", "report") else []
        code = run_all.main(
            [command, *map(str, [place / "tiny.toml", "--runs", place / "runs", *out, *options])]
        )
        captured = capsys.readouterr()
        return code, captured.out + captured.err

    return call


def command_in(text: str) -> list[str]:
    """The command that a text names, as a shell would split it."""
    [command] = re.findall(r"`python run_all.py ([^`]+)`", text)
    return shlex.split(command)


@pytest.mark.parametrize("begun", [None, "", "suites/tiny"])
def test_whoever_only_asks_makes_nothing(cli, place, begun: str | None) -> None:
    """Oracle: the listing of a folder of runs, which may be another user's or missing: commands
    that only read leave it as it was.
    """
    runs = place / "asked"
    if begun is not None:
        (runs / begun).mkdir(parents=True)
    before = sorted(runs.rglob("*"))
    asked = [("status",), ("run", "--dry-run"), ("report",)]
    for command, *options in asked:
        assert cli(command, *options, "--runs", runs)[0] == 0
        assert sorted(runs.rglob("*")) == before and runs.exists() == (begun is not None), command
    shutil.rmtree(runs, ignore_errors=True)


def test_from_suite_to_table_and_nothing_twice(cli, place) -> None:
    """Oracle: by hand: two runs of two stages share the first, so there are three stages of 6
    steps, trained once, and then a table with both rows. The commands in the output can be pasted,
    with the suite as a path and records in another folder.
    """
    code, text = cli("run", "--dry-run")
    assert code == 0 and "2 of 2 runs, 18 steps" in text
    code, text = cli("status")
    assert "2 runs, 2 todo" in text

    assert run_all.main([*command_in(text), "--parallel", "1", "--out", str(place / "report")]) == 0
    table = (place / "report" / "tiny" / "main_pretraining.md").read_text()
    assert "Naive" in table and "ER" in table
    assert (place / "report" / "tiny" / "trend_main.pdf").stat().st_size > 1000
    stages = sorted((place / "runs" / "stages").iterdir())
    assert len(stages) == 3
    before = {stage: (stage / "records.jsonl").read_bytes() for stage in stages}

    code, text = cli("run", "--parallel", 1)
    assert code == 0 and f"{place / 'runs'}: 2 runs, 2 done" in text
    assert {stage: (stage / "records.jsonl").read_bytes() for stage in stages} == before
    code, text = cli("run", "--dry-run")
    assert "0 of 2 runs" in text
    assert run_all.main([*command_in(text), "--out", str(place / "again")]) == 0
    assert (place / "again" / "tiny" / "main_pretraining.md").read_text() == table
    assert command_in(cli("status", "--set", "tables=[]")[1])[-2:] == ["--set", "tables=[]"]


def test_speed_writes_the_table_that_a_reference_budget_needs(cli, place) -> None:
    """Oracle: by hand: with the unit 'reference', a budget of Naive's measured set-up time and 3.5
    of its measured steps is spent by four steps.
    """
    table = place / "times.json"
    code, text = cli("speed", "--pairs", 1, "--reference", table, "--methods", "naive")
    assert code == 0 and "Naive" in text
    times = json.loads(table.read_text())["rows"][0]["stages"][0]
    step = times["phases"]["adapt"]
    assert step > 0
    budget = [
        "budget.unit=reference",
        f"budget.amount={times['set_up'] + 3.5 * step}",
        f"budget.reference={table}",
    ]
    options = [part for item in budget for part in ("--set", item)]
    code, text = cli("run", "--methods", "naive", "--seeds", 7, *options)
    assert code == 0
    run = next(run for run in load_runs(place / "runs", "tiny") if run.seed == 7)
    assert next(line for line in run.stages[0] if isinstance(line, StageDone)).charged["steps"] == 4


def test_ctrl_c_ends_a_command_in_one_line(monkeypatch, capsys) -> None:
    """Oracle: 130, a shell's status for a command that Ctrl-C ended. Ctrl-C in `status --watch`
    does not stop the sweep, so the one line must not say so: it names `run`.
    """

    def interrupt(_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setitem(run_all.COMMANDS, "status", interrupt)
    assert run_all.main(["status", "demo", "--watch"]) == 130
    assert "`run`" in (said := capsys.readouterr().err.strip()) and "\n" not in said


def test_a_reader_that_has_read_enough_is_no_error() -> None:
    """Oracle: 141, a shell's status for a command that SIGPIPE ended, and nothing on stderr."""
    words = [sys.executable, "run_all.py", "run", "demo", "--dry-run", "--runs", "/nonexistent"]
    with subprocess.Popen(
        words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as call:
        assert call.stdout and call.stderr
        call.stdout.close()
        said = call.stderr.read()
    assert (call.returncode, said) == (141, "")


def test_an_option_knows_the_home(monkeypatch, tmp_path, capsys) -> None:
    """Oracle: a shell's rule: `~` is HOME. No shell expands it in `--runs=~/x`, so Python must."""
    monkeypatch.setenv("HOME", str(tmp_path))
    assert run_all.main(["status", "demo", "--runs=~/x"]) == 0
    assert str(tmp_path / "x") in capsys.readouterr().out
