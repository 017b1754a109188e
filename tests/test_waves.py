"""Waves of units: plans, dry runs, and what is submitted to a Slurm that is a table in memory."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import pickletools
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs
from submitit.core.utils import DelayedSubmission

import methods
from benchmark.files import BEGUN
from benchmark.jobs import executors
from benchmark.jobs.pool import do_unit
from benchmark.jobs.work import Train, Worker
from benchmark.ledger import records
from benchmark.ledger.runs import make_run_line
from benchmark.ledger.store import Store
from benchmark.locks import JOB, Lease
from benchmark.settings import names
from benchmark.settings.names import list_executor_names
from benchmark.training.processes import join
from tests.support.fake_slurm import FakeSlurm
from tests.support.record_lines import read_lines
from tests.support.run_states import make_ended_stage, make_view
from tests.support.suite_folder import ROWS, SuiteFolder, write_suite_of_two, write_task

TABLES = 'tables=["representational_similarity"]'
TOY = '''
"""An executor in a file from outside: it does every unit here and now."""

import torch

from benchmark.jobs.executors import Executor
from benchmark.jobs.work import Worker
from benchmark.settings.base import Settings
from benchmark.training.processes import World


def execute(plan):
    for wave in [*plan.waves, plan.report]:
        for unit in wave.units:
            unit(Worker(World(0, 1, torch.device("cpu"))))
    return 0


def describe(plan):
    return [f"  toy: {unit.name}" for wave in plan.waves for unit in wave.units]


class Toy(Settings):
    gpus: int = 3


EXECUTOR = Executor(describe, execute, Toy, count_gpus=lambda suite, run: 3.0)
'''


@pytest.fixture
def tiny(tmp_path: Path) -> SuiteFolder:
    return write_suite_of_two(tmp_path)


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSlurm:
    return FakeSlurm(tmp_path / "bin", monkeypatch)


def waves(tiny: SuiteFolder, **overrides: object) -> list[tuple[str, list[str]]]:
    """The plan's waves by their kinds, and the names of their units."""
    return [(wave.kind, [unit.name for unit in wave.units]) for wave in tiny.plan(overrides).waves]


def test_waves_are_as_in_the_docs(tiny: SuiteFolder) -> None:
    """By hand: two runs share their first stage. After one of them is trained, only what is left is
    planned.
    """
    tiny.write(*ROWS, tasks=write_task(tiny.folder))
    assert waves(tiny, tables=["representational_similarity"]) == [
        ("prepare", ["tiny:prepare-naive-s0"]),
        ("prepare", ["tiny:prepare-tasks"]),
        ("stages", ["tiny:stages-wood-of-naive-s0"]),
        ("train", ["tiny:train-naive-s0", "tiny:train-er-s0"]),
        (
            "score",
            [
                "tiny:score-naive-s0-sea",
                "tiny:score-er-s0-sea",
                "tiny:measure-naive-s0",
                "tiny:measure-er-s0",
            ],
        ),
    ]
    assert tiny.call("run", "--methods", "naive", "--set", "tasks=[]") == 0
    assert waves(tiny) == [
        ("prepare", ["tiny:prepare-tasks"]),
        ("train", ["tiny:train-er-s0"]),
        ("score", ["tiny:score-naive-s0-sea", "tiny:score-er-s0-sea"]),
    ]
    assert tiny.call("run", "--set", TABLES) == 0
    assert waves(tiny, tables=["representational_similarity"]) == []


@pytest.mark.parametrize("near_copies", ["drop", "keep"])
def test_baselines_know_which_test_examples_stand_in_the_stream(
    tiny: SuiteFolder, near_copies: str
) -> None:
    """By hand: one of four test examples is the stream's first document. Each of two baselines
    counts it if near copies are kept. Otherwise none counts it, because it is left out.
    """
    task = write_task(tiny.folder)
    document = read_lines(tiny.texts / "wood.jsonl")[0]["text"]
    rows = [{"text": text, "label": "fish"} for text in (document, "one", "two", "three")]
    (tiny.folder / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    labels = "".join(json.dumps({"text": word, "label": word}) + "\n" for word in ("fish", "whale"))
    for split in ("train", "dev"):
        (tiny.folder / f"{split}.jsonl").write_text(labels)
    tiny.write(*ROWS, tasks=task)
    text = tiny.file.read_text()
    tiny.file.write_text(text.replace("[data]", f'[data]\nnear_copies = "{near_copies}"'))
    with join() as world:
        for wave in tiny.plan().waves[:2]:
            for unit in wave.units:
                unit(Worker(world))
    lines = read_lines(tiny.runs / "scores" / "baselines.jsonl")
    kept = int(near_copies == "keep")
    assert [line.get("in_stream", 0) for line in lines] == [kept, kept]


def test_shared_stages_are_a_tree(tiny: SuiteFolder) -> None:
    """By hand: three runs share the first stage, and two of them also the second, which has a wave
    of its own.
    """
    two = "{ layers = 1, hidden_size = 16 }, { layers = 2, hidden_size = 16 }"
    three = f"{two}, {{ layers = 2, hidden_size = 16 }}"
    text = tiny.file.read_text().replace(f"[{two}]", f"[{three}]")
    text = text.replace("amount = [40, 200]", "amount = 5").replace(
        "\n]\nrows", f'\n  {{ name = "sky", train = ["{tiny.texts}/sea.jsonl"] }},\n]\nrows'
    )
    rates = '"training.learning_rate" = [5e-4, 5e-4, 1e-3]'
    rows = [
        '{ method = "naive" }',
        f'{{ name = "late", method = "naive", set = {{ {rates} }} }}',
        *ROWS[1:],
    ]
    tiny.file.write_text(
        re.sub(r"^rows = .*$", f"rows = [{', '.join(rows)}]", text, flags=re.MULTILINE)
    )
    assert waves(tiny)[1:] == [
        ("stages", ["tiny:stages-wood-of-naive-s0"]),
        ("stages", ["tiny:stages-wood+sea-of-naive-s0"]),
        ("train", ["tiny:train-naive-s0", "tiny:train-late-s0", "tiny:train-er-s0"]),
    ]


def test_an_array_begins_with_the_runs_that_have_most_left(tiny: SuiteFolder) -> None:
    """By hand: among runs with equally many stages left, the last row begins. Trained stages do not
    count.
    """
    tiny.write(*ROWS)
    plan = tiny.plan()
    naive, er = plan.states
    begun = dataclasses.replace(er, view=make_view(er.config, [make_ended_stage({})]))
    plan = dataclasses.replace(plan, states=[naive, begun])
    assert [unit.name for unit in plan.waves[-1].units] == [
        "tiny:train-er-s0",
        "tiny:train-naive-s0",
    ]


def test_a_file_adds_an_executor(tiny: SuiteFolder, monkeypatch, capsys) -> None:
    """Oracle: the plan's units and GPU-hours. No other file of the project is changed."""
    (tiny.folder / "toy.py").write_text(TOY)
    inside = list_executor_names()
    monkeypatch.setattr(executors, "__path__", [*executors.__path__, str(tiny.folder)])
    monkeypatch.setattr(names, "EXECUTOR_FOLDERS", executors.__path__)
    assert list_executor_names() == sorted([*inside, "toy"]) and {"local", "slurm"} <= set(inside)
    dry_run = ("run", "--dry-run", "--executor", "toy", "--set", "budget.unit=seconds")
    assert tiny.call(*dry_run, "--set", "toy.gpus=x") == 2
    assert "[toy]: gpus: " in capsys.readouterr().err
    assert tiny.call(*dry_run, "--set", "toy.gpus=2") == 0
    told = capsys.readouterr().out
    assert "  toy: tiny:stages-wood-of-naive-s0\n  toy: tiny:train-naive-s0\n" in told
    assert f"{480 * 3 / 3600:,.1f} GPU-hours" in told
    assert tiny.call("run", "--executor", "toy") == 0
    table = (tiny.folder / "report" / "tiny" / "main_pretraining.md").read_text()
    assert "Naive" in table and "ER" in table and "--" not in table.split("Naive")[1].split("\n")[0]
    assert {state.state for state in tiny.states().values()} == {"done"}
    del sys.modules[f"{executors.__name__}.toy"]


def test_each_wave_is_an_array_that_waits_for_the_one_before(
    tiny: SuiteFolder, slurm: FakeSlurm, capsys
) -> None:
    """By hand: kinds, tasks and dependencies in the batch scripts. A second `run` submits nothing.
    After one more row, `run` submits only that row's jobs, which wait for those under way.
    """
    tiny.write(*ROWS, tasks=write_task(tiny.folder))
    assert tiny.submit() == 0 and slurm.calls["sbatch"] == 6
    assert [(wave["kind"], len(wave["units"])) for wave in tiny.waves()] == [
        ("prepare", 1),
        ("prepare", 1),
        ("stages", 1),
        ("train", 2),
        ("score", 2),
        ("report", 1),
    ]
    arrays = list(slurm.arrays.items())
    assert [array.after for _, array in arrays] == [
        (),
        ("100",),
        ("100", "101"),
        ("100", "101", "102"),
        ("103",),
        ("100", "101", "102", "103", "104"),
    ]
    assert "--dependency='aftercorr:103?afterany:103'\n" in slurm.arrays["104"].text
    assert [len(array.tasks) for _, array in arrays] == [0, 0, 0, 2, 2, 0]
    assert all(
        "#SBATCH --requeue\n" in array.text and "wckey" not in array.text for _, array in arrays
    )
    assert (
        tiny.submit() == 0
        and slurm.calls["sbatch"] == 6
        and "nothing to submit" in capsys.readouterr().out
    )
    assert {state.state for state in tiny.states().values()} == {"waiting"}
    tiny.write(*ROWS, '{ method = "mas" }', tasks=write_task(tiny.folder))
    assert tiny.submit() == 0
    new = [slurm.arrays[wave["id"]] for wave in tiny.waves()[6:]]
    assert [wave["kind"] for wave in tiny.waves()[6:]] == ["train", "score", "report"]
    assert set(new[0].after) == {"100", "101", "102"} and new[1].after == ("106",)


def test_arrays_are_as_large_as_the_cluster_takes(tiny: SuiteFolder, slurm: FakeSlurm) -> None:
    """By hand: if MaxArraySize is 4, ten runs make arrays of four, four and two, each of which runs
    two at a time. On a site without arrays runs are single jobs. No array waits for another, and
    none is tried that is too large.
    """
    slurm.largest = 4
    seeds, cap = ("--seeds", "0,1,2,3,4"), ("--set", "slurm.array_parallelism=2")
    assert tiny.submit(*seeds, *cap) == 0
    train = [slurm.arrays[wave["id"]] for wave in tiny.waves() if wave["kind"] == "train"]
    shapes = [(len(array.tasks), array.parallelism) for array in train]
    assert shapes == [(4, 2), (4, 2), (2, 2)]
    assert len({array.after for array in train}) == 1
    assert slurm.calls["sbatch"] == len(slurm.arrays)
    slurm.end(slurm.jobs)
    slurm.largest = 0
    before = len(tiny.waves())
    assert tiny.submit(*seeds, "--methods", "naive") == 0
    single = [slurm.arrays[wave["id"]] for wave in tiny.waves()[before:] if wave["kind"] == "train"]
    assert len(single) == 5
    assert not any(array.tasks for array in single)
    assert len({array.after for array in single}) == 1


def test_more_than_may_be_submitted_is_gone_on_with(
    tiny: SuiteFolder, slurm: FakeSlurm, capsys
) -> None:
    """By hand: eight jobs are in arrays of one, two, four and one. If MaxSubmitJobs is four, the
    array of four is refused, and what waits for it is not submitted. `run` says so, with the ways
    out: fewer seeds, or a later call. If it is seven, only the report is refused.
    """
    slurm.most = 4
    assert tiny.submit("--seeds", "0,1") == 3
    told = capsys.readouterr().out
    assert "what waits for them" in told and "--seeds" in told and len(slurm.jobs) == 3
    assert tiny.submit("--seeds", "0,1") == 2
    assert "AssocMaxSubmitJobLimit" in capsys.readouterr().err
    slurm.most = 7
    assert [tiny.submit("--seeds", "0,1") for _ in range(2)] == [3, 2] and len(slurm.jobs) == 7
    captured = capsys.readouterr()
    assert "nothing to submit" not in captured.out and "AssocMaxSubmitJobLimit" in captured.err
    slurm.most = 100
    assert tiny.submit("--seeds", "0,1") == 0
    units = [unit for wave in tiny.waves() for task in wave["units"] for unit in task]
    assert len(units) == len(set(units)) == 8
    slurm.refusal = "sbatch: error: invalid partition specified: nowhere"
    assert tiny.submit("--methods", "mas", "--set", 'methods=["mas"]') == 2
    assert "invalid partition" in capsys.readouterr().err


def test_nothing_scores_a_run_that_no_job_trains(tiny: SuiteFolder, slurm: FakeSlurm) -> None:
    """By hand: a job that trains ER asks for more nodes than allowed. A job that scores it does
    not, but only Naive's models are scored. The shared stage asks for what Naive does.
    """
    more_nodes = '{ method = "er", set = { "slurm.nodes" = 2 } }'
    tiny.write(ROWS[0], more_nodes, tasks=write_task(tiny.folder))
    slurm.refusal = "sbatch: error: QOSMaxNodePerJobLimit"
    slurm.refused = "--nodes=2"
    assert tiny.submit() == 3
    assert [wave["kind"] for wave in tiny.waves()].count("stages") == 1
    units = [unit for wave in tiny.waves() for task in wave["units"] for unit in task]
    scored = [unit for unit in units if unit.startswith("score-")]
    assert len(scored) == 1  # of Naive's last stage


GENERAL = (
    "sbatch: error: Batch job submission failed: Job violates accounting/QOS policy (job submit "
    "limit, user's size and/or time limits)"
)


@pytest.mark.parametrize(
    ("limit", "key"),
    [
        ("QOSMaxWallDurationPerJobLimit", "slurm.train.time"),
        ("AssocMaxCpuPerJobLimit", "slurm.train.cpus_per_task"),
        ("QOSMaxNodePerJobLimit", "slurm.train.nodes"),
        ("QOSMaxMemoryPerJob", "slurm.train.mem"),
        ("QOSMaxGRESPerJob", "slurm.train.gpus_per_node"),
    ],
)
def test_a_limit_on_each_job_is_a_refusal_with_its_key(
    tiny: SuiteFolder, slurm: FakeSlurm, capsys, limit: str, key: str
) -> None:
    """Oracle: the words of Slurm 22.05 for a job beyond a limit of its QOS. Their second line also
    names job submit limits. The other row and the report are submitted all the same.
    """
    tiny.write(ROWS[0], '{ method = "er", set = { "slurm.train.time" = 77 } }')
    slurm.refusal, slurm.refused = f"sbatch: error: {limit}\n{GENERAL}", "--time=77"
    assert tiny.submit() == 3
    told = capsys.readouterr().out
    assert limit in told and key in told
    assert tiny.states()["Naive"].job and not tiny.states()["ER"].job
    assert tiny.waves()[-1]["kind"] == "report"


def test_jobs_of_an_edited_suite_are_told(tiny: SuiteFolder, slurm: FakeSlurm, capsys) -> None:
    """Oracle: the ids of jobs that train what the suite no longer has."""
    assert tiny.submit() == 0
    first = min(tiny.job("Naive"), tiny.job("ER"))
    tiny.call("status", "--set", "training.learning_rate=0.002")
    assert re.search(rf"\n{first} and 1 more +train +waiting ", capsys.readouterr().out)


def test_several_runs_in_a_job(tiny: SuiteFolder, slurm: FakeSlurm, capsys) -> None:
    """By hand: ten runs, four per job. A job is one task with the cores and GPUs of all its
    processes. A run that waits for others in its job has the state "waiting".
    """
    tiny.write(
        *ROWS, slurm="runs_per_job = 4\nntasks_per_node = 2\ncpus_per_task = 3\ngpus_per_node = 2"
    )
    assert tiny.submit("--seeds", "0,1,2,3,4") == 0
    [train] = [wave for wave in tiny.waves() if wave["kind"] == "train"]
    assert [len(task) for task in train["units"]] == [4, 4, 2]
    text = slurm.arrays[train["id"]].text
    assert all(
        f"#SBATCH --{word}\n" in text
        for word in ("ntasks-per-node=1", "cpus-per-task=6", "gres=gpu:2")
    )
    slurm.states[f"{train['id']}_0"] = "RUNNING"
    assert tiny.states()["Naive"].state == "waiting"
    more = ("--seeds", "7", "--set", "slurm.runs_per_job=1", "--set", "slurm.ntasks_per_node=3")
    assert tiny.submit(*more) == 2 and re.search(
        "batch of 8 .* 3 processes", capsys.readouterr().err
    )


def test_a_dry_run_submits_nothing_and_says_what_a_run_does(
    tiny: SuiteFolder, slurm: FakeSlurm, capsys
) -> None:
    """By hand: one preparation, one shared stage, two runs. In the end `report` comes next."""
    tiny.file.write_text(tiny.file.read_text().replace("[40, 200]", "[1, 1]"))
    assert tiny.call("run", "--dry-run", "--executor", "slurm") == 0
    told = capsys.readouterr().out
    assert not slurm.calls["sbatch"] and " --dry-run " in told.splitlines()[-1]
    numbers = re.findall(r"(\d+) (?:preparation|(?:shared stage|run)s? to train)", told)
    assert [int(number) for number in numbers] == [1, 1, 2]
    assert tiny.call("run", "--dry-run", "--executor", "slurm", "--verbose") == 0
    plan = tiny.plan()
    names = [f"    {unit.name}" for wave in [*plan.waves, plan.report] for unit in wave.units]
    verbose = capsys.readouterr().out.splitlines()
    assert [line for line in verbose if line.startswith("    tiny:")] == names
    assert [line for line in verbose if line not in names] == told.splitlines()
    assert tiny.call("run", "--parallel", "1") == 0
    capsys.readouterr()
    assert tiny.call("run", "--dry-run") == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("next: `python run_all.py report ")


@pytest.mark.parametrize(
    ("owner", "place"),
    [(Lease, "try_acquire"), (shutil, "copyfile"), (DelayedSubmission, "dump")],
)
def test_a_full_disk_says_what_was_submitted(
    tiny: SuiteFolder,
    slurm: FakeSlurm,
    monkeypatch,
    capsys,
    owner: object,
    place: str,
) -> None:
    """Oracle: the queue is empty. If the disk's error names no file, the message names the folder
    of the jobs' files.
    """
    named = ["/runs/x"] if place != "dump" else []

    def full(*given: object, **_: object) -> object:
        raise OSError(errno.ENOSPC, "No space left on device", *named)

    monkeypatch.setattr(owner, place, full)
    assert tiny.submit() == 2
    [folder] = named or tiny.runs.glob("suites/tiny/jobs/slurm/*/")
    told = capsys.readouterr().err
    assert str(folder) in told and "No space left on device" in told
    assert slurm.jobs == []


def test_who_submits_has_the_lock(tiny: SuiteFolder, slurm: FakeSlurm, monkeypatch) -> None:
    """Oracle: the lock is held at each submission, so that a second `run` waits for the first."""
    taken: list[bool] = []
    submit = slurm.submit
    folder = tiny.runs / "suites" / "tiny" / "jobs" / "slurm"
    monkeypatch.setattr(
        slurm,
        "submit",
        lambda script: taken.append(Lease(folder / "lock").is_taken()) or submit(script),
    )
    assert (
        tiny.submit() == 0
        and all(taken)
        and len(taken) == 4
        and not Lease(folder / "lock").is_taken()
    )


def test_logs_and_pickles_lie_where_others_do_not_write(
    tiny: SuiteFolder, slurm: FakeSlurm, capsys
) -> None:
    """Oracle: the mode of their folder. Jobs unpickle its files, so a folder in which others can
    write is refused.
    """
    assert tiny.submit() == 0
    [logs] = {path.parent for path in tiny.runs.rglob("*_submitted.pkl")}
    assert not logs.stat().st_mode & 0o022
    logs.chmod(0o777)
    assert tiny.submit("--methods", "naive", "--set", "budget.amount=3") == 2
    assert f"{logs} " in capsys.readouterr().err


def test_what_counts_is_what_is_kept_of_work(tiny: SuiteFolder, monkeypatch) -> None:
    """By hand: progress is a text or a part of it, an evaluation, a step from which training
    resumed, or a score. A lock, a half-written file, and a second resume from the same step are no
    progress.
    """
    config, store = tiny.config("ER"), Store(tiny.runs)
    run_line = structs.replace(make_run_line(config), stages=["a", "b"])
    records.append(store.run_file(config), run_line)
    unit = Train(tiny.runs, config, config.id, methods.build)
    beside = tiny.runs / "data" / "domains" / f".x.{'0f' * 16}"
    beside.mkdir(parents=True)
    resumed = [records.ResumedLine(phase="adapt", step=step, charged={}) for step in (3, 3, 4)]
    evaluation = records.MetricsLine(phase="adapt", step=4, values={})
    told = [unit.describe_progress()]

    def tell(counts: bool) -> None:
        told.append(unit.describe_progress())
        assert (told[-1] != told[-2]) == counts

    (beside / "train.bin").touch()
    (beside.parent / "x.lock.3").touch()
    tell(False)
    for documents in (1, 2):
        (beside / BEGUN).write_text(f'{{"documents": {documents}}}')
        tell(True)
    beside.rename(beside.with_name("x"))
    tell(True)
    records_of_stage: list[tuple[list[Any], bool]] = [
        (resumed[:1], True),
        (resumed[1:2], False),
        (resumed[2:], True),
        ([*resumed[2:], evaluation], True),
    ]
    for lines, counts in records_of_stage:
        monkeypatch.setattr(Store, "read_stage", lambda store, key, lines=lines: lines)
        tell(counts)
    for path in (store.scores_file("b"), store.similarity_file("a")):
        records.append(path, evaluation)
        tell(True)
    assert unit.find_owning_job() == ""
    monkeypatch.setenv(JOB, "9_1")
    store.stage_folder("a").mkdir(parents=True)
    with Lease(store.stage_folder("a") / "lock"):
        assert unit.find_owning_job() == "9_1"
    assert unit.find_owning_job() == ""


def test_text_that_another_job_makes_is_not_waited_for(tiny: SuiteFolder, monkeypatch) -> None:
    """Oracle: the text's lease, which names the job that has it. Without it the text is made."""
    assert tiny.call("prepare") == 0
    [made] = [path for path in (tiny.runs / "data" / "tokenizers").iterdir() if path.is_dir()]
    shutil.rmtree(made)
    [unit] = tiny.plan(rows=["Naive"]).waves[0].units
    monkeypatch.setenv(JOB, "9_1")
    with join() as world:
        worker = Worker(world, waits=False)
        with Lease(made.with_name(f"{made.name}.lock")):
            assert do_unit(unit, worker) == "taken" and unit.find_owning_job() == "9_1"
        assert do_unit(unit, worker) == "done" and unit.find_owning_job() == ""


def test_nothing_that_is_pickled_lives_in_main(tiny: SuiteFolder, tmp_path: Path) -> None:
    """Oracle: the names in submitit's pickles. A job's process has another `__main__`. Code in a
    pickle would run instead of the code in the snapshot.
    """
    (tmp_path / "bin").mkdir()
    for name, says in {
        "srun": "",
        "squeue": "",
        "scontrol": "",
        "sbatch": "Submitted batch job $$",
    }.items():
        (tmp_path / "bin" / name).write_text(f'#!/bin/sh\nprintf "{says}"\n')
        (tmp_path / "bin" / name).chmod(0o755)
    subprocess.run(
        [sys.executable, "run_all.py", *tiny.arguments("run", "--executor", "slurm")],
        cwd=Path(__file__).parent.parent,
        env={**os.environ, "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"},
        check=True,
        capture_output=True,
        timeout=120,
    )
    pickles = list(tiny.runs.rglob("*.pkl"))
    assert len(pickles) == 5, "data, a shared stage, two runs, the report"
    for path in pickles:
        words = {
            argument
            for _, argument, _ in pickletools.genops(path.read_bytes())
            if isinstance(argument, str)
        }
        assert "Task" in words and "benchmark.jobs.work" in words
        assert "__main__" not in words and not {word for word in words if "_make_function" in word}
    [code] = (tiny.runs / "code").iterdir()
    assert (code / "paper_tables").is_dir() and (code / "COMMIT").exists()
