"""A disk that fails at one operation after the other, below what is really written. Needs a C compiler.

`python -m tests.support.faulty_disk FOLDER EVERY` runs each scenario once on a whole disk and counts what it does
there (creating, reserving, writing, syncing, renaming, removing, making folders); then once for each of these
operations, or for every EVERYth, and each kind of fault. It prints a line of JSON a scenario: how many faults there
were, and what went wrong:

- an error that does not name a file of the scenario's folder;
- work that does not come to an end;
- a reader that sees neither what was there nor what was to come, or meets an exception;
- the same work done again on a whole disk that does not come to the same.

`faulty_disk.c` must be loaded before the C library: `failures` starts such a process.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
KINDS = ("full", "read-only", "error", "torn", "short")  # as in faulty_disk.c
DONE, FAILED = 0, 7  # exit statuses of the process that works on the faulty disk
HANGS = -99  # where it has not ended
PATIENCE = 120.0  # seconds that it has


@dataclass(frozen=True)
class Scenario:
    """Work on a disk: `prepare` and `act` write below a folder, `read` says what is there, as JSON.

    `allowed` says of what is read after a fault whether it may be: it is given that, what was there before, and what
    comes after.
    """

    name: str
    prepare: Callable[[Path], None]
    act: Callable[[Path], None]
    read: Callable[[Path], Any]
    allowed: Callable[[Any, Any, Any], bool] = lambda seen, before, after: seen in (before, after)


def compiler() -> str | None:
    return shutil.which("cc") or shutil.which("gcc")


def failures(folder: Path, every: int = 1) -> Iterator[dict[str, Any]]:
    """What went wrong in each scenario, in a process of its own: see this file's first lines."""
    library = folder / "faulty_disk.so"
    source = Path(__file__).with_suffix(".c")
    command = [str(compiler()), "-O1", "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"]
    subprocess.run(command, check=True)
    place = folder / "disk"
    place.mkdir()
    command = [sys.executable, "-m", "tests.support.faulty_disk", str(place), str(every)]
    environment = {**os.environ, "LD_PRELOAD": str(library), "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        for line in process.stdout:
            yield json.loads(line)
    assert process.returncode == 0


class FaultyDisk:
    """The disk of this process, once `faulty_disk.c` is loaded."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL(None)
        self._library.fault_arm.argtypes = [ctypes.c_char_p, ctypes.c_long, ctypes.c_int, ctypes.c_char_p]
        self._library.fault_disarm.restype = ctypes.c_long

    def operations(self, folder: Path, act: Callable[[Path], None]) -> list[str]:
        """The names of what `act` does below a folder, in order."""
        with tempfile.NamedTemporaryFile() as names:
            self._library.fault_arm(str(folder).encode(), -1, 0, names.name.encode())
            act(folder)
            self._library.fault_disarm()
            return Path(names.name).read_text().splitlines()

    @contextmanager
    def failing(self, folder: Path, at: int, kind: str) -> Iterator[None]:
        """Operation number `at` below a folder goes wrong."""
        self._library.fault_arm(str(folder).encode(), at, KINDS.index(kind), b"")
        try:
            yield
        finally:
            self._library.fault_disarm()


def in_a_child(act: Callable[[], None], patience: float = PATIENCE) -> tuple[int, str]:
    """The exit status of a copy of this process that does something, and its error; a negative number is a signal.

    One that has neither ended nor raised an error after so many seconds is killed.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        status = DONE
        try:
            act()
        except BaseException as error:
            os.write(writing, f"{type(error).__name__}: {error}".encode()[:4000])
            status = FAILED
        finally:
            os._exit(status)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        ended = bool(select.select([pipe], [], [], patience)[0])
        if not ended:
            os.kill(child, signal.SIGKILL)
        text = pipe.read().decode()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return (status if ended else HANGS), text


def run(scenario: Scenario, disk: FaultyDisk, place: Path, every: int) -> dict[str, Any]:
    """Every fault of a scenario, or every `every`-th."""
    fresh = place / scenario.name
    fresh.mkdir()
    scenario.prepare(fresh)
    before = scenario.read(fresh)
    names = disk.operations(fresh, scenario.act)
    after = scenario.read(fresh)
    shutil.rmtree(fresh)
    wrong, faults = [], 0
    for number, kind in [(number, kind) for kind in KINDS for number in range(len(names))][::every]:
        faults += 1
        fresh.mkdir()
        scenario.prepare(fresh)
        problem = one_fault(scenario, disk, fresh, (number, kind), before, after)
        if problem:
            wrong.append(f"{kind} at {number} ({names[number]}): {problem}")
        shutil.rmtree(fresh)
    return {"scenario": scenario.name, "operations": len(names), "faults": faults, "wrong": wrong}


def one_fault(
    scenario: Scenario, disk: FaultyDisk, folder: Path, fault: tuple[int, str], before: Any, after: Any
) -> str:
    """What is wrong after a fault, or nothing."""

    def act() -> None:
        try:
            with disk.failing(folder, *fault):
                scenario.act(folder)
        except OSError as error:
            if error.filename is None:  # which no command tells in a line
                raise AssertionError(f"an OSError of no file, errno {error.errno}") from error
            raise
        except Exception as error:
            if not isinstance(error, ValueError):  # UserError among them; any other is told with a traceback
                raise AssertionError(f"told with a traceback: {type(error).__name__}") from error
            raise

    status, error = in_a_child(act)
    if status == HANGS:
        return "it hangs"
    if status == FAILED and str(folder) not in error:
        return f"no file is named: {error}"
    if status not in (DONE, FAILED) and fault[1] != "torn":
        return f"the process ended with {status}"
    try:
        seen = scenario.read(folder)
        if not scenario.allowed(seen, before, after) or (status == DONE and seen != after):
            return f"a reader sees {seen!r} after {error or 'nothing was said'}"
        scenario.act(folder)
        if (again := scenario.read(folder)) != after:
            return f"done again it is {again!r}"
    except Exception as raised:
        return f"{type(raised).__name__}: {raised}, after {error or 'nothing was said'}"
    return ""


def main() -> None:
    from tests.support import disk_scenarios

    place, every = Path(sys.argv[1]), int(sys.argv[2])
    disk = FaultyDisk()
    for scenario in disk_scenarios.scenarios():
        print(json.dumps(run(scenario, disk, place, every)), flush=True)


if __name__ == "__main__":
    main()
