"""Who has what below `--runs`: locks with a lifetime, which ask nothing of a file system but to create a file once.

Whoever takes `NAME` creates `NAME.1`, which only one can, and touches it every ten seconds (Gray and Cheriton 1989,
Leases). The next owner creates `NAME.2`, and so on; the highest number counts. An owner is dead if its process is, on
its own machine, or, seen from elsewhere, after 90 s without a sign of life: no clocks of two machines are compared. One
that was only silent finds a higher number than its own before it writes anything more.
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

import msgspec

from benchmark.errors import UserError

BEAT = 10.0  # seconds between two signs of life
EXPIRES = 90.0  # seconds of watching without one: more than a network file system shows old times for, 60
PAUSES = (0.02, 1.0)  # seconds between two looks, at first and at most
GIVEN_BACK = b"{}"  # the content of a lock that nobody has: removed, its number could be taken again
JOB = "BENCHMARK_JOB"  # the variable in which an executor says what its job is called


class LeaseLost(UserError):
    """Somebody else has what this process was silent about for too long."""


class Owner(msgspec.Struct, frozen=True):
    """A process. `kernel` is the same for those that can see each other's numbers, `started` in ticks of that."""

    host: str
    kernel: str
    pid: int
    started: str
    job: str = ""

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}" + (f", job {self.job}" if self.job else "")


def me() -> Owner:
    """This process."""
    return Owner(socket.gethostname(), kernel(), os.getpid(), started(os.getpid()), os.environ.get(JOB, ""))


@functools.cache
def kernel() -> str:
    """What tells machines apart, and containers with numbers of processes of their own."""
    return f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()} {os.readlink('/proc/self/ns/pid')}"


def started(pid: int) -> str:
    """When a process started; nothing if it is dead, or only waits for its parent to see it."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(") ")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in "ZX" else fields[19]


class Lease:
    """A lock with an owner that is known to live."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.number = 0  # of the file by which this process has it; 0: it has not
        self._ends = threading.Event()
        self._seen = (0, 0)  # the last owner's number, and when it gave its last sign
        self._looked = self._silent = 0.0

    def try_acquire(self) -> bool:
        """Take it, if nobody who lives has it."""
        before = self._numbers()
        number = max(before) + 1
        if not self._is_free(number - 1):
            return False
        try:
            with self._file(number).open("xb") as file:
                file.write(msgspec.json.encode(me()))
        except FileExistsError:
            return False
        if max(self._numbers()) != number:  # this process was slow, and has created an old number anew
            self._file(number).unlink(missing_ok=True)
            return False
        for old in before:
            with contextlib.suppress(FileNotFoundError, PermissionError):  # in /tmp another user's stays
                self._file(old).unlink()
        self.number, self._ends = number, threading.Event()
        threading.Thread(target=self._keep, args=(number, self._ends), name="lease", daemon=True).start()
        return True

    def acquire(self, wait: Callable[[], None] = lambda: None, poll: Callable[[], None] = lambda: None) -> None:
        """Wait until it is taken; if not at once, `wait` is called once, `poll` before each try: it may raise."""
        pause, longest = PAUSES
        while not self.try_acquire():
            poll()
            if pause == PAUSES[0]:
                wait()
            time.sleep(pause)
            pause = min(longest, 1.5 * pause)

    def release(self) -> None:
        """Make it nobody's, unless it is another's by now."""
        self._ends.set()
        number, self.number = self.number, 0
        if number:
            with contextlib.suppress(FileNotFoundError), self._file(number).open("r+b") as file:
                file.write(GIVEN_BACK)
                file.truncate()

    def __enter__(self) -> Lease:
        self.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def check(self) -> None:
        """Raises LeaseLost if it is another's by now: to be called before anything is written."""
        self._give_sign(self.number)
        if max(self._numbers()) != self.number:
            raise LeaseLost(f"{self.path}: {self.owner()} took it from this process, which gave no sign of life")

    def owner(self) -> Owner | None:
        """Who had it last, or has it; None if it was given back, or where nothing is known."""
        return _owner(self._read(max(self._numbers()))[1])

    def is_taken(self) -> bool:
        """Whether anybody seems to have it, for those who only want to say so: here clocks are compared."""
        sign, content = self._read(max(self._numbers()))
        dead = _is_dead(content)
        return time.time() - sign / 1e9 < EXPIRES if dead is None else not dead

    def _file(self, number: int) -> Path:
        return self.path.with_name(f"{self.path.name}.{number}")

    def _numbers(self) -> list[int]:
        """The numbers of its files, and 0, which is that of none."""
        suffixes = [path.suffix[1:] for path in self.path.parent.glob("*") if path.stem == self.path.name]
        return [0, *(int(suffix) for suffix in suffixes if suffix.isdigit())]

    def _read(self, number: int) -> tuple[int, bytes]:
        """When an owner gave its last sign, and who it is; nobody has what is gone, or goes meanwhile."""
        try:
            with self._file(number).open("rb") as file:  # which asks the server of a network file system for its times
                return os.fstat(file.fileno()).st_mtime_ns, file.read()
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ESTALE):
                raise
            return 0, b"" if number else GIVEN_BACK

    def _is_free(self, number: int) -> bool:
        """Whether its owner has given it back, is dead, or was silent for too long while this process looked."""
        sign, content = self._read(number)
        if (dead := _is_dead(content)) is not None:
            return dead
        now, seen = time.monotonic(), (number, sign)
        # what passed between two looks says little of another machine: this process, or the disk, may have stood still
        self._silent = self._silent + min(now - self._looked, 2 * PAUSES[1]) if seen == self._seen else 0.0
        self._seen, self._looked = seen, now
        return self._silent > EXPIRES

    def _keep(self, number: int, ends: threading.Event) -> None:
        """Give signs of life until it is given back; one that is lost has no file any more."""
        while not ends.wait(BEAT):
            self._give_sign(number)

    def _give_sign(self, number: int) -> None:
        with contextlib.suppress(OSError):
            os.utime(self._file(number))


def _owner(content: bytes) -> Owner | None:
    """None for what was given back, and for what its owner has not finished writing."""
    try:
        return msgspec.json.decode(content, type=Owner)
    except (msgspec.DecodeError, RecursionError):
        return None


def _is_dead(content: bytes) -> bool | None:
    """Whether whoever wrote this has no claim any more; None where its process is on another machine, or not known."""
    if content == GIVEN_BACK:
        return True
    owner = _owner(content)
    return started(owner.pid) != owner.started if owner and owner.kernel == kernel() else None
