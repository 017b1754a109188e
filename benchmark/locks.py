"""Owners of places below `--runs`: locks with a lifetime.

They ask nothing of a file system but to create a file once.

Whoever takes `NAME` creates `NAME.1`, which only one can, and touches it every ten seconds (Gray
and Cheriton 1989, Leases). The next owner creates `NAME.2`, and so on; the highest number counts.
An owner is dead if its process is, on its own machine, or, seen from elsewhere, after 100 s of
watching without a sign of life. One that was only silent finds a higher number than its own before
it writes anything more.

flufl.lock was not taken: it holds an owner's clock against that of whoever waits, and who waits for
a process that died on the same machine waits for the rest of the lock's lifetime.
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
# seconds of watching without one: more than a network file system shows old times for, 60
EXPIRES = 100.0
PAUSES = (0.02, 1.0)  # seconds between two looks, at first and at most
JOB = "BENCHMARK_JOB"  # the variable in which an executor names the job of a process
# what a lock that was given back begins with: removed, its number could be taken again
NOBODY = "-"

# of each lock that another has: its number and last sign of life, when they were looked at, and
# how long they were so
_watched: dict[Path, tuple[tuple[int, float], float, float]] = {}


class LeaseLost(UserError):
    """Somebody else has what this process was silent about for too long."""


@functools.cache
def identify_kernel() -> str:
    """A name of this machine, or of this container if its processes have numbers of their own."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    namespace = os.readlink("/proc/self/ns/pid")
    return f"{boot}-{namespace}"


def read_start_time(pid: int | str) -> str:
    """When a process started, in ticks since boot; empty if it is dead or a zombie."""
    try:
        content = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return ""
    fields = content.rpartition(") ")[2].split()
    if fields[0] in "ZX":
        return ""
    return fields[19]


class Lease:
    """A lock with an owner that is known to live."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()  # a process may change its folder while it has it
        self.number = 0  # of the file by which this process has it; 0: it has not
        self._ends = threading.Event()

    def try_acquire(self) -> bool:
        """Take it, if nobody who lives has it."""
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
            path.unlink(missing_ok=True)  # nobody could tell whose it is
            raise
        if max(self._list_numbers()) != number:
            # this process was slow, and has created an old number anew
            path.unlink(missing_ok=True)
            return False
        for old in old_numbers:
            with contextlib.suppress(OSError):  # in /tmp another user's stays
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
        """Take it, and wait for it where another has it.

        `wait` is called once if there is a wait, `check` before each further try: it may raise.
        """
        pause, longest = PAUSES
        while not self.try_acquire():
            check()
            if pause == PAUSES[0]:
                wait()
            time.sleep(pause)
            pause = min(longest, 1.5 * pause)

    def release(self) -> None:
        """Make it nobody's, unless it is another's by now."""
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
        """Raise LeaseLost if it is another's by now. Call this before anything is written."""
        if max(self._list_numbers()) != self.number:
            raise LeaseLost(
                f"{self.path}: {self.name_owner()} took it from this process, which gave no sign "
                "of life"
            )

    def name_owner(self) -> str:
        """The process that has it or had it last, in words."""
        fields = self._read(max(self._list_numbers()))[1].split()
        if len(fields) >= 4:
            return f"process {fields[1]} on {fields[3]}"
        return "another process"

    def read_job(self) -> str:
        """The job of whoever has it, or had it last; empty where that is none."""
        fields = self._read(max(self._list_numbers()))[1].split()
        return "".join(fields[4:])

    def is_taken(self) -> bool:
        """Whether somebody seems to have it.

        This is for messages alone, for it compares the clocks of machines.
        """
        sign, content = self._read(max(self._list_numbers()))
        is_dead = _is_dead(content)
        if is_dead is not None:
            return not is_dead
        names_owner = len(content.split()) >= 4  # else its owner ended before
        return names_owner and time.time() - sign < EXPIRES

    def _name_file(self, number: int) -> Path:
        return self.path.with_name(f"{self.path.name}.{number}")

    def _list_numbers(self) -> list[int]:
        """The numbers of its files, and 0 for no file."""
        suffixes = [
            path.suffix[1:] for path in self.path.parent.glob("*") if path.stem == self.path.name
        ]
        return [0, *(int(suffix) for suffix in suffixes if suffix.isdigit())]

    def _read(self, number: int) -> tuple[float, str]:
        """When an owner gave its last sign of life, and its text.

        The text is empty if the file is gone, and NOBODY for number 0, which needs no file.
        """
        try:
            # to open it asks a network file system for its times
            with self._name_file(number).open(errors="replace") as file:
                return os.fstat(file.fileno()).st_mtime, file.read()
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ESTALE):
                raise
            return 0.0, "" if number else NOBODY

    def _is_free(self, number: int) -> bool:
        """Whether its owner has given it back, is dead, or was silent for too long."""
        sign, content = self._read(number)
        is_dead = _is_dead(content)
        if is_dead is not None:
            return is_dead
        now = time.monotonic()
        last_sign, looked_at, silence = _watched.get(self.path, ((0, 0.0), now, 0.0))
        if last_sign == (number, sign):
            # of a long time between two looks little counts: this process, or the disk, may have
            # stood still
            silence += min(now - looked_at, BEAT)
        else:
            silence = 0.0
        _watched[self.path] = (number, sign), now, silence
        return silence > EXPIRES

    def _give_signs(self, number: int, ends: threading.Event) -> None:
        while not ends.wait(BEAT):
            with contextlib.suppress(OSError):  # one that is lost has no file any more
                os.utime(self._name_file(number))


def _is_dead(content: str) -> bool | None:
    """Whether whoever wrote this has no claim any more.

    None where its process is on another machine, or not known.
    """
    if content.startswith(NOBODY):
        return True
    fields = content.split()
    if len(fields) < 4 or fields[0] != identify_kernel():
        return None
    return read_start_time(fields[1]) != fields[2]
