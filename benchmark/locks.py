"""Who has what below `--runs`: leases, which say their owner and a sign of life, beside a file lock where there is one.

A file lock (flock) ends with its owner; but some file systems have none, some keep it to one machine, and some keep it
when that has died: NFSv4 for a while, NFSv3 until it is back. So a lock alone keeps nobody out for long: whoever works
on something also writes `NAME.1`, which only one can create, and touches it every ten seconds (Gray and Cheriton 1989,
Leases). The next owner writes `NAME.2`, and so on; the highest number counts. An owner is dead if its process is, on
its own machine; if Slurm has queued its job again; or, seen from elsewhere, after 90 s without a sign of life, 10 s
where it has not even said who it is. No clocks of two machines are compared. One that was only silent finds a higher
number than its own before it writes anything more.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import getpass
import json
import os
import re
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from benchmark.errors import UserError, shown
from benchmark.files import is_missing, kernel, lives, naming, regular, started

if TYPE_CHECKING:
    from typing_extensions import Self  # typing has it from Python 3.11 on

BEAT = 10.0  # seconds between two signs of life
LONGEST = 2**16  # bytes that are read of what an owner says of itself
EXPIRES = 90.0  # seconds of watching without one: more than a network file system shows old times for, 60
LEFT_BEHIND = 3600.0  # seconds likewise, by two clocks, that are enough to say that a locked one is nobody's
PAUSES = (0.02, 1.0)  # seconds between two looks, at first and at most
PIDS = 2**22  # Linux' greatest number of a process
NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EINVAL}
GONE = {errno.ENOENT, errno.ESTALE}
ONLY_READ = {errno.EACCES, errno.EPERM, errno.EROFS}


class LeaseLost(UserError):
    """Somebody else has what this process was silent about for too long."""


@dataclass(frozen=True)
class Owner:
    """A process. `kernel` is the same for those that can see each other's numbers, `started` in ticks of that."""

    host: str
    kernel: str
    pid: int
    started: int | None
    user: str
    job: str = ""  # of Slurm, after its cluster
    restarts: int = 0  # how often that was queued again

    def __str__(self) -> str:
        job = f", job {self.job_id}" if self.job else ""
        return shown(f"process {self.pid} of {self.user} on {self.host}{job}")

    @property
    def job_id(self) -> str:
        """The number that Slurm gave its job; empty where there is none."""
        return self.job.partition("/")[2]

    def is_dead(self) -> bool | None:
        """None where this process cannot tell."""
        mine = me()
        if self.kernel == mine.kernel:
            return not lives(self.pid, self.started)
        return True if self.job and self.job == mine.job and self.restarts < mine.restarts else None


def me() -> Owner:
    """This process."""
    job = os.environ.get("SLURM_JOB_ID", "")
    if array := os.environ.get("SLURM_ARRAY_JOB_ID"):
        job = f"{array}_{os.environ.get('SLURM_ARRAY_TASK_ID', '')}"
    job = job and f"{os.environ.get('SLURM_CLUSTER_NAME', '')}/{job}"
    restarts = int(os.environ.get("SLURM_RESTART_COUNT", 0))
    return Owner(socket.gethostname(), kernel(), os.getpid(), started(os.getpid()), _user(), job, restarts)


class Lock:
    """A file lock: of one process at a time, on all machines where the file system says so.

    `mode`: of the file, whatever the umask. One that is not `needed` is as good as taken where a file system has none.
    """

    def __init__(self, path: Path, mode: int | None = None, needed: bool = True) -> None:
        self.path, self._mode, self._needed = path, mode, needed
        self._file: int | None = None

    @property
    def is_held(self) -> bool:
        """Whether this object has it."""
        return self._file is not None

    def try_acquire(self) -> bool:
        """Take it, if nobody has it. Raises OSError where that cannot be asked."""
        self._file = self._locked()
        return self.is_held

    def acquire(self, wait: Callable[[], None] = lambda: None, poll: Callable[[], None] = lambda: None) -> None:
        """Wait until it is taken; if not at once, `wait` is called once, `poll` before each try: it may raise."""
        pause, longest = PAUSES
        while not self.try_acquire():
            poll()
            wait()
            wait = lambda: None  # noqa: E731
            time.sleep(pause)
            pause = min(longest, 1.5 * pause)

    def release(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def _locked(self) -> int | None:
        """The open file, locked if the file system can; None if another process has locked it."""
        file = self._opened()
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(file)
            return None
        except OSError as error:
            if self._needed or error.errno not in NO_LOCKS:
                os.close(file)
                raise OSError(error.errno, error.strerror, str(self.path)) from None
        return file

    def _opened(self) -> int:
        while True:
            with contextlib.suppress(FileNotFoundError):  # first: in /tmp nobody may create what is another's
                return os.open(regular(self.path), os.O_RDWR)
            is_missing(self.path)  # raises for a link to nothing, which would be tried for ever
            with contextlib.suppress(FileExistsError):
                file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
                if self._mode is not None:
                    os.fchmod(file, self._mode)
                return file


class Lease(Lock):
    """A file lock with an owner that is known to live, on file systems without such locks too."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, needed=False)
        self._number = 0
        self._lost = False
        self._ends = threading.Condition()
        self._seen: tuple[int, int] | None = None  # the last owner's number, and when it gave its last sign
        self._looked = self._silent = 0.0

    def try_acquire(self) -> bool:
        """Take it, if nobody who lives has it. Raises UserError for what another user has not shared."""
        try:
            file = self._locked()
        except PermissionError:
            raise UserError(
                f"{self.path} cannot be written by {_user()}: in a folder of runs that users share, each works with "
                "`umask 002`, and `chmod -R g+w` mends what was written before"
            ) from None
        is_locked = file is None
        file = self._opened() if file is None else file
        try:
            taken = self._claim(is_locked)
        except BaseException:
            os.close(file)
            raise
        if not taken:
            os.close(file)
            return False
        self._file, self._lost = file, False
        threading.Thread(target=self._keep, args=(self._number,), name="lease", daemon=True).start()
        return True

    def release(self) -> None:
        if self._file is None:
            return
        with self._ends:
            number, self._number = self._number, 0
            self._ends.notify_all()
        if not self._give_back(number):
            threading.Thread(target=self._insist, args=(number,), name="lease", daemon=True).start()
        super().release()

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
        return _read(self._numbered(max(self._numbers(), default=0)))

    def is_taken(self) -> bool:
        """Whether anybody seems to have it, for those who only want to say so: here clocks are compared."""
        if not self.path.exists():  # nobody ever had it; who only asks creates nothing
            return False
        silence = EXPIRES
        try:
            if (file := self._locked()) is None:
                silence = LEFT_BEHIND
            else:
                os.close(file)
        except OSError as error:
            if error.errno not in ONLY_READ:  # who may only read goes by what the owner has written
                raise
        found = self._numbered(max(self._numbers(), default=0))
        owner, is_locked = _read(found), silence == LEFT_BEHIND
        if owner is None or owner.is_dead() is not None:  # who has the lock of a dead one is about to be the owner
            return is_locked or (owner is not None and not owner.is_dead())
        with contextlib.suppress(FileNotFoundError):
            return time.time() - found.stat().st_mtime < silence
        return is_locked

    def _numbered(self, number: int) -> Path:
        return self.path.with_name(f"{self.path.name}.{number}")

    def _numbers(self) -> list[int]:
        prefix = f"{self.path.name}."
        if not self.path.parent.is_dir():
            return []
        names = (file.name for file in os.scandir(self.path.parent) if file.name.startswith(prefix))
        return [int(number) for name in names if (number := name.removeprefix(prefix)).isdigit()]

    def _claim(self, is_locked: bool) -> bool:
        """Be the next owner, unless the last one lives, or another is faster. `is_locked`: the file, by another."""
        before = self._numbers()
        last = max(before, default=0)
        if not self._is_free(last, is_locked):
            return False
        mine = self._numbered(last + 1)
        try:
            file = mine.open("x")
        except FileExistsError:
            return False
        try:
            with naming(mine), file:
                json.dump(asdict(me()), file)
        except BaseException as error:
            mine.unlink(missing_ok=True)  # the next one would wait for it to say whose it is
            if isinstance(error, OSError) and error.errno in GONE:  # an old number, which the faster one has removed
                return False
            raise
        # one that took long to come here, after several others, has created an old number anew
        if max(self._numbers()) != last + 1:
            mine.unlink(missing_ok=True)
            return False
        self._number = last + 1
        for number in before:
            self._numbered(number).unlink(missing_ok=True)
        return True

    def _give_back(self, number: int) -> bool:
        """Make it nobody's; False where the disk does not let it."""
        try:
            with regular(self._numbered(number)).open("r+b") as file:  # removed, its number could be taken again
                file.write(b"{}")
                file.truncate()
        except OSError as error:
            return error.errno in GONE  # it is another's by now, whose number is higher
        return True

    def _insist(self, number: int) -> None:
        """Others, and this process too, would wait for its owner as long as this process lives."""
        while not self._give_back(number):
            time.sleep(BEAT)

    def _is_free(self, number: int, is_locked: bool) -> bool:
        """Whether its owner has given it back, is dead, or was silent for too long while this process looked.

        Who has the lock is about to be the owner, or was on a machine that died, whose locks NFSv3 keeps.
        """
        read = _content(self._numbered(number)) if number else (0, b"{}")  # the first one has none before it
        if read is None:
            return False
        sign, content = read
        owner = _parsed(content)
        if not is_locked and (content == b"{}" or (owner and owner.is_dead())):
            return True
        if owner and owner.is_dead() is False:
            return False
        now, seen = time.monotonic(), (number, sign)
        # what passed between two looks says little of another machine: this process, or the disk, may have stood still
        self._silent = self._silent + min(now - self._looked, 2 * PAUSES[1]) if seen == self._seen else 0.0
        self._seen, self._looked = seen, now
        # one that died before it had said who it is wrote no line
        return self._silent > (EXPIRES if owner and not owner.is_dead() else BEAT)

    def _keep(self, number: int) -> None:
        """Give signs of life until it is given back or lost."""
        while True:
            with self._ends:
                if self._number != number or self._ends.wait_for(lambda: self._number != number, BEAT):
                    return
                self._lost = self._is_lost(number)
            if self._lost:
                return

    def _is_lost(self, number: int) -> bool:
        """Give a sign of life, and see whether there is a later owner. A disk that does not answer says nothing."""
        try:
            os.utime(self._numbered(number))
        except OSError as error:
            return error.errno in GONE
        return self._numbered(number + 1).exists()


def _read(path: Path) -> Owner | None:
    read = _content(path)
    return _parsed(read[1]) if read else None


def _content(path: Path) -> tuple[int, bytes] | None:
    """When a file was written last, and what; None if it is gone, or goes while it is read, which NFS does not hide."""
    try:
        # to open a file is to ask the server of a network file system for its times
        with regular(path).open("rb") as file:
            return os.fstat(file.fileno()).st_mtime_ns, file.read(LONGEST)
    except OSError as error:
        if error.errno in GONE:
            return None
        raise


def _parsed(content: bytes) -> Owner | None:
    """None for what was given back, for what its owner has not finished writing, and for what no owner writes."""
    import msgspec  # here, for --help has no packages

    try:
        owner = msgspec.json.decode(content, type=Owner)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return None
    return owner if 0 < owner.pid <= PIDS and re.fullmatch(r"([^/]*/\w+)?", owner.job) else None


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a number without a name, as in containers
        return str(os.getuid())
