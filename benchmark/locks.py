"""Leases: locks with a lifetime, for places below `--runs`.

All that they ask of a file system is to create a file once.

A process that takes `NAME` creates `NAME.1`, which only one process can, and touches it every ten
seconds (Gray and Cheriton 1989, Leases). The next owner creates `NAME.2`, and so on. The highest
number counts. On its own machine, an owner is dead if its process is. For other machines, it is
dead after they have watched for 100 s without a sign of life. An owner that was only silent finds a
higher number than its own before it writes anything more.

flufl.lock is not used. It compares an owner's clock with the clock of the process that waits.
After the death of an owner, even a process on the same machine waits for the rest of the lifetime.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

from benchmark.errors import UserError
from benchmark.files import name_in_errors

BEAT = 10.0  # seconds between two signs of life
# seconds of watching without a sign of life. A network file system may show old times for 60 s
EXPIRES = 100.0
PAUSES = (0.02, 1.0)  # seconds between two looks, at first and at most
JOB = "BENCHMARK_JOB"  # the variable in which an executor names the job of a process
# how a lock's file begins once it is given back. Without the file, its number could be reused
NOBODY = "-"

# for each lock of another owner: its number and last sign of life, when this process looked at
# them, and how many seconds they have not changed
_watched: dict[Path, tuple[tuple[int, float], float, float]] = {}


class LeaseLost(UserError):
    """Another process took the lock, because this one gave no sign of life for too long."""


@functools.cache
def identify_kernel() -> str:
    """A name of this machine, or of this container if it has its own process ids."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    namespace = os.readlink("/proc/self/ns/pid")
    return f"{boot}-{namespace}"


def read_start_time(pid: int | str) -> str:
    """When a process started, in ticks since boot, "" if it is dead or a zombie."""
    try:
        content = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return ""
    fields = content.rpartition(") ")[2].split()
    if fields[0] in "ZX":
        return ""
    return fields[19]


class Lease:
    """A lock whose owner gives signs of life."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()  # the process may change its current folder
        self.number = 0  # of this process's file, 0 while it does not have the lock
        self._ends = threading.Event()

    def try_acquire(self) -> bool:
        """Take the lock unless a live process has it, and return whether it was taken."""
        old_numbers = self._list_numbers()
        number = max(old_numbers) + 1
        if not self._is_free(number - 1):
            return False
        pid = os.getpid()
        host = socket.gethostname()
        job = os.environ.get(JOB, "")
        path = self._name_file(number)
        try:
            with name_in_errors(path), path.open("x") as file:
                owner = f"{identify_kernel()} {pid} {read_start_time(pid)} {host} {job}"
                file.write(owner)
        except FileExistsError:
            return False
        except OSError:
            path.unlink(missing_ok=True)  # nobody could tell its owner
            raise
        if max(self._list_numbers()) != number:
            # this process was slow: it has created a number again that a later owner had removed
            path.unlink(missing_ok=True)
            return False
        for old in old_numbers:
            with contextlib.suppress(OSError):  # in /tmp another user's file cannot be removed
                self._name_file(old).unlink()
        self.number = number
        self._ends = threading.Event()
        threading.Thread(
            target=self._give_signs, args=(number, self._ends), name="lease", daemon=True
        ).start()
        return True

    def acquire(
        self, wait: Callable[[], None] = lambda: None, check: Callable[[], None] = lambda: None
    ) -> None:
        """Take the lock, and wait if another process has it.

        `wait` is called once if there is a wait. `check` is called before each further try, and may
        raise.
        """
        pause, longest = PAUSES
        while not self.try_acquire():
            check()
            if pause == PAUSES[0]:
                wait()
            time.sleep(pause)
            pause = min(longest, 1.5 * pause)

    def release(self) -> None:
        """Give the lock back, unless another process has taken it by now."""
        self._ends.set()
        if self.number:
            path = self._name_file(self.number)
            with (
                contextlib.suppress(FileNotFoundError),
                name_in_errors(path),
                path.open("r+") as file,
            ):
                file.write(NOBODY)
                file.truncate()
        self.number = 0

    def __enter__(self) -> Lease:
        self.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def check(self) -> None:
        """Raise LeaseLost if another process has the lock by now: call this before each write."""
        if max(self._list_numbers()) != self.number:
            raise LeaseLost(
                f"{self.path}: {self.name_owner()} took it from this process, which gave no sign "
                "of life"
            )

    def name_owner(self) -> str:
        """The process that has the lock, or had it last, in words."""
        fields = self._read(max(self._list_numbers()))[1].split()
        if len(fields) >= 4:
            return f"process {fields[1]} on {fields[3]}"
        return "another process"

    def read_job(self) -> str:
        """The job of the process that has the lock or had it last, "" if it had no job."""
        fields = self._read(max(self._list_numbers()))[1].split()
        return "".join(fields[4:])

    def is_taken(self) -> bool:
        """Whether some process seems to have the lock.

        This is only for messages, because it compares the clocks of machines.
        """
        sign, content = self._read(max(self._list_numbers()))
        is_dead = _is_dead(content)
        if is_dead is not None:
            return not is_dead
        names_owner = len(content.split()) >= 4  # else it ended before it wrote
        return names_owner and time.time() - sign < EXPIRES

    def _name_file(self, number: int) -> Path:
        return self.path.with_name(f"{self.path.name}.{number}")

    def _list_numbers(self) -> list[int]:
        """The numbers of the lock's files, and 0, which means no file."""
        suffixes = [
            path.suffix[1:] for path in self.path.parent.glob("*") if path.stem == self.path.name
        ]
        return [0, *(int(suffix) for suffix in suffixes if suffix.isdigit())]

    def _read(self, number: int) -> tuple[float, str]:
        """The time of an owner's last sign of life, and the text of its file.

        The text is empty if the file is gone, and NOBODY for number 0, which needs no file.
        """
        try:
            # opening the file makes a network file system fetch its times
            with self._name_file(number).open(errors="replace") as file:
                return os.fstat(file.fileno()).st_mtime, file.read()
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ESTALE):
                raise
            return 0.0, "" if number else NOBODY

    def _is_free(self, number: int) -> bool:
        """Whether the lock's owner has given it back, is dead, or was silent for too long."""
        sign, content = self._read(number)
        is_dead = _is_dead(content)
        if is_dead is not None:
            return is_dead
        now = time.monotonic()
        last_sign, looked_at, silence = _watched.get(self.path, ((0, 0.0), now, 0.0))
        if last_sign == (number, sign):
            # at most BEAT counts between two looks, because this process, or the disk, may have
            # stood still
            silence += min(now - looked_at, BEAT)
        else:
            silence = 0.0
        _watched[self.path] = (number, sign), now, silence
        return silence > EXPIRES

    def _give_signs(self, number: int, ends: threading.Event) -> None:
        while not ends.wait(BEAT):
            with contextlib.suppress(OSError):  # a lock that is lost has no file any more
                os.utime(self._name_file(number))


def _is_dead(content: str) -> bool | None:
    """Whether the owner that wrote this text has given the lock back, or is dead.

    Returns None if its process is on another machine, or not known.
    """
    if content.startswith(NOBODY):
        return True
    fields = content.split()
    if len(fields) < 4 or fields[0] != identify_kernel():
        return None
    return read_start_time(fields[1]) != fields[2]
