"""Starting, looking at and ending processes on Linux, by /proc."""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import signal
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from multiprocessing import forkserver
from pathlib import Path

from benchmark.training.processes import start_fork_server

PATIENCE = 60.0  # seconds for processes to die
SET_PARENT_DEATH_SIGNAL, SET_CHILD_SUBREAPER = 1, 36  # of prctl(2)


def prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0):
        raise OSError(ctypes.get_errno(), f"prctl({option})")


def forked(act: Callable[[], int], log: Path) -> int:
    """Fork this process, and return the copy's pid. The copy calls `act`, prints into `log`, and
    exits with what `act` returns.
    """
    child = os.fork()
    if child:
        return child
    status = 99
    try:
        prctl(SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
        forkserver._forkserver.__init__()  # type: ignore[misc]  # the server belongs to the parent
        out = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.dup2(out, 1)
        os.dup2(out, 2)
        status = act()
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def call_apart(act: Callable[..., object], *arguments: object) -> int | None:
    """Call `act` in a new process, and return its exit status: -N if signal N ended it."""
    start_fork_server()
    process = multiprocessing.get_context("forkserver").Process(target=act, args=arguments)
    process.start()
    process.join()
    return process.exitcode


def descendants(ancestor: int) -> set[int]:
    """Pids of all processes below one."""
    children: dict[int, list[int]] = {}
    for pid in everyone():
        with contextlib.suppress(OSError):
            parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(pid)
    everyone_below: set[int] = set()
    left = [ancestor]
    while left:
        below = children.get(left.pop(), [])
        everyone_below.update(below)
        left += below
    return everyone_below


def has_open(pid: int, path: str) -> bool:
    """Whether a process has this file open."""
    with contextlib.suppress(OSError):
        return any(os.readlink(entry.path) == path for entry in os.scandir(f"/proc/{pid}/fd"))
    return False


def has_variable(pid: int, setting: str) -> bool:
    """Whether a process was started with `NAME=value` in its environment."""
    with contextlib.suppress(OSError):
        return setting.encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return False


def everyone() -> Iterator[int]:
    """Pids of all processes that there are."""
    return map(int, filter(str.isdigit, os.listdir("/proc")))


def kill(pids: Iterable[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def kill_until_none(find: Callable[[], Iterable[int]]) -> None:
    """SIGKILL the processes that `find` returns until it returns none, because a process may fork
    while others are killed.
    """
    deadline = time.monotonic() + PATIENCE
    while pids := list(find()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"processes survive SIGKILL: {sorted(pids)}")
        kill(pids)
        time.sleep(0.02)
