"""Leases: one owner at a time, on file systems without locks and seen from other machines too; the dead lose theirs.

Another machine is a process whose kernel has another name, a file system without locks one whose `flock` fails as it
does there.
"""

from __future__ import annotations

import dataclasses
import errno
import fcntl
import itertools
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from benchmark import locks
from benchmark.errors import UserError
from benchmark.files import regular
from benchmark.locks import Lease, LeaseLost, Lock, Owner, me

COUNTS = """
import errno, fcntl, sys, time
from pathlib import Path
from benchmark import locks

def none(file, how):
    raise OSError(errno.ENOLCK, "No locks available")

fcntl.flock, locks.kernel, locks.PAUSES = none, lambda: sys.argv[1], (0.001, 0.01)
path = Path(sys.argv[2])
for _ in range(int(sys.argv[3])):
    with locks.Lease(path.with_suffix(".lock")):
        before = int(path.read_text())
        time.sleep(0.001)
        path.write_text(str(before + 1))
"""


def elsewhere(monkeypatch: pytest.MonkeyPatch, name: str = "another") -> None:
    """From now on this process is on another machine."""
    monkeypatch.setattr(locks, "kernel", lambda: name)


def test_one_at_a_time_without_locks_of_files(tmp_path: Path) -> None:
    """Oracle: arithmetic. Each process, on a machine of its own, adds one to a file so many times; what two added at
    the same time would count once."""
    path = tmp_path / "count"
    path.write_text("0")
    command = [sys.executable, "-c", COUNTS]
    working = [subprocess.Popen([*command, str(host), str(path), "25"]) for host in range(4)]
    assert [process.wait() for process in working] == [0] * 4
    assert path.read_text() == "100"


def test_a_file_that_goes_while_it_is_looked_at_is_no_pipe(tmp_path: Path, monkeypatch) -> None:
    """Oracle: the answer of the one moment in which it is there: it was a file."""
    lock, stat = tmp_path / "lock", Path.stat
    lock.touch()

    def goes(self: Path, **how: bool) -> os.stat_result:
        found = stat(self, **how)
        if self == lock:  # no other: whatever tells of a failure looks at files, too
            self.unlink()
        return found

    monkeypatch.setattr(Path, "stat", goes)
    assert regular(lock) == lock


def test_a_lock_that_is_a_link_to_nothing_is_said(tmp_path: Path, monkeypatch) -> None:
    """Oracle: the disk: it can neither be opened nor made, and was tried for ever (as Emacs leaves `.#a.toml`)."""
    lock, tries, opened = tmp_path / "lock", itertools.count(), os.open
    lock.symlink_to(tmp_path / "none")

    def few(*how: Any) -> int:
        assert next(tries) < 9, "tried for ever"
        return opened(*how)

    monkeypatch.setattr(os, "open", few)
    with pytest.raises(OSError, match="a link to nothing") as told:
        Lock(lock).acquire()
    assert told.value.filename == str(lock)


def test_a_killed_process_has_nothing_on_its_machine(tmp_path: Path) -> None:
    """Oracle: the contract: none may wait for what nobody has. The owner lives until it is killed, by its number."""
    code = "import sys, time; from pathlib import Path; from benchmark.locks import Lease\n"
    code += "Lease(Path(sys.argv[1])).acquire(); print(flush=True); time.sleep(600)"
    command = [sys.executable, "-c", code, str(tmp_path / "lock")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL) as other:
        assert other.stdout and other.stdout.readline()
        mine = Lease(tmp_path / "lock")
        owner = mine.owner()
        assert not mine.try_acquire() and mine.is_taken() and owner and owner.pid == other.pid
        other.kill()
    assert not mine.is_taken() and mine.try_acquire() and mine.owner() == me()
    mine.release()
    assert not mine.is_taken() and mine.owner() is None


def test_who_only_asks_creates_nothing(tmp_path: Path) -> None:
    """Oracle: the disk. `status` asks of stages that were never begun, whose folders are not there."""
    lease = Lease(tmp_path / "stages" / "key" / "lock")
    assert not lease.is_taken() and lease.owner() is None
    assert not list(tmp_path.iterdir())


def test_the_silent_lose_what_they_have_to_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Oracle: the rule: after 90 s of watching without a sign of life, and one sign is enough to keep it.

    What passes while the watcher itself stands still is not watched.
    """
    first = Lease(tmp_path / "lock")
    first.acquire()
    os.close(first._file or 0)  # as on a file system that keeps locks to a machine
    number, now = first._number, [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    with monkeypatch.context() as there:
        elsewhere(there)
        second = Lease(tmp_path / "lock")

        def look(times: int, pause: float = 1.0) -> bool:
            for _ in range(times):
                now[0] += pause
                if second.try_acquire():
                    return True
            return False

        assert not look(80) and second.is_taken()
        os.utime(tmp_path / f"lock.{number}", (1, 1))
        assert not look(80), "it gave a sign of life"
        assert not look(3, 1000.0), "the watcher stood still"
        first.check()
        assert not look(90) and look(10)
    with pytest.raises(LeaseLost, match=rf"process {os.getpid()} of .* has it"):
        first.check()
    with pytest.raises(LeaseLost):
        first.refuse_if_lost()
    first._file = os.open(tmp_path / "lock", os.O_RDWR)
    first.release()
    assert second.owner() == dataclasses.replace(me(), kernel="another")
    second.check()
    second.release()


@pytest.mark.parametrize(
    "wrong",
    [
        *({"pid": pid} for pid in ("1", None, 1.5, True, 0, -1, 2**31, 10**30)),
        *({"host": 7}, {"kernel": []}, {"user": None}, {"started": "x"}, {"restarts": "x"}, {"job": 7}),
        *({"job": "c/1; rm x"}, {"job": "1"}, {"job": "c/"}),
    ],
)
def test_an_owner_that_cannot_be_is_none(wrong: dict[str, object], tmp_path: Path) -> None:
    """Oracle: the types of `Owner`, numbers of processes (PID_MAX_LIMIT, 2**22) and of Slurm's jobs, which messages
    paste into commands. What is damaged says nothing, and keeps nobody from the work."""
    asked = Lease(tmp_path / "lock")
    asked.path.touch()
    numbered, owner = tmp_path / "lock.1", dataclasses.asdict(me()) | {"job": "c/12_3"}
    numbered.write_text(json.dumps(owner))
    assert asked.owner() == Owner(**owner) and asked.is_taken()
    numbered.write_text(json.dumps(owner | wrong))
    assert asked.owner() is None and not asked.is_taken()
    numbered.write_text("[" * 100_000)
    assert asked.owner() is None and not asked.is_taken()


def test_who_died_before_it_said_who_it_is_keeps_nobody_waiting(tmp_path: Path, monkeypatch) -> None:
    """Oracle: the rule: a file without an owner, as a kill leaves it between two system calls, counts for ten seconds.
    One that was only slow gives way, or finds that it has lost."""
    (tmp_path / "lock.1").touch()
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    lease = Lease(tmp_path / "lock")
    for _ in range(11):
        assert not lease.try_acquire()
        now[0] += 1.0
    assert lease.try_acquire() and lease._number == 2
    lease.release()


@pytest.mark.parametrize(("said", "seconds"), [(None, 10), ({}, 10), ({"job": ""}, 90), ({"job": "c/7"}, 10)])
def test_a_lock_that_a_dead_machine_left_behind_keeps_nobody_out(
    said, seconds: int, tmp_path: Path, monkeypatch
) -> None:
    """Oracle: the rule: 90 s of watching without a sign of life, or 10 s where nobody has it, or where Slurm has queued
    the job again. A server of NFSv3 keeps the lock of a machine until that is back, which may be never."""
    kept, now = os.open(tmp_path / "lock", os.O_RDWR | os.O_CREAT), [100.0]
    fcntl.flock(kept, fcntl.LOCK_EX)
    if said is not None:
        text = json.dumps(said and dataclasses.asdict(me()) | {"kernel": "another", **said})
        (tmp_path / "lock.1").write_text(text)
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    for name, value in {"CLUSTER_NAME": "c", "JOB_ID": "7", "RESTART_COUNT": "1"}.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    mine = Lease(tmp_path / "lock")
    for _ in range(seconds + 1):
        assert not mine.try_acquire()
        now[0] += 1.0
    assert mine.try_acquire() and mine.owner() == me() and not Lease(tmp_path / "lock").try_acquire()
    mine.release()
    os.close(kept)
    assert Lease(tmp_path / "lock").try_acquire()


@pytest.mark.parametrize(("module", "name"), [(os, "fstat"), (json, "dump")])
def test_a_lease_that_is_removed_meanwhile_is_somebody_elses(module, name: str, tmp_path: Path, monkeypatch) -> None:
    """Oracle: NFS: what another machine removes while it is open here can neither be read nor written any more."""

    def fail(*_: object) -> None:
        raise OSError(errno.ESTALE, "Stale file handle")

    (tmp_path / "lock").touch()
    (tmp_path / "lock.1").write_text("{}")
    mine = Lease(tmp_path / "lock")
    with monkeypatch.context() as there:
        there.setattr(module, name, fail)
        assert not mine.try_acquire() and mine.owner() is None and not mine.is_taken()
    assert mine.try_acquire() and mine.owner() == me()
    mine.release()


@pytest.mark.parametrize(("silent", "taken"), [(0, True), (3500, True), (3700, False), (-3700, True)])
def test_a_lock_that_a_dead_machine_left_behind_is_not_told_of_for_ever(
    silent: int, taken: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Oracle: the rule: an hour without a sign of life by the clocks of two machines, which may be minutes apart. The
    lock of a process of this machine is told of as long as it lives."""
    first = Lease(tmp_path / "lock")
    first.acquire()
    then = time.time() - silent
    os.utime(tmp_path / f"lock.{first._number}", (then, then))
    assert Lease(tmp_path / "lock").is_taken()
    with monkeypatch.context() as there:
        elsewhere(there)
        assert Lease(tmp_path / "lock").is_taken() == taken
    first.release()


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS])
def test_who_may_only_read_goes_by_what_is_written(number: int, tmp_path: Path, monkeypatch) -> None:
    """Oracle: the owner, who lives, and has given it back; `status` works on what is mounted to be read. The first try
    on such a disk ended in "Read-only file system"."""
    opened = os.open

    def refuse(path: Path, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_RDWR:
            raise OSError(number, os.strerror(number), str(path))
        return opened(path, flags, mode)

    first = Lease(tmp_path / "lock")
    for taken, act in ((True, first.acquire), (False, first.release)):
        act()
        with monkeypatch.context() as there:
            there.setattr(os, "open", refuse)
            assert Lease(tmp_path / "lock").is_taken() == taken


def test_a_job_that_slurm_queued_again_takes_up_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Oracle: Slurm starts a job again only once it has ended; of other jobs, and of equal numbers on another cluster,
    nobody knows."""

    def can_begin(machine: str, cluster: str, job: str, restarts: int) -> bool:
        with monkeypatch.context() as there:
            elsewhere(there, machine)
            there.setenv("SLURM_CLUSTER_NAME", cluster)
            there.setenv("SLURM_JOB_ID", job)
            there.setenv("SLURM_RESTART_COUNT", str(restarts))
            mine = Lease(tmp_path / "lock")
            taken = mine.try_acquire()
            if taken:
                os.close(mine._file or 0)
            return taken

    tried = [("a", "7", 0), ("a", "8", 1), ("b", "7", 1), ("a", "7", 0), ("a", "7", 1)]
    assert [can_begin(f"n{number}", *one) for number, one in enumerate(tried)] == [True, False, False, False, True]


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOTSUP, errno.EIO])
def test_only_a_lack_of_locks_is_made_up_for(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Oracle: what the errors mean; one of the disk's is raised with the file's name."""

    def fail(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", fail)
    mine = Lease(tmp_path / "lock")
    if number == errno.EIO:
        with pytest.raises(OSError, match=str(tmp_path)):
            mine.try_acquire()
    else:
        assert mine.try_acquire() and not Lease(tmp_path / "lock").try_acquire()
        mine.release()


def test_what_another_user_does_not_share_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Oracle: the cure, in the message."""

    def refuse(*_: object) -> int:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Lease, "_opened", refuse)
    with pytest.raises(UserError, match=r"lock cannot be written by .*umask 002.*chmod -R g\+w"):
        Lease(tmp_path / "lock").try_acquire()
