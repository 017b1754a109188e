"""Whether processes live, by their numbers on the machine or in the container that they are of."""

from __future__ import annotations

import contextlib
import functools
import os
import socket

from benchmark.regular import read_text


@functools.cache
def kernel() -> str:
    """What tells machines apart, and containers with numbers of processes of their own."""
    with contextlib.suppress(OSError):
        boot = read_text("/proc/sys/kernel/random/boot_id").strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    return socket.gethostname()


def lives(pid: int, since: int | None = None) -> bool:
    """Whether a process lives, one that started then: numbers are given again."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # another user's
        pass
    now = started(pid)
    return now is None or since is None or now == since


def started(pid: int) -> int | None:
    """When a process started, in the kernel's ticks; -1 if it is dead and only waits for its parent to see it."""
    try:
        fields = read_text(f"/proc/{pid}/stat", "replace").rpartition(") ")[2].split()
    except OSError:
        return None
    return -1 if fields[0] in "ZX" else int(fields[19])
