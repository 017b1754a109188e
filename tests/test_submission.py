"""What is submitted to Slurm within a cluster's limits, and how few calls that takes; Slurm is a table in memory."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections import Counter
from graphlib import TopologicalSorter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from benchmark import records
from benchmark.jobs.payloads import TrainRun
from benchmark.jobs.plan import PlannedJob
from benchmark.jobs.slurm import commands
from benchmark.jobs.slurm.bundle import bundled
from benchmark.settings.slurm_settings import Slurm
from tests.support.fake_slurm import FakeSlurm, after
from tests.support.malformed import SECRET, SECRETS
from tests.support.record_lines import append_line, read_lines
from tests.support.slurm_lab import Lab, write_task, write_texts

SEEDS = ",".join(map(str, range(30)))


@pytest.fixture
def lab(tmp_path) -> Lab:
    write_texts(tmp_path)
    return Lab(tmp_path / "lab", tmp_path).write('{ method = "naive" }', '{ method = "er" }')


def test_many_runs_take_few_calls(lab: Lab, tmp_path, monkeypatch, capsys) -> None:
    """Oracle: counted by hand. 60 runs after 30 shared stages in arrays of at most 25 are 2 + 3 arrays, and their
    scores 3; nothing starts before what it needs, and at most `array_parallelism` train at a time."""
    lab.write('{ method = "naive" }', '{ method = "er" }', slurm="array_parallelism = 7", tasks=write_task(lab.folder))
    slurm = FakeSlurm(tmp_path / "bin", monkeypatch, largest=25)
    for name in SECRETS:
        monkeypatch.setenv(name, SECRET)
    assert lab.submit("--seeds", SEEDS, "--dry-run") == 0
    planned = re.findall(r"^    (tiny:\S+)", capsys.readouterr().out, re.MULTILINE)
    slurm.calls.clear()
    assert lab.submit("--seeds", SEEDS) == 0
    assert "152 jobs submitted in 10 calls" in capsys.readouterr().out
    assert slurm.calls == {"squeue": 1, "scontrol show": 1, "sbatch": 10, "scontrol release": 1}
    jobs = lab.jobs()
    assert Counter(job.name for job in jobs) == Counter(planned), "--dry-run says exactly what is submitted"
    assert {job.id for job in jobs} == set(slurm.jobs) == slurm.released and len({job.key for job in jobs}) == 152
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert {".sh", ".pkl"} <= {path.suffix for path in written}
    assert not [path for path in written if SECRET.encode() in path.read_bytes()], "batch scripts and pickles hold none"
    for job in jobs:
        assert after(lab, slurm, job.id) >= {*job.submitted["after"], *job.submitted["needs"]}, job
        assert Path(job.submitted["log"]).parent.joinpath(f"{job.id}_submitted.pkl").exists()
    caps = {len(one.tasks): one.parallelism for one in slurm.arrays.values()}
    arrays = [one for one in slurm.arrays.values() if one.tasks]
    assert [len(one.tasks) for one in arrays] == [25, 5, 25, 25, 10, 25, 25, 10]
    assert sum(one.parallelism for one in arrays[:2]) == sum(one.parallelism for one in arrays[2:5]) == 7, caps
    assert max(number for one in arrays for number in one.tasks) == 24
    kinds = [one.dependency.partition(":")[0] for one in arrays]
    assert kinds == ["afterany"] * 5 + ["aftercorr"] * 3
    names = [name for one in arrays for name in re.findall(r"^#SBATCH --job-name=(.*)$", one.text, re.MULTILINE)]
    assert names == ["tiny:train"] * 5 + ["tiny:score"] * 3, "squeue says what they do"
    lab.submit("--seeds", SEEDS)
    assert "nothing to submit" in capsys.readouterr().out and len(slurm.arrays) == 10


def test_asking_for_many_runs_looks_once(lab: Lab, tmp_path, monkeypatch, capsys) -> None:
    """Oracle: counted by hand. The 92 jobs of 60 runs are 92 files, which a process opens once and asks again only
    whether they have changed; no file is looked for of a run or a stage that has not begun."""
    FakeSlurm(tmp_path / "bin", monkeypatch)
    lab.submit("--seeds", SEEDS)
    asked: Counter[str] = Counter()
    read, stat = records.read, os.stat

    def asked_stat(path: Any, **how: Any) -> Any:
        asked[
            next(
                (name for name in ("suites", "stages") if f"/{name}/" in str(path) and str(path).endswith(".jsonl")), ""
            )
        ] += 1
        return stat(path, **how)

    monkeypatch.setattr(records, "read", lambda path, lines: asked.update(["read"]) or read(path, lines))
    monkeypatch.setattr(os, "stat", asked_stat)
    lab.call("status", "--seeds", SEEDS)
    assert "60 runs, 60 waiting" in capsys.readouterr().out
    assert (asked["read"], asked["suites"], asked["stages"]) == (92, 92, 0)
    asked.clear()
    lab.submit("--seeds", SEEDS, "--dry-run")
    assert "To train: 0 of 60 runs" in capsys.readouterr().out
    assert (asked["read"], asked["suites"], asked["stages"]) == (0, 2 * 92, 0), "for states, and for what to submit"
    append_line(lab.jobs()[5].file, {"kind": "started", "node": "n1", "gpus": None, "restarts": 0})
    asked.clear()
    lab.call("status", "--seeds", SEEDS)
    assert asked["read"] == 1


BUNDLE = "runs_per_job = 4\nntasks_per_node = 2\ncpus_per_task = 3\narray_parallelism = 7"


def test_bundles(lab: Lab, tmp_path, monkeypatch, capsys) -> None:
    """Oracle: by hand: a seed is a shared stage and two runs, so three seeds are two jobs; `--dry-run` says the same.

    A job is one process with the cores of two, and scores wait for the job of their run.
    """
    lab.write('{ method = "naive" }', '{ method = "er" }', slurm=BUNDLE, tasks=write_task(lab.folder))
    slurm = FakeSlurm(tmp_path / "bin", monkeypatch)
    assert lab.submit("--seeds", "0,1,2", "--dry-run") == 0
    told = capsys.readouterr().out
    assert "10 jobs to submit: 1 to prepare, 2 to train, 6 to score, 1 to report; 4 runs a job, 2 at a time" in told
    assert "    tiny:naive-s0+3 after tiny:prepare\n    tiny:naive-s2+1 after tiny:prepare" in told
    assert lab.submit("--seeds", "0,1,2") == 0
    assert "10 jobs submitted" in capsys.readouterr().out
    members: dict[str, list[str]] = {}
    for job in lab.jobs():
        assert after(lab, slurm, job.id) >= {*job.submitted["after"], *job.submitted["needs"]}, job
        members.setdefault(job.id, []).append(job.name)
    shared = "tiny:wood-of-2-s{}", "tiny:naive-s{}", "tiny:er-s{}"
    seeds = [[name.format(seed) for name in shared] for seed in range(3)]
    assert [names for names in members.values() if len(names) > 1] == [seeds[0] + seeds[1], seeds[2]]
    [script] = [one.text for one in slurm.arrays.values() if "cpus-per-task=6" in one.text]
    assert "#SBATCH --ntasks-per-node=1\n" in script and "srun" in script and "--array=0-1%7" in script
    lab.submit("--seeds", "0,1,2")
    assert "nothing to submit" in capsys.readouterr().out


OWN = '"slurm.nodes" = 2, "slurm.partition" = "large", "slurm.score.mem" = "64GB"'
ROWS = {
    "first": ("naive", '"training.learning_rate" = [2e-3, 1e-3], "slurm.mem" = "9GB"'),
    "plain": ("naive", ""),
    "also": ("er", ""),
    "alone": ("naive", '"training.learning_rate" = [5e-4, 1e-3], "slurm.mem" = "9GB"'),
    "big": ("naive", f'"training.learning_rate" = [1e-3, 1e-3], {OWN}'),
    "bigger": ("er", f'"training.learning_rate" = [1e-3, 1e-3], {OWN}'),
}


@pytest.mark.parametrize(("cap", "shares"), [(7, [3, 2, 2]), (1, [1, 1, 1])])
def test_rows_ask_for_their_own(lab: Lab, tmp_path, monkeypatch, capsys, cap: int, shares: list[int]) -> None:
    """Oracle: by hand, the options of each batch script. What rows share asks for what they agree on, else for what the
    suite says; nothing starts before what it needs, or waits in a circle; all arrays share `array_parallelism`, and
    where that is one they go one after the other."""
    rows = [f'{{ name = "{row}", method = "{how}", set = {{ {what} }} }}' for row, (how, what) in ROWS.items()]
    lab.write(*rows, slurm=f'partition = "main"\narray_parallelism = {cap}', tasks=write_task(lab.folder))
    slurm = FakeSlurm(tmp_path / "bin", monkeypatch)
    assert lab.submit("--dry-run") == 0
    told = capsys.readouterr().out
    assert "  jobs to prepare, train, score, report: partition main, nodes 1, time 1440" in told
    assert " train first, alone: mem 9GB\n" in told and " train big, bigger: partition large, nodes 2\n" in told
    assert "  jobs to score big, bigger: partition large, mem 64GB\n" in told
    assert lab.submit() == 0
    jobs = {job.name.partition(":")[2]: job for job in lab.jobs()}
    asked: dict[tuple[str, ...], set[str]] = {}
    for name, job in jobs.items():
        flags = dict(re.findall(r"^#SBATCH --([\w-]+)=(.*)$", slurm.arrays[job.array].text, re.MULTILINE))
        asked.setdefault((flags["partition"], flags["nodes"], flags.get("mem", "")), set()).add(name)
    assert asked == {
        ("main", "1", ""): {"prepare", "report", "wood-of-3-s0"}
        | {"plain-s0", "also-s0", "score-plain-s0-sea", "score-also-s0-sea"},
        ("main", "1", "9GB"): {"first-s0", "alone-s0", "score-first-s0-sea", "score-alone-s0-sea"},
        ("large", "2", ""): {"wood-of-2-s0", "big-s0", "bigger-s0"},
        ("large", "1", "64GB"): {"score-big-s0-sea", "score-bigger-s0-sea"},
    }
    waits = {job.id: after(lab, slurm, job.id) for job in jobs.values()}
    for job in jobs.values():
        assert waits[job.id] >= {*job.submitted["after"], *job.submitted["needs"]} - set(slurm.arrays), job
    TopologicalSorter(waits).prepare()  # or there is a circle
    arrays = [jobs[name].array for name in ("plain-s0", "alone-s0", "big-s0")]
    assert [slurm.arrays[array].parallelism for array in arrays] == shares
    for before, then in pairwise(arrays):
        tasks = {job.id for job in jobs.values() if job.array == before}
        assert all(waits[job.id] >= tasks for job in jobs.values() if job.array == then) == (cap == 1)


def test_what_goes_into_a_bundle(tmp_path) -> None:
    """Oracle: by hand: a tree of more runs than fit is cut behind its shared stage; others are put together, but only
    what asks for the same."""

    def job(name: str, parent: str = "") -> PlannedJob:
        run = TrainRun(config=None, build=None, runs=tmp_path)  # type: ignore[arg-type]
        serves = () if name.isupper() else (name,)
        return PlannedJob(name, "train", f"t:{name}", run, ("data", *parent.split()), serves=serves)

    large = [job("A"), *(job(name, "A") for name in "abc")]
    small = [job("B"), *(job(name, "B") for name in "de")]
    found = bundled([*large, *small, job("f")], lambda job: Slurm(runs_per_job=2))
    assert [" ".join(one.key for one in bundle.members) for bundle in found] == ["A", "B d e", "f", "a b", "c"]
    assert [bundle.after for bundle in found] == [("data",)] * 3 + [("A", "data")] * 2
    assert [bundle.name for bundle in found] == ["t:A", "t:d+1", "t:f", "t:a+1", "t:c"]
    assert [bundle.serves for bundle in found] == [(), ("d", "e"), ("f",), ("a", "b"), ("c",)]
    own = {"d": Slurm(runs_per_job=2, mem="9GB"), "c": Slurm(nodes=2)}
    found = bundled([*large, *small, job("f")], lambda job: own.get(job.key, Slurm(runs_per_job=3)))
    assert [" ".join(one.key for one in bundle.each) for bundle in found] == ["A B f", "a b", "c", "d", "e"]
    assert [bundle.after for bundle in found] == [("data",)] + [("A", "data")] * 4
    assert [bool(bundle.members) for bundle in found] == [True, True, False, True, True]


@pytest.mark.parametrize(
    ("slurm", "message"),
    [
        ("runs_per_job = 2\nnodes = 2", "runs that share a job are on one node"),
        (
            "runs_per_job = 2\nntasks_per_node = 2\nexclusive = false",
            "slurm.exclusive = false: under a budget in seconds the 2 runs at a time of a job need cores",
        ),
        ('runs_per_job = 2\nntasks_per_node = 2\nexclusive = "user"', 'slurm.exclusive = "user": under a budget in'),
    ],
)
def test_bundles_that_cannot_be(lab: Lab, tmp_path, monkeypatch, capsys, slurm: str, message: str) -> None:
    """Oracle: the rule of `run --parallel`: under a budget in seconds equal, disjoint cores."""
    FakeSlurm(tmp_path / "bin", monkeypatch)
    lab.write('{ method = "naive" }', slurm=slurm)
    assert lab.submit("--set", "budget.unit=seconds") == 2
    assert message in capsys.readouterr().err


def test_a_container_and_a_work_key(lab: Lab, tmp_path, monkeypatch) -> None:
    """Oracle: the batch script: the suite's own command starts Python, and no key but the suite's is given."""
    slurm = FakeSlurm(tmp_path / "bin", monkeypatch)
    assert lab.submit("--set", "slurm.python=apptainer exec x.sif python3") == 0
    for one in slurm.arrays.values():
        assert " apptainer exec x.sif python3 -u " in one.text and "wckey" not in one.text
    assert lab.submit("--seeds", "1", "--set", "slurm.wckey=mine") == 0
    assert "#SBATCH --wckey=mine\n" in slurm.arrays["103"].text


@pytest.mark.parametrize("teardown", [[], ["echo over", "true"], ["false"]])
def test_a_job_ends_as_its_command_does(lab: Lab, tmp_path, monkeypatch, teardown: list[str]) -> None:
    """Oracle: bash, which runs the batch script: 137, as srun says of a process that was killed, whatever follows."""
    slurm = FakeSlurm(tmp_path / "bin", monkeypatch)
    assert lab.submit("--set", f"slurm.teardown={json.dumps(teardown)}") == 0
    (tmp_path / "bin" / "srun").write_text("#!/bin/sh\nexit 137\n")
    for one in slurm.arrays.values():
        done = subprocess.run(["bash", one.script], capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stdout) == (137, "over\n" if "echo over" in teardown else "")


POLICY = (
    "Batch job submission failed: Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)"
)


@pytest.mark.parametrize(
    ("said", "calls"),
    [
        (f"sbatch: error: QOSMaxWallDurationPerJobLimit\nsbatch: error: {POLICY}", 3),
        (f"sbatch: error: QOSGrpSubmitJobsLimit\nsbatch: error: {POLICY}", 5),
        (f"sbatch: error: {POLICY}", 5),
    ],
)
def test_only_a_limit_on_submissions_cuts_them(lab: Lab, tmp_path, monkeypatch, said: str, calls: int) -> None:
    """Oracle: Slurm's own words: of the reasons behind a broken policy it names the one; where that may help, an array
    of two tasks is tried again as one of one, and without an array."""
    slurm = FakeSlurm(tmp_path / "bin", monkeypatch)

    def refuse(command: list[str]) -> str:
        if command[0] == "sbatch" and slurm.calls["sbatch"] >= 2:
            slurm.calls["sbatch"] += 1
            raise commands.SlurmError(said)
        return slurm.answer(command)

    monkeypatch.setattr(commands, "_ask", refuse)
    lab.write('{ method = "naive" }', slurm="")
    lab.file.write_text(lab.file.read_text().replace("main_pretraining", "representational_similarity"))
    assert lab.submit("--seeds", "0,1") == 3
    assert slurm.calls["sbatch"] == calls


def test_few_shared_stages_hold_up_nothing_else(lab: Lab, tmp_path, monkeypatch) -> None:
    """Oracle: the graph: each run waits for its own shared stage alone, by one call for the runs of each."""
    slurm = FakeSlurm(tmp_path / "bin", monkeypatch)
    assert lab.submit("--seeds", "0,1,2") == 0
    for job in lab.jobs():
        if job.run:
            assert after(lab, slurm, job.id) == set(job.submitted["after"]) and len(job.submitted["after"]) == 2
    assert slurm.calls["scontrol update"] == 3 and slurm.calls["sbatch"] == 3


@pytest.mark.parametrize("seeds", ["0,1,2", SEEDS])
def test_a_site_without_arrays(lab: Lab, tmp_path, monkeypatch, seeds: str) -> None:
    """Oracle: MaxArraySize 0, where Slurm refuses every array: a call a job, and none more, however many there are. It
    names what the job waits for, and the one that ends before it, so that no more than three train at a time."""
    lab.write('{ method = "naive" }', '{ method = "er" }', slurm="array_parallelism = 3")
    slurm = FakeSlurm(tmp_path / "bin", monkeypatch, largest=0)
    assert lab.submit("--seeds", seeds) == 0
    jobs = lab.jobs()
    assert len(slurm.arrays) == len(jobs) == 2 + 3 * len(seeds.split(",")) == slurm.calls["sbatch"]
    assert not any(one.tasks for one in slurm.arrays.values()) and not slurm.calls["scontrol update"]
    trained = [job for job in jobs if job.submitted["serves"]]
    for before, job in zip([None] * 3 + trained, trained, strict=False):
        assert after(lab, slurm, job.id) == {*job.submitted["after"], *([before.id] if before else [])}


@pytest.mark.parametrize(
    ("largest", "cap", "tasks", "more"), [(0, 2, False, 0), (0, 9, False, 3), (0, 2, True, 4), (3, 9, True, 2)]
)
def test_nothing_waits_for_more_than_slurm_takes(
    lab: Lab, tmp_path, monkeypatch, largest: int, cap: int, tasks: bool, more: int
) -> None:
    """Oracle: the graph: a dependency names at most so many jobs or arrays, and what the report does not name ends
    before what it names. Jobs that do nothing come between where many end last: of no two runs in lanes one waits, a
    score waits for a run alone, and of arrays it waits task by task."""
    monkeypatch.setattr(commands, "PIECE", 3)
    lab.write('{ method = "naive" }', slurm=f"array_parallelism = {cap}", tasks=write_task(lab.folder) if tasks else "")
    slurm = FakeSlurm(tmp_path / "bin", monkeypatch, largest=largest)
    assert lab.submit("--seeds", "0,1,2,3,4,5,6,7,8,9") == 0
    [report] = [job for job in lab.jobs() if job.name == "tiny:report"]
    assert [job.name for job in lab.jobs()].count("tiny:wait") == more
    assert all(one.dependency.count(":") <= 3 for one in slurm.arrays.values())
    waited = {report.id}
    while found := {before for job in waited for before in after(lab, slurm, job)} - waited:
        waited |= found
    assert waited == {job.id for job in lab.jobs()} == slurm.released
    lab.submit("--seeds", "0,1,2,3,4,5,6,7,8,9")
    assert {job.id for job in lab.jobs()} == waited, "nothing is submitted again"


def test_a_report_waits_for_rows_of_any_name(lab: Lab, tmp_path, monkeypatch) -> None:
    """Oracle: the ids of the runs' jobs; the keys of those that no report waits for begin with these words."""
    FakeSlurm(tmp_path / "bin", monkeypatch)
    lab.write('{ name = "data", method = "er" }', '{ name = "report", method = "naive" }')
    assert lab.submit() == 0
    [report] = [job.file for job in lab.jobs() if job.name == "tiny:report"]
    assert {job.id for job in lab.jobs() if job.run} <= set(read_lines(report)[0]["after"])


def test_ids_go_to_slurm_in_bounded_pieces(monkeypatch) -> None:
    """Oracle: by hand: tasks of an array are one word, and a command has at most 500."""
    asked: list[list[str]] = []
    monkeypatch.setattr(commands, "_ask", lambda command: asked.append(command) or "")
    commands.cancel(["12_0", "12_1", "12_2", "12_7", "13"])
    assert asked.pop() == ["scancel", "12_[0-2,7]", "13"]
    commands.cancel([str(number) for number in range(1200)])
    assert [len(command) for command in asked] == [501, 501, 201]
    asked.clear()
    every_other = [f"12_{task}" for task in range(1_000_000, 1_100_000, 2)]
    for tell in (commands.cancel, commands.release, lambda ids: commands.wire(ids, ["7"], [])):
        tell(every_other)
        assert max(len(word) for command in asked for word in command) < 128 * 1024
        assert max(sum(map(len, command)) for command in asked) < 128 * 1024
        told = [task for command in asked for task in re.findall(r"\b1\d{6}\b", " ".join(command))]
        assert told == [id.partition("_")[2] for id in every_other] and len(asked) == 9
        asked.clear()


def test_a_job_inherits_nothing_of_an_outer_one(monkeypatch) -> None:
    """Oracle: sbatch passes its environment on, and takes options from it; where Slurm is found has to stay, and what
    is a user's own, whose names only begin as torchrun's do."""
    own = {"SLURM_JOB_ID", "SBATCH_PARTITION", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "SUBMITIT_EXECUTOR"}
    own |= {"CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "OMPI_COMM_WORLD_RANK", "GROUP_RANK"}
    stay = {"SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_JWT", "HOME", "CUDA_HOME", "LOCAL_SCRATCH", "MASTER_KEY"}
    stay |= {"RANKING", "GROUP_FOLDER", "ROLES"}
    for name in own | stay:
        monkeypatch.setenv(name, "x")
    monkeypatch.setenv("TMPDIR", "/tmp/job-7")
    kept = commands._environment()
    assert not (own | {"TMPDIR"}) & set(kept) and stay <= set(kept)
    monkeypatch.delenv("SLURM_JOB_ID")
    assert commands._environment()["TMPDIR"] == "/tmp/job-7", "where no job runs it is the user's"


def test_what_cannot_be_started_or_read_is_no_answer(tmp_path, monkeypatch) -> None:
    """Oracle: the contract: no answer is a SlurmError, which `--watch` outlives; letters of any encoding are none."""
    monkeypatch.setenv("PATH", str(tmp_path))
    squeue = tmp_path / "squeue"
    squeue.write_bytes(b"#!/bin/sh\necho '7|RUNNING|None|n1|/x/\xe9.sh'\n")
    squeue.chmod(0o755)
    assert commands.queue()["7"].script == "/x/\ufffd.sh"
    squeue.write_text("no program")
    with pytest.raises(commands.SlurmError, match=r"squeue cannot be started \(Exec format error\)"):
        commands.queue()


def test_slurm_is_asked_without_a_users_filters(tmp_path, monkeypatch) -> None:
    """Oracle: what squeue would see: no filter of squeue(1), no question of scancel(1), and nothing to read."""
    (tmp_path / "squeue").write_text('#!/bin/sh\necho "7$SQUEUE_PARTITION$SCANCEL_INTERACTIVE|$(cat)|r|n|s"\n')
    (tmp_path / "squeue").chmod(0o755)
    (tmp_path / "typed").write_text("PENDING")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setenv("SQUEUE_PARTITION", "other")
    monkeypatch.setenv("SCANCEL_INTERACTIVE", "1")
    before = os.dup(0)
    with (tmp_path / "typed").open() as typed:
        os.dup2(typed.fileno(), 0)
        try:
            assert commands.queue() == {"7": commands.Queued("", "r", "n", "s")}
        finally:
            os.dup2(before, 0)
            os.close(before)


def test_the_commands_answer_is_read(tmp_path, monkeypatch) -> None:
    """Oracle: Slurm's own words, written down from version 22.05."""
    monkeypatch.setattr(commands, "_ask", lambda command: "7_1|PENDING|None|n1|/x/a|b.sh\n")
    assert commands.queue() == {"7_1": commands.Queued("PENDING", "", "n1", "/x/a|b.sh")}
    assert re.fullmatch(r"0-2,7,9-10", commands.ranges([0, 1, 2, 7, 9, 10]))
