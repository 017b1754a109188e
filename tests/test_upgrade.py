"""`upgrade` of a folder of `--runs` that version 1 wrote: four runs of a tiny suite, with scores.

tests/version_1.tar.gz has that folder, the suite, its text, and the two tables that version 1
rendered.
"""

from __future__ import annotations

import json
import shutil
import tarfile
from pathlib import Path
from typing import Any

import pytest

import methods
from benchmark.jobs import upgrade as upgrading
from run_all import main

ARCHIVE = Path(__file__).parent / "version_1.tar.gz"
TABLES = ("main_pretraining", "main_downstream")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Version 1's folder, unpacked, and made the current folder."""
    with tarfile.open(ARCHIVE) as tar:
        tar.extractall(tmp_path, filter="data")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def read_runs(place: Path) -> dict[str, bytes]:
    files = (place / "runs").rglob("*.jsonl")
    return {path.relative_to(place).as_posix(): path.read_bytes() for path in files}


def read_rows(table: Path) -> dict[str, list[str]]:
    """The numbers of a table's rows by label, because marks and order of rows are others today."""
    rows = {}
    for line in table.read_text().splitlines():
        if line.startswith("|") and "--" not in line:
            label, *cells = line.strip("|").split("|")
            rows[label.strip()] = [cell.strip(" †*") for cell in cells]
    return rows


def test_what_version_1_trained_is_shown_again(place: Path, capsys) -> None:
    """Oracle: the tables of version 1, and no work left if the text is not here. If it is, models
    are measured again (tests/test_decontamination.py).
    """
    assert main(["upgrade", "runs", "tiny.toml"]) == 0
    assert "4 runs, 7 stages" in capsys.readouterr().out
    upgraded = read_runs(place)
    for words in (["tiny.toml"], []):  # after the first call no suite is needed
        assert main(["upgrade", "runs", *words]) == 0
        assert read_runs(place) == upgraded
    for text in place.glob("*.jsonl"):
        text.unlink()
    capsys.readouterr()
    assert main(["status", "tiny.toml"]) == 0
    assert "4 runs, 4 done" in capsys.readouterr().out
    assert main(["report", "tiny.toml"]) == 0
    for name in TABLES:
        expected = read_rows(place / "expected" / f"{name}.md")
        assert expected
        rows = read_rows(place / "report/tiny" / f"{name}.md")
        assert {label: cells[: len(expected[label])] for label, cells in rows.items()} == expected


def test_a_call_that_was_killed_is_repeated(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    """Oracle: the files after an undisturbed call. The killed call has renamed all files but those
    of runs, and the repeated call reports no lost score.
    """
    shutil.copytree(place, place / "other", ignore=shutil.ignore_patterns("other"))
    assert main(["upgrade", "runs", "tiny.toml"]) == 0
    expected = read_runs(place)
    monkeypatch.chdir(place / "other")
    replace = upgrading._replace

    def kill(old: Path, new: Path, lines: Any) -> None:
        if "suites" in old.parts:
            raise KeyboardInterrupt
        replace(old, new, lines)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(upgrading, "_replace", kill)
        [*upgrading.upgrade([Path("runs"), Path("tiny.toml")], methods.build)]
    assert main(["upgrade", "runs", "tiny.toml"]) == 0
    assert "lost" not in capsys.readouterr().out
    assert read_runs(place / "other") == expected


def test_records_of_version_1_are_refused_with_the_cure(place: Path, capsys) -> None:
    """Oracle: by hand: the message names the file, both versions and the command."""
    assert main(["upgrade", "tiny.toml"]) == 0
    assert main(["status", "tiny.toml"]) == 2
    [message] = capsys.readouterr().err.splitlines()
    assert ".jsonl: " in message
    assert "version 1, this code reads 2" in message
    assert "run_all.py upgrade" in message


def test_scores_are_not_lost_where_their_suite_is_not_given(place: Path, capsys) -> None:
    """Oracle: the files as they were: one score per run has a patience that no suite here has."""
    before = read_runs(place)
    assert main(["upgrade", "runs"]) == 2
    assert "4 scores are of settings" in capsys.readouterr().err
    assert read_runs(place) == before


def test_a_run_that_is_not_what_its_name_says_is_not_renamed(place: Path, capsys) -> None:
    """Oracle: the run's id is a hash of its settings, and one of them was edited."""
    [file] = (place / "runs/suites/tiny").glob("er-*.jsonl")
    file.write_text(file.read_text().replace('"batch_size":10', '"batch_size":20'))
    assert main(["upgrade", "runs"]) == 2
    assert file.stem in capsys.readouterr().err
    assert file.exists()


def test_a_stage_that_the_method_of_today_would_not_train_keeps_its_key(
    place: Path, capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Oracle: by hand: ER has another version today, so its run is one of an earlier version. The
    first of the run's two stages is Naive's, too.
    """
    from methods.er import ER

    monkeypatch.setattr(ER, "version", 3)
    [file] = (place / "runs/suites/tiny").glob("er-*.jsonl")
    assert main(["upgrade", "runs", "tiny.toml"]) == 0
    assert "1 runs of an earlier version" in capsys.readouterr().out
    assert not file.exists()


def test_step_times_get_todays_names(tmp_path: Path) -> None:
    """Oracle: by hand: an option and a setting of ER get new names. The row of Naive stays."""
    table = tmp_path / "times.json"
    rows = [
        {"method": "er", "options": {"replay": 0.5}, "settings": {"training.clip": 1.0}},
        {"method": "naive", "options": {"replay": 0.5}, "settings": {}},
    ]
    table.write_text(json.dumps({"rows": rows}))
    assert main(["upgrade", str(table)]) == 0
    [er, naive] = json.loads(table.read_text())["rows"]
    assert er["options"] == {"replay_ratio": 0.5}
    assert er["settings"] == {"training.max_grad_norm": 1.0}
    assert naive == rows[1]
