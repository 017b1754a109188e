"""The jobs of a search, which `tune` submits for a suite: `status` of the suite shows them, and `cancel` ends them."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from benchmark.jobs.slurm import commands, job_files
from benchmark.jobs.slurm.commands import each_task
from benchmark.jobs.status import watch
from benchmark.jobs.survey import Survey
from tests.support.fake_slurm import FakeSlurm
from tests.support.job_lines import STARTED, ask, write_job
from tests.support.slurm_lab import Lab, write_texts

TUNE = ("tune", "--executor", "slurm", "--configurations", "2")


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    write_texts(tmp_path)
    return Lab(tmp_path / "lab", tmp_path).write('{ method = "naive" }', '{ method = "er" }')


def searched(lab: Lab) -> set[str]:
    """The ids of the search's jobs."""
    return {job.id for job in job_files.read(job_files.folder_of(lab.runs, "tiny-tune"))}


def told(lab: Lab, capsys: pytest.CaptureFixture[str], *words: str) -> str:
    capsys.readouterr()
    assert lab.call(*words) == 0
    return capsys.readouterr().out


def test_what_tune_calls_next_shows_its_jobs_and_ends_them(lab: Lab, tmp_path, monkeypatch, capsys) -> None:
    """Oracle: the job files of the search, and Slurm's table: the commands that are told end all of it and no more, and
    `tune` submits as many again."""
    slurm = FakeSlurm(tmp_path / "bin", monkeypatch)
    [command] = re.findall(r"next: `python run_all.py (\w+) \S+.*` says how they do", told(lab, capsys, *TUNE))
    first = searched(lab)
    assert first and first == set(slurm.jobs)
    said = told(lab, capsys, command)
    assert f"search: {len(first)} jobs: {len(first)} waiting; " in said
    assert f"next: `python run_all.py status {lab.file} --runs {lab.runs} --watch` shows it again" in said
    [ends] = re.findall(r"`(scancel .*?)` ends them", said)
    assert {id for word in shlex.split(ends)[1:] for id in each_task(word)} == first
    assert lab.submit() == 0
    would = told(lab, capsys, "cancel", "--dry-run")
    assert would.startswith(f"{len(slurm.jobs)} jobs would be ended") and all(
        f"{id}  tiny" in would for id in slurm.jobs
    )
    some = told(lab, capsys, "cancel", "--methods", "er")
    assert f"{len(first)} jobs of `tune` go on: `cancel` without a choice of runs ends them too" in some
    assert first <= set(slurm.jobs)
    said = told(lab, capsys, "cancel")
    assert not slurm.jobs and re.search("run_all.py run .*` and the same `tune` as before go on from", said)
    assert "of `tune`" not in said
    told(lab, capsys, *TUNE)
    assert len(searched(lab) - first) == len(first) and set(slurm.jobs) == searched(lab) - first
    assert told(lab, capsys, "cancel").startswith(f"ended {len(first)} jobs; the same `tune` as before goes on from")


def test_a_search_is_told_until_it_is_done(lab: Lab, monkeypatch, capsys) -> None:
    """Oracle: its job files: what failed or was lost is told with its log, what is done is not."""
    ask(monkeypatch, {})
    of_search = lab.as_suite("tiny-tune")
    ends = {"done": {}, "failed": {"error": "ValueError: why"}}
    for id, (state, how) in enumerate(ends.items(), 6):
        write_job(of_search, "ER", STARTED, {"kind": "ended", "state": state, **how}, id=str(id), key=state)
    said = told(lab, capsys, "status")
    assert "search: 2 jobs: 1 done, 1 failed; `tune` as before" in said and "scancel" not in said
    assert re.search(r"  failed  7  ValueError: why; log \S+", said)
    write_job(of_search, "ER", STARTED, {"kind": "ended", "state": "done"}, id="8", key="failed")
    assert "search: " not in told(lab, capsys, "status")
    assert "search: " not in told(lab.as_suite("other"), capsys, "status")


def test_status_watches_a_search(lab: Lab, tmp_path, monkeypatch, capsys) -> None:
    """Oracle: Slurm's table, which is empty after the second look; the watch ends then, and not before."""
    slurm = FakeSlurm(tmp_path / "bin", monkeypatch)
    told(lab, capsys, *TUNE)
    plan, looks = lab.plan(), []

    def sleep(_: float) -> None:
        looks.append(len(slurm.jobs))
        slurm.cancelled |= set(slurm.jobs) if len(looks) == 2 else set()
        monkeypatch.setattr("benchmark.jobs.survey.PAUSE", 0.0)

    watch(Survey(plan.suite, lab.configs(), plan.build, plan.store), sleep)
    assert [bool(look) for look in looks] == [True, True]


def test_nothing_is_ended_where_slurm_is_silent_on_the_search(lab: Lab, tmp_path, monkeypatch, capsys) -> None:
    """Oracle: Slurm's table, which answers for the suite and not for its search: no job of either is ended."""
    slurm = FakeSlurm(tmp_path / "bin", monkeypatch)
    assert lab.submit() == 0 and lab.call(*TUNE) == 0
    answer, asked = slurm.answer, []

    def silent(command: list[str]) -> str:
        asked.extend(command[:1] * (command[0] == "squeue"))
        if command[0] == "squeue" and len(asked) > 1:
            raise commands.SlurmError("squeue: error: slurm_load_jobs error: Unable to contact slurm controller")
        return answer(command)

    monkeypatch.setattr(commands, "_ask", silent)
    assert lab.call("cancel") == 2
    assert capsys.readouterr().err.rpartition("error: ")[2].startswith("nothing is ended: ")
    assert len(asked) == 2 and not slurm.cancelled
