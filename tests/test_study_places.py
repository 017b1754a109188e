"""Studies and records that lie elsewhere, or not at all."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path

import pytest

import methods
import run_all
from analysis.comparison import Side, select_one_trial
from analysis.report import write_report
from benchmark.jobs import study
from benchmark.ledger import records
from benchmark.ledger.archive import ResultsError
from benchmark.ledger.records import RecordsError
from benchmark.ledger.runs import load_runs, make_run_line
from benchmark.settings.load import load_suite
from tests.support import synthetic, tiny_suite

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("has_folder", [True, False])
def test_a_study_without_records_is_not_verified(has_folder: bool, tmp_path: Path) -> None:
    """By hand: without an archive there is nothing to verify, even if a folder `records` exists."""
    tiny_suite.write(tmp_path).rename(tmp_path / "tiny.toml")
    if has_folder:
        (tmp_path / "records").mkdir()
    suites = methods.load_study_runs(tmp_path)
    render = partial(write_report, only_tables=True)
    with pytest.raises(ResultsError, match=f"{tmp_path}: nothing to verify.*records"):
        list(study.verify(tmp_path, suites, render, methods.build))


@pytest.mark.parametrize("place", [shutil.copy, shutil.move])
def test_a_copied_file_of_a_run_is_said_to_be_one(place, tmp_path: Path) -> None:
    """By hand: a run's file under another name is refused, with the original beside it or not."""
    synthetic.write(tmp_path, "demo", seeds=1)
    runs = load_runs(tmp_path, "demo")
    side = Side("A", {"demo": runs})
    assert len(select_one_trial(side, "demo", {})) == len(runs)
    folder = tmp_path / "suites" / "demo"
    place(folder / f"{runs[0].id}.jsonl", folder / "backup.jsonl")
    with pytest.raises(RecordsError, match=rf"suites/demo/backup.* {runs[0].id}\.jsonl"):
        load_runs(tmp_path, "demo")


@pytest.mark.parametrize("place", [shutil.copy, shutil.move])
@pytest.mark.parametrize("command", ["status", "run --dry-run", "report", "collect"])
def test_each_command_says_so(place, command: str, tmp_path: Path, capsys) -> None:
    """By hand: every command refuses the copy, and none takes the run for one without records."""
    suite = tiny_suite.write(tmp_path)
    [config, *_] = methods.list_runs(load_suite(str(suite)))
    folder = tmp_path / "runs" / "suites" / "tiny"
    folder.mkdir(parents=True)
    own = folder / f"{config.id}.jsonl"
    records.append(own, make_run_line(config))
    place(own, folder / "backup.jsonl")
    name, *flags = command.split()
    study_folder = ["--study", str(tmp_path)] if name == "collect" else []
    runs = ["--runs", str(tmp_path / "runs")]
    assert run_all.main([name, str(suite), *flags, *study_folder, *runs]) == 2
    assert f"{folder / 'backup.jsonl'} holds the run {config.id}" in capsys.readouterr().err
