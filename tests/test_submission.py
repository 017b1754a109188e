"""What is submitted once, and what it waits for; the cluster is a table in memory, and
tests/test_slurm.py has a real one.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from submitit.core.utils import FailedJobError, FailedSubmissionError

from benchmark.jobs.executors import slurm as of_slurm
from benchmark.jobs.executors.slurm import commands
from benchmark.jobs.executors.slurm.commands import SlurmError
from tests.support.fake_slurm import FakeSlurm
from tests.support.suite_folder import SuiteFolder, write_suite_of_two

NO_ANSWER = "Unable to contact slurm controller (connect failure)"


@pytest.fixture
def tiny(tmp_path: Path) -> SuiteFolder:
    return write_suite_of_two(tmp_path)


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSlurm:
    return FakeSlurm(tmp_path / "bin", monkeypatch)


def list_units(tiny: SuiteFolder) -> list[str]:
    """The units of all that is noted."""
    return [unit for wave in tiny.waves() for task in wave["units"] for unit in task]


@pytest.mark.parametrize(
    "error",
    [
        FailedJobError("sbatch: error: Batch job submission failed: Socket timed out on send/recv"),
        FailedJobError(f"sbatch: error: Batch job submission failed: {NO_ANSWER}"),
        FailedJobError(""),
        FailedSubmissionError('Could not make sense of sbatch output ""'),
    ],
)
def test_a_lost_answer_leaves_nothing_twice(
    tiny: SuiteFolder, slurm: FakeSlurm, monkeypatch, capsys, error: Exception
) -> None:
    """Oracle: the queue of a Slurm that took an array whose answer did not come: the call stops
    there; the next one ends that array and submits each unit once; `cancel` ends it, too.
    """
    submit = slurm.submit

    def lose(script: str) -> str:
        submit(script)
        raise error

    monkeypatch.setattr(slurm, "submit", lose)
    assert tiny.submit() == 2
    assert str(error) in capsys.readouterr().err
    assert slurm.jobs == ["100"] and tiny.waves() == []
    monkeypatch.setattr(slurm, "submit", submit)
    assert tiny.submit() == 0
    noted = {wave["id"] for wave in tiny.waves()}
    assert {job.partition("_")[0] for job in slurm.jobs} == noted == {"101", "102", "103", "104"}
    units = list_units(tiny)
    assert len(units) == len(set(units)) == 5
    monkeypatch.setattr(slurm, "submit", lose)
    assert tiny.submit("--set", "training.learning_rate=0.002") == 2
    assert tiny.call("cancel") == 0
    assert slurm.jobs == []


def test_ctrl_c_waits_until_the_note_is_written(
    tiny: SuiteFolder, slurm: FakeSlurm, monkeypatch
) -> None:
    """Oracle: the queue is what is noted, whenever Ctrl-C comes while sbatch works; the next call
    submits the rest, and no unit twice.
    """
    submit = slurm.submit

    def interrupt(script: str) -> str:
        answer = submit(script)
        os.kill(os.getpid(), signal.SIGINT)
        return answer

    monkeypatch.setattr(slurm, "submit", interrupt)
    assert tiny.submit() == 130
    assert slurm.jobs == [wave["id"] for wave in tiny.waves()] == ["100"]
    monkeypatch.setattr(slurm, "submit", submit)
    assert tiny.submit() == 0
    units = list_units(tiny)
    assert len(units) == len(set(units)) == 5


def test_what_sbatch_starts_in_is_deaf_to_ctrl_c(
    tiny: SuiteFolder, slurm: FakeSlurm, monkeypatch
) -> None:
    """Oracle: the mask of signals that sbatch inherits, and that of this process afterwards."""
    masks: list[set[int]] = []
    submit = slurm.submit

    def look(script: str) -> str:
        masks.append({*signal.pthread_sigmask(signal.SIG_BLOCK, [])})
        return submit(script)

    monkeypatch.setattr(slurm, "submit", look)
    assert tiny.submit() == 0
    assert all({signal.SIGINT, signal.SIGTERM} <= mask for mask in masks) and len(masks) == 4
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])


def test_who_comes_second_is_told_what_the_first_has_submitted(
    tiny: SuiteFolder, slurm: FakeSlurm, capsys
) -> None:
    """Oracle: the queue: the second call's plan was made before the first had submitted."""
    plan = tiny.plan()
    assert tiny.submit() == 0
    count = slurm.calls["sbatch"]
    capsys.readouterr()
    assert of_slurm.execute(plan) == 0
    assert slurm.calls["sbatch"] == count
    assert "--watch" in capsys.readouterr().out


def test_an_edited_suite_waits_for_no_stage_that_it_does_not_need(
    tiny: SuiteFolder, slurm: FakeSlurm
) -> None:
    """Oracle: the dependencies in the batch scripts: with other settings the stages and runs of
    before are nobody's, and their text is the same; with a row more they are needed.
    """
    assert tiny.submit() == 0
    before = {wave["kind"]: wave["id"] for wave in tiny.waves()}
    assert tiny.submit("--set", "training.learning_rate=0.002") == 0
    stages, train, report = [slurm.arrays[wave["id"]] for wave in tiny.waves()[4:]]
    assert stages.after == (before["prepare"],)
    old = {before["stages"], before["train"], before["report"]}
    assert not old & {*train.after, *report.after}
    tiny.write('{ method = "naive" }', '{ method = "er" }', '{ method = "mas" }')
    assert tiny.submit() == 0
    assert before["stages"] in slurm.arrays[tiny.job("MAS")].after


def test_a_silent_controller_is_waited_for() -> None:
    """Oracle: Slurm's words where its controller is down, which no user repairs."""
    with pytest.raises(SlurmError) as failure:
        commands.ask("sh", "-c", f"echo 'slurm_load_jobs error: {NO_ANSWER}' >&2; exit 1")
    assert NO_ANSWER in str(failure.value)
    assert "repair" not in str(failure.value)
