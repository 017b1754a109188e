"""Jobs for what nobody wants any more: it was done since, or the suite was edited, or is called with other settings."""

from __future__ import annotations

import re
import shlex

import pytest

from benchmark.jobs.slurm import commands
from tests.support.fake_slurm import FakeSlurm
from tests.support.job_lines import STARTED, ask, write_job
from tests.support.slurm_lab import Lab, write_task, write_texts

FAILED = STARTED, {"kind": "ended", "state": "failed", "error": "why"}


@pytest.fixture
def lab(tmp_path) -> Lab:
    write_texts(tmp_path)
    lab = Lab(tmp_path / "lab", tmp_path)
    lab.write('{ method = "naive" }', '{ method = "er" }', tasks=write_task(lab.folder))
    lab.file.write_text(lab.file.read_text().replace("[40, 200]", "[1, 1]"))
    return lab


def test_a_failure_counts_while_what_it_was_for_is_to_come(lab: Lab, monkeypatch, capsys) -> None:
    """Oracle: `status` ends with 1 for each of these jobs until a local run has done what it did not."""
    ask(monkeypatch, {})
    plan = {job.kind: job for job in lab.plan().jobs()}
    runs = [config.id for config in lab.configs()]
    [shared] = [job for job in lab.plan().jobs() if job.key.startswith("stage-")]
    jobs = plan["prepare"], shared, plan["score"]
    for id, job in enumerate(jobs, 6):
        write_job(lab, "ER", *FAILED, id=str(id), name=job.name, key=job.key, run=None, serves=list(job.serves))
    write_job(lab, "ER", *FAILED, id="9", key="wait-8", run=None, serves=[])
    assert shared.serves == tuple(runs)
    assert lab.call("status") == 1
    told = capsys.readouterr().out
    assert "other jobs: 3 failed" in told and all(f"{job.name}  failed" in told for job in jobs)
    assert lab.call("run", "--set", "tasks=[]", "--parallel", "1") == 0
    capsys.readouterr()
    assert lab.call("status") == 1
    told = capsys.readouterr().out
    assert "other jobs: 1 failed" in told and f"{plan['score'].name}  failed" in told
    assert lab.call("run", "--parallel", "1") == 0
    capsys.readouterr()
    assert lab.call("status") == 0
    assert "other jobs" not in capsys.readouterr().out


def test_a_failure_of_an_older_suite_counts_no_more(lab: Lab, monkeypatch, capsys) -> None:
    """Oracle: the plan of the suite as it is: it has none of these jobs, of other texts, tasks, and runs. Scores that
    are to come are called so, which a failed job of today's tasks would keep back."""
    ask(monkeypatch, {})
    for id, key in enumerate(("data-old", "score-old-old", "stage-old", "similarity-old-old"), 5):
        serves = [lab.config("ER").id] if key.startswith("score") else ["er-s0-old"]
        write_job(lab, "ER", *FAILED, id=str(id), key=key, run=None, serves=[] if key == "data-old" else serves)
    assert lab.call("status") == 0
    assert "other jobs" not in capsys.readouterr().out
    assert lab.call("run", "--set", "tasks=[]", "--parallel", "1") == 0
    capsys.readouterr()
    assert lab.call("status") == 0
    assert "scores what is missing" in capsys.readouterr().out


def test_runs_of_other_settings_are_not_stale(lab: Lab, tmp_path, monkeypatch, capsys) -> None:
    """Oracle: what was submitted how, by hand: with `--set`, which `status` without it must not offer to end; what
    only asks for other resources is the same; and after an edit the first are still no mistake, the others are."""
    FakeSlurm(tmp_path / "bin", monkeypatch)
    assert lab.submit("--set", "training.learning_rate=7e-3", "--methods", "er") == 0
    assert lab.submit("--set", "slurm.time=99", "--methods", "naive") == 0
    capsys.readouterr()
    assert lab.call("status") == 0
    told = capsys.readouterr().out
    shown = f"status {lab.file} --runs {lab.runs} --methods er --set training.learning_rate=7e-3` shows them"
    assert f"3 jobs are for runs with other settings: `python run_all.py {shown}" in told and "scancel" not in told
    lab.file.write_text(lab.file.read_text().replace("head_size = 8", "head_size = 4"))
    assert lab.call("status") == 0
    told = capsys.readouterr().out
    assert "3 jobs are for runs with other settings" in told
    ids = [job.id for job in lab.jobs() if "naive" in job.name or job is lab.jobs()[-1]]  # and their report
    assert f"3 jobs are for what the suite no longer asks for: `scancel {' '.join(commands.shortened(ids))}`" in told


def test_what_runs_of_today_share_with_those_of_before_is_not_stale(lab: Lab, tmp_path, monkeypatch, capsys) -> None:
    """Oracle: the plan of the suite as it is: it submits no stage that is under way, and its runs wait for that one."""
    FakeSlurm(tmp_path / "bin", monkeypatch)
    assert lab.submit() == 0
    before = lab.jobs()
    [shared] = [job.id for job in before if job.key.startswith("stage-")]
    lab.file.write_text(lab.file.read_text().replace("[1, 1]", "[1, 2]"))
    gone = [job.id for job in before if job.run or job.key.startswith(("score-", "report-"))]
    for submitted in (False, True):
        capsys.readouterr()
        assert lab.call("status") == 0
        told = capsys.readouterr().out
        ends = re.findall(r"jobs are for what the suite no longer asks for: `(.*?)`", told)
        assert [shlex.split(one) for one in ends] == [["scancel", *commands.shortened(gone)]]
        assert submitted or lab.submit() == 0
    lab._configs = []
    of_today = [job for job in lab.jobs() if job.run in {config.id for config in lab.configs()}]
    assert len(of_today) == 2 and all(shared in job.submitted["after"] for job in of_today)
