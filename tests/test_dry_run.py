"""What `run --dry-run` says beside what `run` then does; Slurm is a table in memory, see tests/test_slurm_said.py."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import run_all
from tests.support import tiny_suite
from tests.support.fake_slurm import FakeSlurm, after
from tests.support.slurm_lab import Lab, write_task, write_texts

ROWS = '{ method = "naive" }', '{ method = "er" }'


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    write_texts(tmp_path)
    return Lab(tmp_path / "lab", tmp_path).write(*ROWS, tasks=write_task(tmp_path))


def said(lab: Lab, capsys: pytest.CaptureFixture[str], *words: str) -> list[str]:
    capsys.readouterr()
    assert lab.call("run", "--dry-run", *words) == 0
    return capsys.readouterr().out.splitlines()


@pytest.mark.parametrize(
    ("most", "expected"),
    [
        (
            2,
            [
                "tiny:naive-s0 after tiny:wood-of-2-s0 (101_0, under way)",
                "tiny:er-s0 after tiny:wood-of-2-s0 (101_0, under way)",
                "tiny:score-naive-s0-sea after tiny:naive-s0",
                "tiny:score-er-s0-sea after tiny:er-s0",
                "tiny:report after all of these and 1 jobs under way",
            ],
        ),
        (
            3,
            [
                "tiny:er-s0 after tiny:wood-of-2-s0 (101_0, under way)",
                "tiny:score-naive-s0-sea after tiny:naive-s0 (101_1, under way)",
                "tiny:score-er-s0-sea after tiny:er-s0",
                "tiny:report after all of these and 2 jobs under way",
            ],
        ),
        (6, ["tiny:report after 5 jobs under way"]),
    ],
)
def test_jobs_wait_for_what_is_under_way(lab: Lab, tmp_path, monkeypatch, capsys, most: int, expected) -> None:
    """Oracle: by hand, where a limit has cut a submission off; and what the next `run` submits, with its waits."""
    slurm = FakeSlurm(tmp_path / "bin", monkeypatch, most=most)
    assert lab.submit() == 3
    before = {job.id for job in lab.jobs()}
    told = said(lab, capsys, "--executor", "slurm")
    assert [line.strip() for line in told if line.startswith("    ")] == expected
    slurm.most = 100
    assert lab.submit() == 0
    names = {job.id: job.name for job in lab.jobs()}
    new = {job.name: after(lab, slurm, job.id) for job in lab.jobs() if job.id not in before}
    assert [*new] == [line.split()[0] for line in expected]
    for line in expected[:-1]:
        job, _, other = line.split()[:3]
        assert other in {names[id] for id in new[job]}
    count = int(re.search(r"(\d+) jobs under way", expected[-1])[1])
    assert len(new["tiny:report"] & before - {"100"}) == count, "the report waits for no text"


CPU = 'partition = "cpu"\nmem = "9GB"\n'
KINDS = (
    f'partition = "gpu"\ngpus_per_node = "a100:4"\nmem = "64GB"\n[slurm.prepare]\n{CPU}[slurm.score]\ntime = 60\n'
    f"[slurm.report]\n{CPU}"
)
SHOWN = ("partition", "mem", "time", "gpus-per-node", "nodes", "ntasks-per-node")  # of sbatch's options


@pytest.mark.parametrize("first", [100, 4])
def test_what_each_kind_of_job_asks_for_is_said(lab: Lab, tmp_path, monkeypatch, capsys, first: int) -> None:
    """Oracle: the options of the batch scripts that are submitted then, kind by kind, all at once or those of the last
    ones, with no training among them."""
    lab.write(*ROWS, tasks=write_task(lab.folder), slurm=KINDS)
    slurm = FakeSlurm(tmp_path / "bin", monkeypatch, most=first)
    if first == 4:
        assert lab.submit() == 3
        slurm.most = 100
    told = said(lab, capsys, "--executor", "slurm")
    before = set(slurm.arrays)
    assert lab.submit() == 0
    asked: dict[str, dict[str, str]] = {}
    for kinds, settings in re.findall(r"^  jobs to (.*?): (.*)$", "\n".join(told), re.MULTILINE):
        asked |= {kind: dict(one.split(" ", 1) for one in settings.split(", ")) for kind in kinds.split(", ")}
    found = {}
    for job in lab.jobs():
        name = job.name.partition(":")[2].partition("-")[0]
        kind = name if name in ("prepare", "score", "report") else "train"
        if job.array not in before:
            found[kind] = dict(re.findall(r"^#SBATCH --([\w-]+)=(.*)$", slurm.arrays[job.array].text, re.MULTILINE))
    assert asked.keys() == found.keys() == {"score", "report", *(["prepare", "train"] if first == 100 else [])}
    for kind, flags in found.items():
        given = {name: asked[kind].get(name.replace("-", "_")) for name in SHOWN}
        assert given == {name: flags.get(name) for name in SHOWN}, kind
    assert (asked["score"]["gpus_per_node"], asked["report"]["mem"]) == ("a100:1", "9GB")


def test_options_of_the_site_are_said(lab: Lab, tmp_path, monkeypatch, capsys) -> None:
    """Oracle: what is given, of each kind of job that has it; beside it nothing of what jobs are always given."""
    FakeSlurm(tmp_path / "bin", monkeypatch)
    lab.write(
        *ROWS, tasks=write_task(lab.folder), slurm='additional_parameters = { reservation = "r", requeue = false }'
    )
    given = ("slurm.python=/opt/python -X utf8", "slurm.scratch=$TMPDIR", 'slurm.srun_args=["--mpi=none", "--label"]')
    told = said(lab, capsys, "--executor", "slurm", *(word for one in given for word in ("--set", one)))
    [train] = [line for line in told if line.startswith("  jobs to train: ")]
    others = [line for line in told if line.startswith("  jobs to ") and line != train]
    site = "reservation r, requeue False, srun_args --mpi=none --label, python /opt/python -X utf8"
    assert train.endswith(f", {site}, scratch $TMPDIR")
    assert others and all(line.endswith(f", {site}") for line in others)
    assert not re.search("kill.on", "".join(told))


@pytest.mark.parametrize(
    ("key", "value", "line"),
    [
        ("additional_parameters", '{ reservation = "r" }', "licenses none, reservation r"),
        ("srun_args", '["--mpi=none"]', "srun_args --mpi=none"),
        ("setup", '["true"]', "setup ['set -e', 'true', 'set +e']"),
        ("exclusive", "true", "exclusive True"),
    ],
)
def test_a_row_that_is_an_array_of_its_own_says_why(lab: Lab, tmp_path, monkeypatch, capsys, key, value, line) -> None:
    """Oracle: the arrays that are submitted then: one more with the row's own option, for which there is a line."""
    slurm = FakeSlurm(tmp_path / "bin", monkeypatch)
    row = f'{{ method = "er", set = {{ "slurm.{key}" = {value} }} }}'
    lab.write(ROWS[0], row, slurm='additional_parameters = { licenses = "a" }')
    told = said(lab, capsys, "--executor", "slurm")
    assert [one for one in told if "train ER" in one] == [f"  jobs to train ER: {line}"]
    assert lab.submit() == 0
    assert len({job.array for job in lab.jobs() if job.run}) == 2 and len(slurm.arrays) == 4


def test_what_is_next_is_what_is_left(lab: Lab, tmp_path, monkeypatch, capsys) -> None:
    """Oracle: by hand: training; then, here and on Slurm, scores alone; then jobs that are under way; then nothing."""
    slurm = FakeSlurm(tmp_path / "bin", monkeypatch)
    lab.file.write_text(lab.file.read_text().replace("[40, 200]", "[1, 1]"))
    here, there = (), ("--executor", "slurm")
    for where in (here, there):
        assert said(lab, capsys, *where)[-1].endswith("without --dry-run trains them, then renders the report")
    assert lab.call("run", "--set", "tasks=[]", "--set", "tables=[]", "--parallel", "1") == 0
    assert "  2 scores to compute" in said(lab, capsys, *here)
    for where in (here, there):
        assert said(lab, capsys, *where)[-1] == "next: the same command without --dry-run does that"
    assert "  3 jobs to submit: 2 to score, 1 to report" in said(lab, capsys, *there)
    assert lab.submit() == 0
    assert re.fullmatch(r"next: `python run_all.py status .*` says how they do", said(lab, capsys, *there)[-1])
    slurm.cancelled |= set(slurm.jobs)
    assert lab.call("run") == 0
    assert re.fullmatch(r"next: `python run_all.py report .*` renders tables and figures", said(lab, capsys, *here)[-1])


def test_waves_are_said(lab: Lab, tmp_path, monkeypatch, capsys) -> None:
    """Oracle: counted in what is submitted then: no run of 30 seeds begins before all of their 30 shared stages ended;
    three seeds wait for their own alone."""
    slurm = FakeSlurm(tmp_path / "bin", monkeypatch)
    few, many = ("--seeds", "0,1,2"), ("--seeds", ",".join(map(str, range(30))))
    assert not [line for line in said(lab, capsys, "--executor", "slurm", *few) if "waves" in line]
    told = said(lab, capsys, "--executor", "slurm", *many)
    assert "  training goes in 2 waves, each after all of the one before: 30, 60 jobs" in told
    assert lab.submit(*many) == 0
    shared = {job.id for job in lab.jobs() if "wood-of" in job.name}
    runs = [job for job in lab.jobs() if job.run]
    assert len(shared) == 30 and len(runs) == 60 and all(after(lab, slurm, job.id) >= shared for job in runs)


@pytest.mark.parametrize(
    ("shell", "code", "said"),
    [
        ("PYTHONIOENCODING=ascii {} --set 'title=\"\u00e9\"'", 0, ""),
        ("{} >&-", 0, ""),
        ("mkdir gone && cd gone && rmdir ../gone && {}", 2, "error: the current folder: No such file or directory"),
        ("WORLD_SIZE=0 {}", 2, "error: WORLD_SIZE=0 and no MASTER_ADDR"),
    ],
)
def test_no_terminal_or_folder_makes_a_traceback(shell: str, code: int, said: str, tmp_path) -> None:
    """Oracle: exit code and standard error of the program itself, in a shell."""
    words = [sys.executable, str(Path(run_all.__file__)), "run", str(tiny_suite.write(tmp_path)), "--dry-run"]
    done = subprocess.run(shell.format(shlex.join(words)), shell=True, cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stderr[: len(said)]) == (code, said) and "Traceback" not in done.stderr
