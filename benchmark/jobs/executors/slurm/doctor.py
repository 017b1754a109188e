"""What `run_all.py doctor` asks of Slurm: would it take the suite's jobs, and what does one of its nodes find?"""

from __future__ import annotations

import json
import shlex
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmark.jobs.executors import Finding
from benchmark.jobs.executors.slurm import commands
from benchmark.jobs.executors.slurm.commands import SlurmError
from benchmark.settings.slurm import Slurm, asks_for_gpus

KINDS = ("prepare", "train", "score", "report")
PATIENCE = 300.0  # seconds for a job to start and to answer
PAUSE = 1.0  # seconds between two looks
PROBE = """\
import json, os, pathlib, socket, sys
answer = {"node": socket.gethostname()}
try:
    import torch
    answer |= {"torch": torch.__version__, "devices": torch.accelerator.device_count()}
except Exception as error:
    answer["error"] = f"{type(error).__name__}: {error}"
unfinished = pathlib.Path(sys.argv[1], "unfinished")
unfinished.write_text(json.dumps(answer))
unfinished.rename(unfinished.with_name("answer.json"))
"""  # imports nothing of the project, which the node may not see


def examine(requests: Sequence[Slurm], units: set[str], runs: Path) -> Iterator[Finding]:
    """Ask `sbatch --test-only` of each kind of job, by each of the requests, then one node by a job.

    `units` are those of the budgets. The last request is the suite's own.
    """
    if not shutil.which("sbatch"):
        yield Finding("no sbatch here: runs train on this machine; for a cluster call this where jobs are submitted")
        return
    try:
        yield Finding(commands.ask("sbatch", "--version").strip())
        with tempfile.TemporaryDirectory(prefix=".doctor-", dir=runs.resolve(), ignore_cleanup_errors=True) as folder:
            for asked in requests:
                for kind in KINDS:
                    yield _of_request(kind, asked.parameters(kind, units), Path(folder))
            yield from _of_node(requests[-1], units, Path(folder))
    except SlurmError as error:
        yield Finding(str(error), "no job can be submitted before this is right")


def _of_request(kind: str, parameters: dict[str, Any], folder: Path) -> Finding:
    script = _script(folder, parameters, "true")
    try:
        commands.ask("sbatch", "--test-only", str(script))
    except SlurmError as error:
        return Finding(f"a job to {kind} is refused ({error})", "change what [slurm] asks for")
    return Finding(f"a job to {kind} would be taken")


def _of_node(asked: Slurm, units: set[str], folder: Path) -> Iterator[Finding]:
    """Ask a node, by a job of one process, what it finds."""
    parameters = {**asked.parameters("score", units), "time": 5}
    (folder / "probe.py").write_text(PROBE)
    python = asked.python or shlex.quote(sys.executable)
    script = _script(folder, parameters, f"{python} {shlex.join([str(folder / 'probe.py'), str(folder)])}")
    job = commands.ask("sbatch", "--parsable", str(script)).strip().partition(";")[0]
    answer, log = folder / "answer.json", folder / f"{job}_0_log.err"
    try:
        end, queued = time.monotonic() + PATIENCE, True
        while not answer.exists() and queued and time.monotonic() < end:
            time.sleep(PAUSE)
            queued = commands.ask("squeue", "--noheader", "--me", f"--jobs={job}", "--format=%T").strip() != ""
        time.sleep(PAUSE * (not queued))  # a network file system shows the answer late
        if not answer.exists():
            said = log.read_text(errors="replace").strip().splitlines()[-1:] if log.exists() else ["no log"]
            state = f"did not start within {PATIENCE / 60:.0f} minutes" if queued else f"ended without an answer {said}"
            yield Finding(
                f"job {job} {state}", "do nodes see this folder? see slurm.setup, slurm.python, slurm.partition"
            )
            return
        yield from of_answer(json.loads(answer.read_text()), asks_for_gpus(parameters))
    finally:
        commands.cancel([job])


def of_answer(answer: dict[str, Any], gpus: bool) -> Iterator[Finding]:
    """What a node has said; `gpus`: whether the job asked for some."""
    node = answer["node"]
    yield Finding(f"{node}: sees the folder of the runs")
    if "error" in answer:
        yield Finding(f"{node}: torch cannot be imported ({answer['error']})", "see slurm.setup and slurm.python")
        return
    missing = "look at its driver, and at torch's build for it" if gpus and not answer["devices"] else ""
    yield Finding(f"{node}: torch {answer['torch']}, {answer['devices'] or 'no'} accelerators", missing)


def _script(folder: Path, parameters: dict[str, Any], command: str) -> Path:
    """A batch script as submitit writes those of jobs."""
    from submitit.slurm.slurm import _make_sbatch_string

    path = folder / "job.sh"
    path.write_text(_make_sbatch_string(command, folder, **parameters))
    return path
