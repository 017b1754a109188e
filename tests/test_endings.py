"""Which processes are left when a command is ended."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

import pytest

from tests.support import processes
from tests.support.programs import start_in
from tests.support.suite_folder import SuiteFolder, copy_code, wait_until, write_suite_of_two
from tests.support.thorough import only_thorough

PATIENCE = 250.0  # seconds


@pytest.fixture
def tiny(tmp_path) -> SuiteFolder:
    return write_suite_of_two(tmp_path)


PAIR = """
import os, signal, sys, time
from pathlib import Path
from benchmark.errors import run_command
from benchmark.instruments.conformance import call_in_two_processes

def sleep(folder):
    Path(folder, str(os.getpid())).touch()
    time.sleep(600)

if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(run_command(lambda: call_in_two_processes(sleep, sys.argv[1])))
"""


def expect_end(process: subprocess.Popen[str], work_is_under_way: Callable[[], bool]) -> str:
    """Send SIGTERM once work is under way, and assert that no process is left. Returns stderr."""
    below: set[int] = set()
    try:
        wait_until(work_is_under_way, PATIENCE)
        below = processes.descendants(process.pid)
        process.terminate()
        said = process.communicate(timeout=PATIENCE)
        assert process.returncode == 130, said
        wait_until(lambda: not below & set(processes.everyone()), PATIENCE)
    finally:
        processes.kill({process.pid, *below, *processes.descendants(process.pid)})
    return said[1]


@only_thorough
def test_a_pair_of_processes_ends_with_its_parent(tmp_path) -> None:
    """Two processes work, as in `check`, and SIGTERM comes. Oracle: the system's processes."""
    program = tmp_path / "pair.py"
    program.write_text(PAIR)
    (tmp_path / "pair").mkdir()
    process = start_in(tmp_path, program, tmp_path / "pair")
    expect_end(process, lambda: len(list((tmp_path / "pair").iterdir())) == 2)


def test_a_run_that_sigterm_ends_leaves_no_process(tiny: SuiteFolder, tmp_path) -> None:
    """Two runs train side by side, and SIGTERM comes. Oracle: the system's processes."""
    code = copy_code(tmp_path / "code")
    tiny.write("x", "y")
    for row in ("x", "y"):
        tiny.tell(row, "slow")
    command = ("run_all.py", *tiny.arguments("run", "--parallel", "2"))
    process = start_in(code, *command, path=code)
    # a resource tracker, a fork server and two workers
    said = expect_end(process, lambda: len(processes.descendants(process.pid)) >= 4)
    assert "the next `run` continues" in said
