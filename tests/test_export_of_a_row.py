"""`export SUITE --row NAME`: the last model of a row of a suite, whatever other runs are in the
folder.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import run_all
from tests.support import tiny_suite


def call(*words: str | Path) -> int:
    return run_all.main([*map(str, words)])


def test_a_row_is_exported_where_a_domain_was_added(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Oracle: the model of the longer stream's last stage, exported by the stage's folder, has the
    same bytes. The folder of runs also has a run of the shorter stream.
    """
    suite = tiny_suite.write(tmp_path)
    text = suite.read_text()
    shorter = 'domains = [{ name = "a", train = ["a.jsonl"] }]\ntokenizer = { domains = ["a"] }\n'
    shorter += "model = { ladder = [{ layers = 1, hidden_size = 16 }] }\n"
    (tmp_path / "short.toml").write_text(f'extends = "tiny.toml"\nname = "tiny"\n{shorter}')
    suite.write_text(text.replace("vocabulary = 300", 'vocabulary = 300\ndomains = ["a"]'))
    runs = tmp_path / "runs"
    assert (
        call(
            "run",
            tmp_path / "short.toml",
            "--runs",
            runs,
            "--out",
            tmp_path / "report",
            "--methods",
            "er",
        )
        == 0
    )
    assert call("export", suite, tmp_path / "early", "--row", "er", "--runs", runs) == 2
    assert " of 2 stages are done" in capsys.readouterr().err
    assert call("run", suite, "--runs", runs, "--out", tmp_path / "report", "--methods", "er") == 0
    assert len(list((runs / "suites" / "tiny").glob("er-s0-*.jsonl"))) == 2, (
        "which no glob tells apart"
    )
    assert call("export", suite, tmp_path / "row", "--row", "er", "--runs", runs) == 0
    [last] = (
        path.parent
        for path in runs.glob("stages/*/model")
        if '"index":1' in read_start(path.parent)
    )
    assert call("export", last, tmp_path / "stage") == 0
    both = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("row", "stage")]
    assert both[0] == both[1]
    assert call("export", suite, tmp_path / "none", "--row", "elle", "--runs", runs) == 2
    assert "--row elle: 0 rows of tiny" in capsys.readouterr().err


def read_start(stage: Path) -> str:
    return (stage / "records.jsonl").read_text().partition("\n")[0]


def test_a_study_has_no_models(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Oracle: the message names the study's folder, which holds only records."""
    study = Path(run_all.__file__).parent / "results" / "demo"
    assert call("export", "demo", tmp_path / "out", "--row", "elle", "--runs", study) == 2
    assert f"{study} is a study's folder" in capsys.readouterr().err
