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
import getpass
import os
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from benchmark.errors import UserError
from benchmark.files import naming

BEAT = 10.0  # seconds between two signs of life
EXPIRES = 90.0  # seconds of watching without one: more than a network file system shows old times for, 60
PAUSES = (0.02, 1.0)  # seconds between two looks, at first and at most
GIVEN_BACK = b"{}"  # the content of a lock that nobody has: removed, its number could be taken again
GONE = {errno.ENOENT, errno.ESTALE}
JOB = "BENCHMARK_JOB"  # the variable in which an executor says what its job is called


class LeaseLost(UserError):
    """Somebody else has what this process was silent about for too long."""


class Owner(msgspec.Struct, frozen=True):
    """A process. `kernel` is the same for those that can see each other's numbers, `started` in ticks of that."""

    host: str
    kernel: str
    pid: int
    started: int
    user: str
    job: str = ""

    def __str__(self) -> str:
        return f"process {self.pid} of {self.user} on {self.host}" + (f", job {self.job}" if self.job else "")

    def is_dead(self) -> bool | None:
        """None where this process cannot tell: it is on another machine."""
        return started(self.pid) != self.started if self.kernel == kernel() else None


def me() -> Owner:
    """This process."""
    user = str(os.getuid())
    with contextlib.suppress(KeyError, OSError):  # a number without a name, as in containers
        user = getpass.getuser()
    return Owner(socket.gethostname(), kernel(), os.getpid(), started(os.getpid()), user, os.environ.get(JOB, ""))


@functools.cache
def kernel() -> str:
    """What tells machines apart, and containers with numbers of processes of their own."""
    with contextlib.suppress(OSError):
        return f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()} {os.readlink('/proc/self/ns/pid')}"
    return socket.gethostname()


def started(pid: int) -> int:
    """When a process started, in the kernel's ticks; 0 if it is dead, or only waits for its parent to see it."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(") ")[2].split()
    except OSError:
        return 0
    return 0 if fields[0] in "ZX" else int(fields[19])


class Lease:
    """A lock with an owner that is known to live."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._number, self._lost, self._ends = 0, False, threading.Event()
        self._seen = (0, 0)  # the last owner's number, and when it gave its last sign
        self._looked = self._silent = 0.0

    @property
    def is_held(self) -> bool:
        return self._number > 0

    def try_acquire(self) -> bool:
        """Take it, if nobody who lives has it."""
        before = self._numbers()
        number = max(before, default=0) + 1
        if not self._is_free(number - 1):
            return False
        try:
            with naming(self._file(number)), self._file(number).open("xb") as file:
                file.write(msgspec.json.encode(me()))
        except FileExistsError:
            return False
        if max(self._numbers()) != number:  # this process was slow, and has created an old number anew
            self._file(number).unlink(missing_ok=True)
            return False
        for old in before:
            with contextlib.suppress(FileNotFoundError, PermissionError):  # in /tmp another user's stays
                self._file(old).unlink()
        self._number, self._lost, self._ends = number, False, threading.Event()
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
        number, self._number = self._number, 0
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
        self._lost = self._lost or self._is_lost(self._number)
        self.refuse_if_lost()

    def refuse_if_lost(self) -> None:
        """The same by what is known, without a look at the disk."""
        if self._lost:
            raise LeaseLost(
                f"{self.path}: this process gave no sign of life for too long, and {self.owner()} has it: "
                "let that one end"
            )

    def owner(self) -> Owner | None:
        """Who had it last, or has it; None if it was given back, or where nothing is known."""
        return _owner(self._read(max(self._numbers(), default=0))[1])

    def is_taken(self) -> bool:
        """Whether anybody seems to have it, for those who only want to say so: here clocks are compared."""
        sign, content = self._read(max(self._numbers(), default=0))
        dead = _is_dead(content)
        return time.time() - sign / 1e9 < EXPIRES if dead is None else not dead

    def _file(self, number: int) -> Path:
        return self.path.with_name(f"{self.path.name}.{number}")

    def _numbers(self) -> list[int]:
        names = os.listdir(self.path.parent) if self.path.parent.is_dir() else []
        prefix = f"{self.path.name}."
        return [int(number) for name in names if name.startswith(prefix) and (number := name[len(prefix) :]).isdigit()]

    def _read(self, number: int) -> tuple[int, bytes]:
        """When an owner gave its last sign, and who it is; nothing of one that is gone, or goes meanwhile."""
        if not number:
            return 0, GIVEN_BACK
        try:
            with self._file(number).open("rb") as file:  # which asks the server of a network file system for its times
                return os.fstat(file.fileno()).st_mtime_ns, file.read()
        except OSError as error:
            if error.errno not in GONE:
                raise
            return 0, b""

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
        """Give signs of life until it is given back or lost."""
        while not self._lost and not ends.wait(BEAT):
            lost = self._is_lost(number)
            self._lost = self._lost or (lost and number == self._number)

    def _is_lost(self, number: int) -> bool:
        """Give a sign of life, and see whether there is a later owner. A disk that does not answer says nothing."""
        try:
            os.utime(self._file(number))
        except OSError as error:
            return error.errno in GONE
        return self._file(number + 1).exists()


def _owner(content: bytes) -> Owner | None:
    """None for what was given back, and for what its owner has not finished writing."""
    try:
        return msgspec.json.decode(content, type=Owner)
    except msgspec.DecodeError:
        return None


def _is_dead(content: bytes) -> bool | None:
    """Whether whoever wrote this has no claim any more; None where this process cannot tell."""
    owner = _owner(content)
    return content == GIVEN_BACK or (owner.is_dead() if owner else None)
