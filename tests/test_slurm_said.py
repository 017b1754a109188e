"""What commands say of jobs on a real Slurm, and what is in its queue then; see tests/test_slurm.py."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator

import pytest

from benchmark.jobs.slurm import commands
from tests.support.slurm_lab import (
    Lab,
    assert_as_if_undisturbed,
    needs_slurm,
    scontrol,
    wait_until,
    waits_in_queue,
    write_task,
)
from tests.support.thorough import only_thorough

pytestmark = needs_slurm
ROWS = '{ method = "naive" }', '{ method = "er" }'
TWIN = '{ method = "naive", name = "twin", set = { "slurm.mem" = "300MB" } }'
OWN = '"training.learning_rate" = [5e-4, 2e-3], "slurm.mem" = "300MB", "slurm.score.time" = 7'
LARGE = f'{{ method = "naive", name = "large", set = {{ {OWN} }} }}'
KINDS = '[slurm.score]\nmem = "50MB"\ntime = 9\n[slurm.report]\npartition = "preemptible"\n'
MINUTES = r"(?:(\d+)-)?(?:(\d+):)?(\d+):00"  # squeue's days, hours, minutes


@pytest.fixture
def still(lab: Lab) -> Iterator[Lab]:
    """Jobs wait."""
    scontrol("update", "PartitionName=main", "State=DOWN")
    scontrol("update", "PartitionName=preemptible", "State=DOWN")
    yield lab
    subprocess.run(["scancel", "--me"], check=True)
    scontrol("update", "PartitionName=main", "State=UP")
    scontrol("update", "PartitionName=preemptible", "State=UP")


def with_all_before(waits: dict[str, set[str]]) -> dict[str, set[str]]:
    """What each job waits for, and what that waits for."""
    before: dict[str, set[str]] = {}
    while before != waits:
        before = waits
        waits = {job: ids.union(*(before.get(id, ()) for id in ids)) for job, ids in before.items()}
    return waits


def said_by_dry_run(told: str) -> dict[str, set[str]]:
    """What each job that it names waits for; those under way by their ids."""
    found: dict[str, set[str]] = {}
    for name, after in re.findall(r"^    (tiny:\S+)(?: after (.*))?$", told, re.MULTILINE):
        parts = after.split(", ")
        going = {part.partition("(")[2].partition(",")[0] for part in parts if "(" in part}
        new = {*found} if "all of these" in after else {part for part in parts if part in found}
        found[name] = going | new
    return found


def asked(job: str) -> dict[str, str]:
    """What Slurm says that a job was submitted with."""
    line = subprocess.run(
        ["squeue", "--noheader", "--array", f"--jobs={job}", "--format=%P|%m|%l|%D"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.strip()
    partition, memory, limit, nodes = line.split("|")
    days, hours, minutes = (int(part or 0) for part in re.fullmatch(MINUTES, limit).groups())
    time = str(minutes + 60 * (hours + 24 * days))
    return {"partition": partition, "mem": memory.replace("M", "MB"), "time": time, "nodes": nodes}


def kind_of(job: str) -> str:
    """The kind of a job by its name."""
    name = job.partition(":")[2].partition("-")[0]
    return {"score": "score", "similarity": "measure", "report": "report"}.get(name, "train")


def test_a_dry_run_says_what_a_run_then_submits(still: Lab, capsys) -> None:
    """Oracle: Slurm's queue after `run`: the jobs, their arrays, what they ask for and what they wait for, of a whole
    suite, and of what is missing beside jobs that are under way."""
    rows = (*ROWS, TWIN, LARGE)
    lab = still.write(*rows, tasks=write_task(still.folder), slurm=f'partition = "main"\nmem = "200MB"\n{KINDS}')
    lab.file.write_text(lab.file.read_text().replace("main_pretraining", "representational_similarity"))
    for counts, arrays in (("6 to train, 3 to score, 3 to measure", 8), ("1 to train, 1 to score, 1 to measure", 4)):
        before = {*commands.queue()}
        capsys.readouterr()
        assert lab.submit("--dry-run") == 0
        told = capsys.readouterr().out
        assert {*commands.queue()} == before, "nothing is submitted yet"
        assert lab.submit() == 0
        names = {job.id: job.name for job in lab.jobs()}
        new = [id for id in commands.queue() if id not in before]
        found, said = with_all_before(waits_in_queue(lab)), with_all_before(said_by_dry_run(told))
        for job, waited in said.items():  # with all that those under way wait for
            said[job] = waited.union(*(found[id] for id in waited if id in before))
        here = {names[id]: {id if id in before else names[id] for id in found[id]} for id in new}
        going = here["tiny:report"] & before
        assert (f"all of these and {len(going)} jobs under way\n" in told) == bool(going) == bool(before)
        said["tiny:report"] |= going
        assert here == said
        assert len(new) == len(here) and f"  {len(new)} jobs to submit: {counts}, 1 to report\n" in told
        assert len({id.partition("_")[0] for id in new}) == arrays, "one of those of a kind that ask for the same"
        shown = {
            kind: dict(one.split(" ", 1) for one in text.split(", "))
            for kinds, text in re.findall(r"^  jobs to ([a-z, ]+): (.*)$", told, re.MULTILINE)
            for kind in kinds.replace("twin, large", "twin+large").split(", ")
        }
        for id in new:
            kind = kind_of(names[id])
            own = next((of for of in shown if of.startswith(f"{kind} ") and re.search("large|twin", names[id])), kind)
            expected = {**shown[kind], **shown[own]}
            assert asked(id) == {key: expected[key] for key in asked(id)}, (names[id], own)
        assert lab.call("cancel", "--methods", "er") == 0


def test_the_command_for_stale_jobs_ends_them_and_no_other(still: Lab, capsys) -> None:
    """Oracle: Slurm's queue, by hand: of an edited suite the tasks of the row that it no longer has, out of arrays that
    hold others, and the report that would show it; not those that `--set` submitted, another suite's, or a job that is
    none of ours."""
    lab = still.write(*ROWS, tasks=write_task(still.folder))
    subprocess.run(["sbatch", "--wrap=true", f"--output={lab.folder}/none"], check=True, capture_output=True)
    assert lab.submit("--seeds", "0,1,2") == 0
    whole = {job.name: job.id for job in lab.jobs()}
    assert lab.submit("--methods", "er", "--set", "training.learning_rate=7e-3") == 0
    assert lab.as_suite("second").submit("--methods", "er", "--seeds", "0,1") == 0
    gone = {f"tiny:{what}" for seed in range(3) for what in (f"er-s{seed}", f"score-er-s{seed}-sea")} | {"tiny:report"}
    lab.write(ROWS[0], tasks=write_task(lab.folder))
    before = {*commands.queue()}
    capsys.readouterr()
    assert lab.call("status", "--seeds", "0,1,2") == 0
    told = capsys.readouterr().out
    [command] = re.findall(r"^! 7 jobs are for what the suite no longer asks for: `(.*?)` ends them, ", told, re.M)
    assert f"`python run_all.py status {lab.file} --runs {lab.runs} --methods er --set training" in told
    subprocess.run(command, shell=True, check=True)
    assert {*commands.queue()} == before - {whole[name] for name in gone}
    assert lab.call("status", "--seeds", "0,1,2") == 0
    assert "no longer asks for" not in capsys.readouterr().out


@pytest.mark.parametrize("ends", ["it", pytest.param("its job", marks=only_thorough)])
def test_a_run_waits_for_another_suites_stage(lab: Lab, capsys, ends: str) -> None:
    """Oracle: an undisturbed run, bit for bit, whose stages are done once each: while one suite's job has a stage the
    other's says so, with the command that ends it; it goes on when that is done, or from where the command ended it."""
    lab.write("x").tell("x", "slow")
    assert lab.submit() == 0
    lab.wait_for_mid_stage("x")
    second, job = lab.as_suite("second"), lab.job("x").id
    assert second.submit() == 0
    wait_until(lambda: "waits for its next stage" in second.states()["x"].detail)
    capsys.readouterr()
    assert second.call("status") == 0
    told = capsys.readouterr().out
    [command] = re.findall(rf"waits for its next stage, which process .*, job {job} trains; `(.*?)` ends that", told)
    assert "waits for its next stage" not in lab.states()["x"].detail
    if ends == "its job":
        subprocess.run(command, shell=True, check=True)
        assert lab.wait_for("x", "interrupted").detail.startswith("saved and ended by SIGTERM")
    lab.let_go("x")
    assert second.wait_for("x", "done").restarts == 0
    if ends == "its job":
        wait_until(lambda: not commands.queue())
        assert lab.submit() == 0
    assert lab.wait_for("x", "done").job.id == lab.job("x").id
    assert [lab.count("x", "done", stage) for stage in (0, 1)] == [1, 1]
    assert_as_if_undisturbed(lab, "x", resumed=int(ends == "its job"))
