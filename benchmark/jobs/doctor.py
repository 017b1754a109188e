"""`run_all.py doctor`: is this machine, and are the nodes of its cluster, fit for a suite? A line each, with the cure.

A node is asked by a job: does it see the folder of the runs, do locks hold between machines, what does torch find
there, whose clock is off, and may a job queue itself again? Nothing of it stays.
"""

from __future__ import annotations

import argparse
import errno
import fcntl
import json
import os
import platform
import shlex
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmark.errors import UserError
from benchmark.files import naming
from benchmark.jobs.findings import Finding
from benchmark.jobs.slurm import commands
from benchmark.jobs.slurm.private import for_the_user_alone, private_place

if TYPE_CHECKING:  # --help knows this command, and waits for no settings
    from benchmark.jobs.slurm.requests import Request
    from benchmark.settings.slurm import Slurm
    from benchmark.settings.suite import Row, Suite

PROBE = Path(__file__).parent / "slurm" / "probe.py"
PATIENCE = 300.0  # seconds for a job to start, and to be queued again
PAUSE = 1.0  # seconds between two looks
LITTLE = 10e9  # bytes of free space
SKEW = 5.0  # seconds that clocks may differ: states and times of jobs are compared between machines
AGAIN = "BeginTime"  # why a job waits that was queued again
LEASES = (
    "leases stand in; a stage whose process died elsewhere waits for 90 s, as it does with `mount -o flock` (Lustre)"
)
OPTIONS = (
    *("partition", "account", "qos", "constraint", "gpus_per_node", "gpus_per_task", "gres"),
    *("cpus_per_task", "cpus_per_gpu", "nodelist", "exclude", "wckey", "mem", "mem_per_cpu", "mem_per_gpu"),
)
READ = ("slurm", "rows", "methods", "budget", "tasks", "tables")  # of a suite: they decide what jobs ask for


def doctor(
    options: argparse.Namespace, rows: Callable[[Suite], list[Row]], measures: Callable[[Suite], Sequence[object]]
) -> int:
    """Print what is well and what is not; 1 if something is wrong. `measures`: those that a suite's tables need.

    Raises ConfigError for a `--set` of what changes nothing here.
    """
    from benchmark.jobs.slurm.requests import requests_of
    from benchmark.settings.base import ConfigError
    from benchmark.settings.load import expand, load_suite, parse_set

    changes = dict(map(parse_set, options.set))
    if unused := [key for key in changes if key.partition(".")[0] not in READ]:
        raise ConfigError(f"--set {unused[0]}: doctor looks at {', '.join(READ)} alone: leave it out")
    suite, wrong = load_suite(options.suite, changes), False
    requests = requests_of(suite, expand(suite, rows(suite), suite.seeds[:1]), bool(measures(suite)))
    for finding in examine(suite, options.runs, requests):
        print(finding, flush=True)
        wrong |= bool(finding.cure) and finding.serious
    return int(wrong)


def examine(suite: Suite, runs: Path, requests: Sequence[Request]) -> Iterator[Finding]:
    """Look at this machine; where there is Slurm at that, at what jobs would ask of it, and at one of its nodes."""
    from benchmark.jobs.slurm.requests import of_limits, of_requests

    yield of_torch()
    runs.mkdir(parents=True, exist_ok=True)
    yield from of_folder(runs)
    if not shutil.which("sbatch"):
        yield Finding("no sbatch here: runs train on this machine; for a cluster call this where jobs are submitted")
        return
    try:
        configuration = commands.configuration()
        yield from of_controller(commands.version(), configuration, bool(shutil.which("sacct")))
        partitions = commands.partitions()
        yield from of_limits(configuration, suite.slurm.account, requests, partitions)
        yield from of_requests(requests, partitions)
        yield from of_node(suite.slurm, runs)
    except commands.SlurmError as error:
        yield Finding("; ".join(str(error).splitlines()), "no job can be submitted before this is right")


def of_torch() -> Finding:
    """What torch finds on this machine; on a machine that only submits no device is as it should be."""
    import torch

    from benchmark.models.devices import accelerators

    kind, number = accelerators()
    count = f"{number} {kind}" if number else "no accelerator, so the CPU computes"
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    versions = f"Python {platform.python_version()}, torch {torch.__version__}"
    return Finding(f"{versions}, {count}, {cores} core{'s' * (cores != 1)}")


def of_folder(runs: Path) -> Iterator[Finding]:
    """Can it be written, locked and shared, and how much fits?"""
    free = shutil.disk_usage(runs).free
    cure = f"less than {LITTLE / 1e9:.0f} GB: `run --dry-run` says what a suite keeps; --runs takes another disk"
    yield Finding(f"{runs}: {free / 1e9:.1f} GB free", cure if free < LITTLE else "", serious=False)
    try:
        with _question(runs) as folder, _held(folder / "lock") as lacks:
            pass
    except UserError as error:
        yield Finding(f"{runs} cannot be used by you and its group", str(error))
    except OSError as error:
        yield Finding(f"{runs}: {error}", "each run must write there")
    else:
        locked = f", but not locked ({lacks})" if lacks else " and locked"
        yield Finding(f"{runs}: files can be written{locked}", LEASES if lacks else "", serious=False)


def of_controller(version: str, configuration: Mapping[str, str], accounting: bool) -> Iterator[Finding]:
    """Which Slurm it is, and its limits."""
    largest = configuration.get("MaxArraySize", "1001")
    limits = f"arrays of at most {largest} tasks, {configuration.get('MaxJobCount', '10000')} jobs in all"
    yield Finding(f"{version}: {limits}; larger submissions are cut")
    if not accounting:
        cure = "a job that ends without a word will be called interrupted; ask for slurmdbd where that matters"
        yield Finding("no sacct", cure, serious=False)
    if configuration.get("JobRequeue", "1") == "0":
        cure = "jobs ask for it themselves (--requeue); if the site refuses, `run` goes on after a limit"
        yield Finding("JobRequeue is 0", cure, serious=False)


def of_node(slurm: Slurm, runs: Path) -> Iterator[Finding]:
    """Ask a node, by a job with the suite's options, what it finds."""
    try:
        place = private_place(runs.absolute() / "code").parent
    except UserError as error:
        yield Finding("nodes cannot be given code", str(error))
        return
    with _question(runs) as folder, _held(folder / "lock"), _question(place) as code:
        with naming(folder):
            shutil.copyfile(PROBE, folder / PROBE.name)
            (folder / "job.sh").write_text(script(slurm, folder, code))
        began = time.time()
        job = commands.submit(folder / "job.sh")
        try:
            answered, began = _answered(job, folder, began)
            seen = time.time()
            if not (folder / "answer.json").exists():
                yield _no_answer(job, folder, answered)
                return
            answer = json.loads((folder / "answer.json").read_text(encoding="utf-8"))
            yield from of_answer(answer, began, seen, bool(slurm.of("train").gpus))
            yield from of_bundles(slurm.of("train"), answer)
            yield _requeued(job, folder, answer["node"])
        finally:
            if job in commands.queue():
                commands.cancel([job])


def script(slurm: Slurm, folder: Path, *others: Path) -> str:
    """A batch script with the options of the suite's training jobs, as far as they choose the node.

    `others`: folders that the node should see too.
    """
    from submitit.slurm.slurm import _as_sbatch_flag

    from benchmark.jobs.executors.slurm import DEAF

    own = slurm.of("train")
    if own.runs_per_job > 1:
        own = own.as_one_process(bool(own.exclusive))
    given = {name: value for name in OPTIONS if (value := getattr(own, name)) is not None}
    given |= {"ntasks": 1, "time": 5, "job-name": "doctor", "output": folder / "log", "open-mode": "append"}
    given |= {"requeue": True, **own.additional_parameters}
    flags = [_as_sbatch_flag(name, value) for name, value in given.items() if value is not False]
    python = f"{DEAF} {own.python}" if own.python else shlex.quote(sys.executable)
    srun = "srun ${SLURM_CPUS_PER_TASK:+--cpus-per-task=$SLURM_CPUS_PER_TASK}"
    command = f"{srun} {python} {shlex.join(map(str, (folder / PROBE.name, folder, *others)))}"
    return "\n".join(["#!/bin/bash", *flags, "set -e", *own.setup, command, ""])


def of_answer(answer: Mapping[str, Any], began: float, seen: float, gpus: bool) -> Iterator[Finding]:
    """What a node has said. `began` and `seen` are this machine's times before its job started and after that."""
    node = answer["node"]
    yield Finding(f"{node}: sees the folder; {answer['temporary'] / 1e9:.1f} GB of its own free")
    for place in answer["unseen"]:
        why = "jobs find their code there, as others can write in the folder of the runs"
        cure = f"{why}: give a HOME that nodes see, or a --runs where you alone can write"
        yield Finding(f"{node}: does not see {Path(place).parent}", cure)
    if answer["locks"] is True:
        yield Finding(f"{node}: locks hold between machines")
    else:
        why = "a lock held here was given to it too" if answer["locks"] is False else f"no flock ({answer['locks']})"
        yield Finding(f"{node}: {why}", LEASES, serious=False)
    if "error" in answer:
        yield Finding(f"{node}: torch cannot be imported ({answer['error']})", "see slurm.setup and slurm.python")
    elif gpus and answer["device"] == "cpu":
        yield Finding(
            f"{node}: torch {answer['torch']} finds no GPU", "look at the driver, and at torch's build for it"
        )
    else:
        yield Finding(f"{node}: torch {answer['torch']}, {answer['devices'] or 'no'} accelerators")
    off = max(began - answer["time"], answer["time"] - seen, 0.0)
    cure = "let both follow one time server: times of jobs and records are compared" if off > SKEW else ""
    yield Finding(f"{node}: its clock is {f'{off:.0f} s off' if off > SKEW else 'right'}", cure)


def of_bundles(slurm: Slurm, answer: Mapping[str, Any]) -> Iterator[Finding]:
    """Whether the runs that go side by side in a job have the cores for it."""
    if slurm.runs_per_job > 1:
        count, cores = slurm.processes, answer["cores"]
        said = f"{answer['node']}: {cores} cores for {count} runs at a time"
        cure = "they would take turns: set slurm.cpus_per_task, or fewer slurm.ntasks_per_node"
        yield Finding(said, cure if cores < count else "", serious=False)


def _answered(job: str, folder: Path, began: float) -> tuple[bool, float]:
    """Wait until a job has answered or ended; whether it has, and this machine's time when it last was known to wait.

    `began`: when it was submitted. One that has queued itself again waits for another reason than before.
    """
    waited = began

    def ready() -> bool:
        nonlocal waited
        now = time.time()
        if (folder / "answer.json").exists():
            return True
        queued = commands.queue().get(job)
        if queued and queued.waits and queued.reason != AGAIN:
            waited = now
        return queued is None

    return _wait(ready), waited


def _requeued(job: str, folder: Path, node: str) -> Finding:
    """Whether the job lived through the signal to save, and queued itself again: it is ended, or it would run twice."""
    refusal = folder / "refusal.txt"
    _wait(lambda: commands.restarts(job) > 0 or refusal.exists() or job not in commands.queue(), 90.0)
    if commands.restarts(job) > 0:
        return Finding(f"{node}: jobs can queue themselves again")
    why = refusal.read_text(encoding="utf-8") if refusal.exists() else "no answer"
    if os.strerror(errno.ENOTCONN) in why or not (refusal.exists() or job in commands.queue()):
        return Finding(
            f"{node}: a job ends by the signal that asks it to save",
            "in a container its image may be mounted by a process that dies of it (apptainer without setuid, by FUSE): "
            "name an unpacked image in slurm.python (`apptainer build --sandbox FOLDER IMAGE`)",
        )
    return Finding(
        f"{node}: a job cannot queue itself again ({why})",
        "after a time limit call `run` again, or give slurm.time enough; scontrol must be there on the nodes",
    )


def _no_answer(job: str, folder: Path, ended: bool) -> Finding:
    log = folder / "log"
    said = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1:] if log.exists() else []
    if ended:
        silent = "it said nothing" if log.exists() else "no log: do nodes see this folder?"
        why = f"it said {said[0]!r}" if said else silent
        return Finding(f"job {job} ended without an answer", f"{why}; see slurm.setup and slurm.python")
    waits = commands.queue().get(job)
    state = f" ({waits.reason or waits.state})" if waits else ""
    return Finding(
        f"job {job} did not start within {PATIENCE / 60:.0f} minutes{state}",
        "call this again when the cluster is less full, or look at slurm.partition and slurm.constraint",
        serious=False,
    )


def _wait(ready: Callable[[], bool], seconds: float = PATIENCE) -> bool:
    """Look until it is so, and return True, or False after so many seconds."""
    end = time.monotonic() + seconds
    while not ready():
        if time.monotonic() > end:
            return False
        time.sleep(PAUSE)
    return True


@contextmanager
def _held(path: Path) -> Iterator[str]:
    """Hold a lock on a file; what is said is why there is none, where the file system has no locks."""
    with path.open("w") as file:
        lacks = ""
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            lacks = str(error)
        yield lacks


@contextmanager
def _question(place: Path) -> Iterator[Path]:
    """Make a folder in a place, by a path that nodes know; it is gone at the end of the block."""
    with for_the_user_alone():  # where code lies, see `private_place`
        place.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".doctor-", dir=place.resolve(), ignore_cleanup_errors=True) as folder:
        yield Path(folder)
