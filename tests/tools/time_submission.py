"""How long `run` takes to submit 10,000 runs, or so many, to a made-up Slurm of 5 ms a call, and `status` to ask it.

python -m tests.tools.time_submission [RUNS]

Ten rows, of which each seed shares the first stage. Each command is a process of its own.
"""

from __future__ import annotations

import os
import pickle
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

import run_all
from benchmark.jobs.slurm import commands
from tests.support.fake_slurm import FakeSlurm

ROWS = 10
CALL = 0.005  # seconds


def main(runs: int) -> None:
    from tests.support.slurm_lab import Lab, write_texts  # torch, for which the commands below need not wait

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_texts(folder)
        row = '{{ name = "r{0}", method = "naive", set = {{ "training.learning_rate" = [1e-3, {0}e-4] }} }}'
        lab = Lab(folder / "lab", folder).write(*(row.format(number) for number in range(1, ROWS + 1)))
        seeds = f"seeds = {[*range(runs // ROWS)]}\nmethods ="
        lab.file.write_text(lab.file.read_text().replace("methods =", seeds))
        lab.call("prepare")
        for words in ("run --dry-run", "run", "status", "run --dry-run"):
            command, *more = words.split()
            arguments = lab.arguments(command, *more, *(["--executor", "slurm"] if command == "run" else []))
            print(f"{words:<15}", measured(folder, arguments), flush=True)


def measured(folder: Path, arguments: list[str]) -> str:
    """Call a command in a process of its own, and describe what that took."""
    began = time.perf_counter()
    this = [sys.executable, "-m", "tests.tools.time_submission", str(folder), *arguments]
    with subprocess.Popen(this, stdout=subprocess.DEVNULL) as call:
        _, status, used = os.wait4(call.pid, 0)
        call.returncode = os.waitstatus_to_exitcode(status)
    assert call.returncode == 0
    wall, core = time.perf_counter() - began, used.ru_utime + used.ru_stime
    slurm, kibibytes = pickle.loads((folder / "slurm").read_bytes())
    calls = ", ".join(f"{count} {name}" for name, count in slurm["calls"].items())
    memory = f"{kibibytes * 1024 / 1e6:.0f} MB"
    return f"{wall:6.1f} s ({core:.1f} s of one core), {memory}; {len(slurm['released']):,} jobs; {calls or 'no calls'}"


def call(folder: Path, arguments: list[str]) -> int:
    """What the process does: the command, with the Slurm that the one before has left."""
    with pytest.MonkeyPatch.context() as patch:
        slurm, left = FakeSlurm(folder / f"bin-{os.getpid()}", patch), folder / "slurm"
        if left.exists():
            vars(slurm).update(pickle.loads(left.read_bytes())[0])
        slurm.calls.clear()

        def ask(command: list[str]) -> str:
            time.sleep(CALL)
            return slurm.answer(command)

        patch.setattr(commands, "_ask", ask)
        status = run_all.main(arguments)
        # not as wait4 says it, which begins with what the parent has
        most = re.search(r"^VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
        assert most
        left.write_bytes(pickle.dumps((vars(slurm), int(most[1]))))
    return status


if __name__ == "__main__":
    if sys.argv[2:]:
        sys.exit(call(Path(sys.argv[1]), sys.argv[2:]))
    main(int(sys.argv[1]) if sys.argv[1:] else 10_000)
