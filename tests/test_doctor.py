"""`run_all.py doctor`. Oracles: what is put in its way, and what a stand-in for Slurm was asked."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import run_all
from benchmark.jobs.executors import local
from benchmark.jobs.executors.slurm import commands
from benchmark.jobs.executors.slurm.commands import SlurmError
from benchmark.settings.load import load_suite

ANSWER = "n1 sees this folder, and has torch 2.13.0 4 accelerators\n"
GPUS = ("--set", "slurm.gpus_per_node=1")


@pytest.fixture
def cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> Callable[..., list[str]]:
    """A function that runs `doctor` with a stand-in for Slurm, and returns the lines of `doctor`.

    A node answers `answer`. If given, sbatch refuses jobs with `refusal`, and sinfo fails with
    `silence`.
    """

    def look(answer: str, *words: str, refusal: str = "", silence: str = "") -> list[str]:
        scripts: list[str] = []

        def ask(*command: str, patience: float = 0.0) -> str:
            if command[0] == "sinfo":
                if silence:
                    raise SlurmError(silence)
                return ""
            scripts.append(Path(command[-1]).read_text())
            if refusal:
                raise SlurmError(refusal)
            if command[1] == "--wait" and answer:
                commands.find_log(Path(command[-1]).parent, "7").write_text(answer)
            return ""

        monkeypatch.setattr(commands, "ask", ask)
        look.code = run_all.main(["doctor", "demo", "--runs", str(tmp_path / "runs"), *words])  # type: ignore
        look.scripts = scripts  # type: ignore[attr-defined]
        assert not list((tmp_path / "runs").iterdir()), "nothing of it stays"
        return capsys.readouterr().out.splitlines()

    return look


def test_a_cluster_that_is_well(cluster: Any) -> None:
    """Oracle: by hand: each kind of job is tried with its own request. The node is asked with the
    Python of jobs that score, and its own words are shown.
    """
    told = cluster(
        ANSWER, "--set", "slurm.partition=long", "--set", 'slurm.score.python="own-python"'
    )
    assert cluster.code == 0 and all(line.startswith("ok ") for line in told)
    for kind in ("prepare", "train", "score", "report"):
        assert any(line.endswith(f" job to {kind}") for line in told), kind
    assert f"ok     {ANSWER.strip()}" in told
    assert all("#SBATCH --partition=long\n" in script for script in cluster.scripts)
    assert "own-python -c" in cluster.scripts[-1]


@pytest.mark.parametrize(
    ("answer", "words", "line"),
    [
        ("Traceback:\nImportError: x\n", (), "'ImportError: x'"),
        (ANSWER.replace(" 4 ", " 0 "), GPUS, ANSWER.replace(" 4 ", " 0 ").strip()),
        ("", (), " 10 minutes"),
    ],
)
def test_what_is_wrong_with_a_node(
    answer: str, words: tuple[str, ...], line: str, cluster: Any
) -> None:
    """Oracle: the node's answer, which the test puts in."""
    told = cluster(answer, *words)
    assert cluster.code == 1 and [
        text for text in told if text.startswith("wrong ") and line in text
    ]


def test_what_slurm_refuses(cluster: Any) -> None:
    """Oracle: sbatch's own words, in a line that names the kind of job."""
    told = cluster(ANSWER, refusal="invalid account")
    assert cluster.code == 1 and any(
        " train " in line and "(invalid account)" in line for line in told
    )


def test_a_machine_that_has_slurms_commands_and_no_cluster(cluster: Any) -> None:
    """Oracle: one line has the command's own words, and no job is tried. Nothing is wrong, because
    runs on this machine need no cluster.
    """
    told = cluster(ANSWER, silence="no configuration source")
    about_slurm = [line for line in told if "no configuration source" in line]
    assert len(about_slurm) == 1 and "this machine" in about_slurm[0]
    assert cluster.code == 0 and not cluster.scripts


def test_a_machine_without_slurm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """Oracle: a PATH without any program, so that there is no sinfo."""
    monkeypatch.setenv("PATH", str(tmp_path))
    assert run_all.main(["doctor", "demo", "--runs", str(tmp_path / "runs")]) == 0
    assert "(no sinfo here: " in capsys.readouterr().out


def folder_of(runs: Path) -> list[str]:
    """The lines about the folder, which follow the line about torch."""
    return [*local.examine(load_suite("demo"), [], runs)][1:]


def test_the_folder_of_the_runs(tmp_path: Path) -> None:
    """Oracle: by hand: a folder is fine, a file in its place is not."""
    [written] = folder_of(tmp_path)
    assert written.startswith("ok ") and "GB free" in written
    (tmp_path / "file").write_text("")
    [wrong] = folder_of(tmp_path / "file")
    assert (
        wrong.startswith("wrong")
        and str(tmp_path / "file") in wrong
        and "name another --runs" in wrong
    )
