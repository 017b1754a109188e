"""What `status` prints besides the states of runs."""

from __future__ import annotations

import re
import shutil

import pytest

import run_all
from benchmark.locks import LeaseLost
from tests.support.programs import ROOT
from tests.support.suite_folder import SuiteFolder


@pytest.fixture
def tiny(tmp_path, texts) -> SuiteFolder:
    return SuiteFolder(tmp_path, texts).write('{ method = "naive" }', '{ method = "er" }')


@pytest.mark.parametrize("place", ["Run.__init__", "Run._choose_precision"])
def test_what_fails_before_a_first_stage_is_told_and_tried_again(
    tiny: SuiteFolder, monkeypatch, capsys, place: str
) -> None:
    """Oracle: as after a failure in a stage: the state, its reason, and the option to try again."""

    def fails(*_: object, **__: object) -> None:
        raise MemoryError("no room")

    tiny.write('{ method = "naive" }')
    tiny.file.write_text(tiny.file.read_text().replace("[40, 200]", "[2, 2]"))
    shutil.copytree(tiny.texts / "prepared" / "runs" / "data", tiny.runs / "data")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(f"benchmark.training.run.{place}", fails)
        assert tiny.call("run") == 1
    said = capsys.readouterr().err
    [file] = (tiny.runs / "suites" / "tiny").glob("naive-s0-*.jsonl")
    assert "1 failed" in said and str(file.parent) in said and "no room" in file.read_text()
    assert tiny.call("status") == 1
    told = capsys.readouterr().out
    assert (
        re.search("naive-s0 +failed", told)
        and "MemoryError: no room" in told
        and "--retry-failed` tries" in told
    )
    assert tiny.call("run", "--retry-failed") == 0
    assert tiny.states()["Naive"].state == "done"


def test_who_has_lost_text_to_another_process_says_nothing_of_the_run(
    tiny: SuiteFolder, monkeypatch
) -> None:
    """Oracle: as in a stage: another process may have the run by now, so the run has not failed."""

    def loses(*_: object, **__: object) -> None:
        raise LeaseLost("silent for too long")

    tiny.write('{ method = "naive" }')
    shutil.copytree(tiny.texts / "prepared" / "runs" / "data", tiny.runs / "data")
    monkeypatch.setattr("benchmark.training.run.Run.__init__", loses)
    assert tiny.call("run") == 1
    assert tiny.states()["Naive"].state == "todo"


def test_a_study_is_not_asked_to_follow_the_code(monkeypatch, capsys) -> None:
    """Oracle: the rule: a study keeps its records, so `status` does not say that code was changed,
    although here all of it was.
    """
    monkeypatch.setattr("benchmark.ledger.ledger._had_other_code", lambda *_: True)
    assert run_all.main(["status", "demo", "--runs", str(ROOT / "results" / "demo")]) == 0
    told = capsys.readouterr().out
    assert "9 done" in told and "code was changed" not in told
