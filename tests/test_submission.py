"""Jobs are submitted once, and wait for the right jobs. The cluster is a table in memory.
tests/test_slurm.py has a real one.
"""

from __future__ import annotations

import copy
import os
import re
import signal
from pathlib import Path

import pytest
from submitit.core.utils import FailedJobError, FailedSubmissionError

from benchmark.jobs.executors import slurm as of_slurm
from tests.support.fake_slurm import FakeSlurm
from tests.support.suite_folder import ROWS, SuiteFolder, write_suite_of_two, write_task

TABLES = 'tables=["representational_similarity"]'
NO_ANSWER = "Unable to contact slurm controller (connect failure)"


@pytest.fixture
def tiny(tmp_path: Path) -> SuiteFolder:
    return write_suite_of_two(tmp_path)


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSlurm:
    return FakeSlurm(tmp_path / "bin", monkeypatch)


def list_units(tiny: SuiteFolder) -> list[str]:
    """The units in the notes of what was submitted."""
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
    """Oracle: the queue. Slurm took an array, but its answer was lost, and the call stops. The next
    call ends that array and submits each unit once. `cancel` ends such an array, too.
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
    """Oracle: the notes agree with the queue after a Ctrl-C while sbatch works. Both signals are
    masked for sbatch, and not afterwards. The next call submits the rest, and no unit twice.
    """
    masks: list[set[int]] = []
    submit = slurm.submit

    def interrupt(script: str) -> str:
        masks.append({*signal.pthread_sigmask(signal.SIG_BLOCK, [])})
        answer = submit(script)
        os.kill(os.getpid(), signal.SIGINT)
        return answer

    monkeypatch.setattr(slurm, "submit", interrupt)
    assert tiny.submit() == 130
    assert slurm.jobs == [wave["id"] for wave in tiny.waves()] == ["100"]
    assert {signal.SIGINT, signal.SIGTERM} <= masks[0]
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])
    monkeypatch.setattr(slurm, "submit", submit)
    assert tiny.submit() == 0
    units = list_units(tiny)
    assert len(units) == len(set(units)) == 5


def test_who_comes_second_is_told_what_the_first_has_submitted(
    tiny: SuiteFolder, slurm: FakeSlurm, capsys
) -> None:
    """Oracle: sbatch is not called for a plan that was made before the first submission."""
    plan = tiny.plan()
    assert tiny.submit() == 0
    count = slurm.calls["sbatch"]
    capsys.readouterr()
    assert of_slurm.execute(plan) == 0
    assert slurm.calls["sbatch"] == count
    assert "--watch" in capsys.readouterr().out


METHODS = ("naive", "er", "ewc", "mas", "agem", "elle", "logit_kd", "derpp", "pnn")


def test_the_jobs_of_270_runs(tiny: SuiteFolder) -> None:
    """Oracle: by hand: 9 methods, 5 settings and 6 seeds are 270 runs. Each run is trained by one
    job, and scored and measured by another. Each of the 5 x 6 shared first stages is one job. There
    were 1,171 jobs when each scored model and the measures of each run had a job of their own.
    """
    rows = []
    for rate in (1, 2, 3, 4, 5):
        rates = f'set = {{ "training.learning_rate" = {rate}e-4 }}'
        rows += [f'{{ name = "{name}-{rate}", method = "{name}", {rates} }}' for name in METHODS]
    tiny.write(*rows, tasks=write_task(tiny.folder))
    text = tiny.file.read_text().replace('stages = "last"', 'stages = "every"')
    size = "{ layers = 2, hidden_size = 16 }"
    sky = f'{{ name = "sky", train = ["{tiny.texts}/sea.jsonl"] }}'
    text = text.replace(f"{size}]", f"{size}, {size}]").replace("\n]\nrows", f"\n  {sky},\n]\nrows")
    text = text.replace("amount = [40, 200]", "amount = 5").replace(
        "methods = []", "methods = []\nseeds = [0, 1, 2, 3, 4, 5]"
    )
    tiny.file.write_text(text)
    plan = tiny.plan({"tables": ["representational_similarity"]})
    assert len(plan.states) == 270
    lines = "\n".join(of_slurm.describe(plan))
    jobs = re.findall(r"^  (\w+): (\d+) jobs?, ", lines, re.MULTILINE)
    assert jobs[2:] == [("stages", "30"), ("train", "270"), ("score", "270"), ("report", "1")]
    assert len(plan.waves[-1].units) == 870


def test_a_run_is_scored_after_its_own_training(tiny: SuiteFolder, slurm: FakeSlurm) -> None:
    """Oracle: by hand, for arrays of at most four jobs of two runs: jobs of the same number in both
    arrays have the same runs, the last rows first. A job of scores without such an array waits for
    all jobs that train its runs.
    """
    slurm.largest = 4
    tiny.write(*ROWS, slurm="runs_per_job = 2", tasks=write_task(tiny.folder))
    text = tiny.file.read_text()
    tiny.file.write_text(text.replace("methods = []", "methods = []\nseeds = [0, 1, 2, 3, 4]"))
    assert tiny.submit("--set", TABLES) == 0
    waves = [wave for wave in tiny.waves() if wave["kind"] in ("train", "score")]
    shapes = [(wave["kind"], [len(task) for task in wave["units"]]) for wave in waves]
    assert shapes == [
        ("train", [2, 2, 2, 2]),
        ("train", [2]),
        ("score", [4, 4, 4, 4]),
        ("score", [4]),
    ]
    names: dict[str, str] = {}  # of runs, by the ids of their units
    for state in tiny.plan().states:
        name = state.config.label
        ids = (f"train-{state.config.id}", f"{{}}-{state.planned[-1]}")
        names |= {id.format(kind): name for id in ids for kind in ("score", "measure")}
    tasks = [[{names[unit] for unit in task} for task in wave["units"]] for wave in waves]
    assert tasks[:2] == tasks[2:]
    assert tasks[0][0] == {"er-s3", "er-s4"}
    assert tasks[1] == [{"naive-s0", "naive-s1"}]
    texts = [slurm.arrays[wave["id"]].text for wave in waves[2:]]
    first, second = waves[0]["id"], waves[1]["id"]
    assert f"--dependency='aftercorr:{first}?afterany:{first}'\n" in texts[0]
    assert f"--dependency=afterany:{second}\n" in texts[1]
    report = slurm.arrays[tiny.waves()[-1]["id"]]
    assert {*report.after} == {*slurm.arrays} - {tiny.waves()[-1]["id"]}
    slurm.end([job for job in slurm.jobs if job.startswith(waves[2]["id"])])
    assert tiny.submit("--set", TABLES) == 0
    [again] = [wave for wave in tiny.waves()[-2:] if wave["kind"] == "score"]
    assert len(again["units"]) == 4
    assert {first, second} <= {*slurm.arrays[again["id"]].after}


def test_a_run_replaces_the_report_that_waits(tiny: SuiteFolder, slurm: FakeSlurm) -> None:
    """Oracle: the queue: each call that adds a seed submits a report. An earlier report is ended if
    it waits, but not if it runs or is another suite's. `cancel` ends both reports of this suite.
    """
    other = copy.copy(tiny)
    other.file = tiny.file.with_stem("other")
    other.file.write_text(tiny.file.read_text())
    assert tiny.submit() == other.submit() == 0
    [theirs] = other.ids("report").values()
    assert tiny.submit("--seeds", "0,1") == 0
    first, second = [wave["id"] for wave in tiny.waves() if wave["kind"] == "report"]
    assert first not in slurm.jobs
    assert {second, theirs} <= {*slurm.jobs}
    slurm.states[second] = "RUNNING"
    assert tiny.submit("--seeds", "0,1,2") == 0
    third = tiny.waves()[-1]["id"]
    assert {second, third, theirs} <= {*slurm.jobs}
    assert tiny.call("cancel") == 0
    assert {*slurm.jobs} == {*other.ids().values()}
