"""What glibc says of the memory that it maps."""

from __future__ import annotations

import ctypes


class Mallinfo(ctypes.Structure):
    """What glibc's mallinfo2(3) returns."""

    names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
    _fields_ = [(name, ctypes.c_size_t) for name in names.split()]


def count_maps() -> int:
    """How many blocks glibc maps outside of its heap for 64 MiB."""
    libc = ctypes.CDLL(None)
    libc.mallinfo2.restype = Mallinfo
    libc.malloc.restype = ctypes.c_void_p
    before = libc.mallinfo2().hblks
    libc.malloc(ctypes.c_size_t(2**26))
    return int(libc.mallinfo2().hblks - before)
