"""Leases: one owner at a time, also across machines. A dead owner loses its lease.

A process acts as another machine if its kernel has another name.
"""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmark import locks
from benchmark.locks import BEAT, EXPIRES, Lease, LeaseLost

COUNTS = """
import sys, time
from pathlib import Path
from benchmark import locks

locks.identify_kernel, locks.PAUSES = lambda: sys.argv[1], (0.001, 0.01)
path = Path(sys.argv[2])
for _ in range(int(sys.argv[3])):
    with locks.Lease(path.with_suffix(".lock")):
        before = int(path.read_text())
        time.sleep(0.001)
        path.write_text(str(before + 1))
"""

ME = f"process {os.getpid()} on "


def elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this process seem to be on another machine from now on."""
    monkeypatch.setattr(locks, "identify_kernel", lambda: "another")


def test_one_at_a_time(tmp_path: Path) -> None:
    """Oracle: by hand: four processes, each on its own machine, add 1 to a file 25 times. If two of
    them added at the same time, the sum would be below 100.
    """
    path = tmp_path / "count"
    path.write_text("0")
    command = [sys.executable, "-c", COUNTS]
    working = [subprocess.Popen([*command, str(host), str(path), "25"]) for host in range(4)]
    assert [process.wait() for process in working] == [0] * 4
    assert path.read_text() == "100"


def test_a_killed_process_has_nothing_on_its_machine(tmp_path: Path) -> None:
    """Oracle: the rule: a killed process no longer has its lock. Until then the lock is taken, and
    `name_owner` gives the process's number.
    """
    code = "import sys, time; from pathlib import Path; from benchmark.locks import Lease\n"
    code += "Lease(Path(sys.argv[1])).acquire(); print(flush=True); time.sleep(600)"
    command = [sys.executable, "-c", code, str(tmp_path / "lock")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL) as other:
        assert other.stdout and other.stdout.readline()
        mine = Lease(tmp_path / "lock")
        assert (
            not mine.try_acquire()
            and mine.is_taken()
            and mine.name_owner().startswith(f"process {other.pid} on ")
        )
        other.kill()
    assert not mine.is_taken() and mine.try_acquire() and mine.name_owner().startswith(ME)
    mine.release()
    assert not mine.is_taken()


def test_who_only_asks_creates_nothing(tmp_path: Path) -> None:
    """Oracle: the folder stays empty. `status` also asks about stages that have no folder yet."""
    lease = Lease(tmp_path / "stages" / "key" / "lock")
    assert not lease.is_taken()
    assert not list(tmp_path.iterdir())


def test_the_silent_lose_what_they_have_to_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Oracle: the rule: a lock is lost after 100 s of watching without a sign of life, and one sign
    is enough to keep it.

    Each look may be by another `Lease`. Time in which the watcher stood still does not count.
    """
    first = Lease(tmp_path / "lock")
    first.acquire()
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    with monkeypatch.context() as there:
        elsewhere(there)

        def look(times: int, pause: float = 1.0) -> bool:
            for _ in range(times):
                now[0] += pause
                if Lease(tmp_path / "lock").try_acquire():
                    return True
            return False

        assert not look(90) and Lease(tmp_path / "lock").is_taken()
        os.utime(tmp_path / "lock.1", (1, 1))
        assert not look(90), "it gave a sign of life"
        assert not look(1, 1000.0), "the watcher stood still"
        first.check()
        assert look(2)
    with pytest.raises(LeaseLost, match=rf"process {os.getpid()} "):
        first.check()
    first.release()


@pytest.mark.parametrize("content", [b"", b"[" * 100_000, b'{"pid": "x"}'])
def test_who_died_before_it_said_who_it_is_does_not_keep_it(
    content: bytes, tmp_path: Path, monkeypatch
) -> None:
    """Oracle: the rule: a file that names no owner, as a kill between two system calls leaves it,
    expires too.
    """
    (tmp_path / "lock.1").write_bytes(content)
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    lease = Lease(tmp_path / "lock")
    for _ in range(int(EXPIRES) + 1):
        assert not lease.try_acquire() and lease.name_owner() == "another process"
        now[0] += 1.0
    assert lease.try_acquire() and lease.name_owner().startswith(ME)
    lease.release()


def test_a_lock_that_is_removed_meanwhile_is_somebody_elses(tmp_path: Path, monkeypatch) -> None:
    """Oracle: NFS: reading a file that another machine removed meanwhile gives error ESTALE."""

    def fail(*_: object) -> None:
        raise OSError(errno.ESTALE, "Stale file handle")

    (tmp_path / "lock.1").write_bytes(locks.NOBODY.encode())
    mine = Lease(tmp_path / "lock")
    with monkeypatch.context() as there:
        there.setattr(os, "fstat", fail)
        assert not mine.try_acquire() and not mine.is_taken()
    assert mine.try_acquire() and mine.name_owner().startswith(ME)
    mine.release()


@pytest.mark.parametrize(
    ("silent", "taken"), [(0, True), (EXPIRES - BEAT, True), (EXPIRES + BEAT, False)]
)
def test_a_dead_machines_lock_is_not_told_of_for_ever(
    silent: float, taken: bool, tmp_path: Path, monkeypatch
) -> None:
    """Oracle: the rule: another machine's lock is reported for 100 s after its last sign of life, a
    lock of this machine as long as its process lives.
    """
    first = Lease(tmp_path / "lock")
    first.acquire()
    then = time.time() - silent
    os.utime(tmp_path / "lock.1", (then, then))
    assert Lease(tmp_path / "lock").is_taken()
    with monkeypatch.context() as there:
        elsewhere(there)
        assert Lease(tmp_path / "lock").is_taken() == taken
    first.release()
